"""Detecting the language of short texts."""

from pathlib import Path

from now_builder.crawl.caption.language import detect_language, primary_tag
from tests.now_builder.crawl.cases import read_cases

CASES = read_cases(Path(__file__).with_name("languages.toml"))
WRITTEN = CASES["written"]


def test_the_language_of_a_short_text() -> None:
    for text, declared, language in CASES["short"]["cases"]:
        assert detect_language(text, declared or None) == (language or None), text


def test_a_declaration_counts_only_in_the_texts_script() -> None:
    for language, text in WRITTEN.items():
        assert detect_language(text, "sw") == language
        words = text.split()
        assert detect_language(words[0], language) == language
        for declared in ("en-US", "zh-CN"):
            detected = detect_language(" ".join(words[:2]), declared)
            assert detected != primary_tag(declared) or language == "zh", text


def test_what_is_no_language_tag_is_none() -> None:
    assert [primary_tag(tag) for tag in ("zh-Hant-TW", "EN", "cn", "english", "", None)] == [
        "zh", "en", "zh", None, None, None,
    ]  # fmt: skip
