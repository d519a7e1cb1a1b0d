"""Settings of a simulated web."""

from pydantic import Field, field_validator

from now_builder.config import Strict

LANGUAGES = ("zh", "en", "ja", "ru", "es", "ko")
"""Languages that the simulated web can be written in."""

_BY_SCRIPT = ("zh", "en", "ja", "ru", "ko")
"""The default languages, each in its own script, so that a page shows its language."""

TOPIC_COUNT = 36
"""Topics with pictures, and words in every language."""


class SimwebSettings(Strict):
    """Settings of ``simweb make``; they determine every byte that is served."""

    pages: int = Field(1000, ge=1, le=99_999, description="Number of URLs, awkward ones included.")
    sites: int = Field(
        80,
        ge=1,
        le=999,
        description="Number of sites (host names); fewer for a short list, so that every site has "
        "pages on at least six topics.",
    )
    topics: int = Field(12, ge=2, le=TOPIC_COUNT, description="Number of topics, of 36, by seed.")
    languages: list[str] = Field(
        default_factory=lambda: list(_BY_SCRIPT),
        min_length=1,
        description=f"Languages of the sites, of {', '.join(LANGUAGES)}.",
    )
    mismatch: float = Field(
        0.4, ge=0, le=1, description="Share of mismatched pairs among the pages with a description."
    )
    awkward: int = Field(
        75,
        ge=0,
        description="Number of awkward pages (redirect, hanging, legacy encoding …), at most a "
        "quarter of all; the default shows every kind.",
    )
    seed: int = Field(0, description="Seed of every random choice.")

    @field_validator("languages")
    @classmethod
    def _known(cls, languages: list[str]) -> list[str]:
        if set(languages) - set(LANGUAGES) or len(set(languages)) < len(languages):
            raise ValueError(f"languages among {', '.join(LANGUAGES)}, each once")
        return languages
