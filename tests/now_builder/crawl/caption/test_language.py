"""Language of short texts."""

import pytest

from now_builder.crawl.caption.language import detect_language, primary_tag


@pytest.mark.parametrize(
    ("text", "declared", "language"),
    [
        ("北京最好吃的餐厅", None, "zh"),
        ("東京で一番おいしい店", "zh", "ja"),
        ("서울 맛집", None, "ko"),
        ("東京大学", "ja", "ja"),
        ("Лучшие рестораны Москвы и Санкт-Петербурга, отзывы и цены", None, "ru"),
        ("The best restaurants in town, chosen by people who live here", None, "en"),
        ("Les meilleurs restaurants de la ville, choisis par ceux qui y vivent", "en", "fr"),
        ("Home", "de-AT", "de"),
        ("Documentation of the connectors that come with this release", "zh", "en"),
        ("Flink CDC documentation", "zh", "und"),
        ("Flink CDC documentation", "en", "en"),
        ("Azul Zulu", None, "und"),
        ("Login", None, "und"),
        ("Ok", None, "und"),
        ("mkdocs-material", "english", "und"),
        ("Über uns", None, "de"),
        ("Главная страница", None, "ru"),
        ("Kontaktieren Sie uns", None, "de"),
        ("鐵路", None, "zh"),
        ("", "pt_BR", "pt"),
        ("123 !!", None, None),
        ("iPhone 15 评测", "en", "zh"),
    ],
)
def test_the_language_of_a_short_text(text: str, declared: str | None, language: str) -> None:
    assert detect_language(text, declared) == language


def test_what_is_no_language_tag_is_none() -> None:
    assert [primary_tag(tag) for tag in ("zh-Hant-TW", "EN", "cn", "english", "", None)] == [
        "zh", "en", "zh", None, None, None,
    ]  # fmt: skip
