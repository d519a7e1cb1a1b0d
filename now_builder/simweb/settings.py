"""Settings of a simulated web."""

from pydantic import Field, field_validator

from now_builder.config import Strict

LANGUAGES = ("zh", "en", "ja", "ru", "es", "ko")
"""Languages that the simulated web can be written in."""

_BY_SCRIPT = ("zh", "en", "ja", "ru", "ko")
"""Each in a script of its own, so that a page shows its language."""

TOPIC_COUNT = 36
"""Topics that are drawn and described in every language."""


class SimwebSettings(Strict):
    """Settings of ``simweb make``; they and the seed determine every byte that is served."""

    pages: int = Field(1000, ge=1, le=99_999, description="URLs in the list, awkward ones among.")
    sites: int = Field(
        80,
        ge=1,
        le=999,
        description="Sites, each with a host name of its own; a short list gets fewer, so that "
        "every site has pages on at least six topics.",
    )
    topics: int = Field(
        12, ge=2, le=TOPIC_COUNT, description="How many of the 36 topics are drawn from, by seed."
    )
    languages: list[str] = Field(
        default_factory=lambda: list(_BY_SCRIPT),
        min_length=1,
        description=f"Languages of the sites, of {', '.join(LANGUAGES)}.",
    )
    mismatch: float = Field(
        0.4,
        ge=0,
        le=1,
        description="Share of mismatched pairs among the pages that have a description.",
    )
    awkward: int = Field(
        75,
        ge=0,
        description="Awkward pages (redirect, hanging, legacy encoding …) among the pages; at most "
        "a quarter of them. Enough of them show every kind at least once.",
    )
    seed: int = Field(0, description="Changes everything that is drawn.")

    @field_validator("languages")
    @classmethod
    def _known(cls, languages: list[str]) -> list[str]:
        unknown = sorted(set(languages) - set(LANGUAGES))
        if unknown:
            raise ValueError(f"no words in {', '.join(unknown)}; there are {', '.join(LANGUAGES)}")
        if len(set(languages)) < len(languages):
            raise ValueError("each language is named once")
        return languages
