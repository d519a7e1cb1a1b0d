"""Language of short texts."""

from pathlib import Path

import pytest

from now_builder.crawl.caption.language import detect_language, primary_tag
from tests.now_builder.crawl.cases import read_cases

CASES = read_cases(Path(__file__).with_name("languages.toml"))
WRITTEN = CASES["written"]


@pytest.mark.parametrize(("text", "declared", "language"), CASES["short"]["cases"])
def test_the_language_of_a_short_text(text: str, declared: str, language: str) -> None:
    assert detect_language(text, declared or None) == (language or None)


@pytest.mark.parametrize("declared", ["en-US", "fr", "zh-CN", "sw"])
@pytest.mark.parametrize("language", WRITTEN)
def test_a_declaration_in_another_script_is_ignored(language: str, declared: str) -> None:
    assert detect_language(WRITTEN[language], declared) == language
    first = " ".join(WRITTEN[language].split()[:2])
    assert detect_language(first, declared) != primary_tag(declared) or language == "zh"


@pytest.mark.parametrize("language", WRITTEN)
def test_one_in_the_texts_script_is_taken(language: str) -> None:
    assert detect_language(WRITTEN[language].split()[0], language) == language


def test_what_is_no_language_tag_is_none() -> None:
    assert [primary_tag(tag) for tag in ("zh-Hant-TW", "EN", "cn", "english", "", None)] == [
        "zh", "en", "zh", None, None, None,
    ]  # fmt: skip
