"""Settings of a simulated web."""

from pydantic import Field, field_validator

from now_builder.config import Strict

LANGUAGES = ("zh", "en", "ja", "ru", "es", "ko")
"""Languages of the simulated web."""

_BY_SCRIPT = ("zh", "en", "ja", "ru", "ko")
"""Default languages, each with its own script, so that pictures show the language."""

TOPIC_COUNT = 36
"""Number of topics with pictures and words."""


class SimwebSettings(Strict):
    """Settings of ``simweb make``; they determine every byte that is served."""

    pages: int = Field(1000, ge=1, le=99_999, description="Number of URLs, with awkward pages.")
    sites: int = Field(
        80,
        ge=1,
        le=999,
        description="Maximum number of sites (host names); fewer if there are less than eight "
        "pages per site.",
    )
    topics: int = Field(12, ge=2, le=TOPIC_COUNT, description="Number of topics, chosen from 36.")
    languages: list[str] = Field(
        default_factory=lambda: list(_BY_SCRIPT),
        min_length=1,
        description=f"Languages of the sites, from {', '.join(LANGUAGES)} (repeatable).",
    )
    mismatch: float = Field(
        0.4, ge=0, le=1, description="Share of mismatches among the pages with a description."
    )
    awkward: int = Field(
        75,
        ge=0,
        description="Number of awkward pages (redirect, hanging, legacy encoding …), at most a "
        "quarter of all; the default includes every kind.",
    )
    seed: int = Field(0, description="Seed of all random choices.")

    @field_validator("languages")
    @classmethod
    def _known(cls, languages: list[str]) -> list[str]:
        if set(languages) - set(LANGUAGES) or len(set(languages)) < len(languages):
            raise ValueError(f"expected different languages from {', '.join(LANGUAGES)}")
        return languages
