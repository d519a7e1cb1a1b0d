"""What a user can set in packaging, and what is taken where nothing is given."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from now_builder.config import Strict
from now_builder.formats.benchmarks import NOW_DEV, NOW_TEST, NOW_TRAIN
from now_builder.formats.split import By
from now_builder.formats.text import ODDITIES

FLAGS = (
    *ODDITIES, "email", "phone", "adult", "error_page", "garbled_screenshot", "blank",
    "same_screenshot", "consent_wall",
)  # fmt: skip
"""What may be noteworthy about a pair."""


class PackageSettings(Strict):
    """Settings of ``package``; what is not given is taken from the release as it was, if it was."""

    train: int | None = Field(
        None,
        ge=1,
        description=f"Pairs of train at most; {NOW_TRAIN} for a new release, as published.",
    )
    dev: int | None = Field(
        None, ge=1, description=f"Pairs of dev at most; {NOW_DEV}, as published."
    )
    test: int | None = Field(
        None, ge=1, description=f"Pairs of test at most; {NOW_TEST}, as published."
    )
    seed: int | None = Field(
        None, description="Changes the pools and the draw from them; the crawl's for a new release."
    )
    by: By | None = Field(
        None,
        description="What is kept together in one of train, dev, test; as the crawl's for a new "
        "release. With other pools than the crawl's, what was learned on those is said.",
    )
    test_sites: Path | None = Field(
        None,
        description="Text file (a host name or URL a line), or CSV/Parquet with a column site or "
        "url: these sites, with the hosts below them, are the pool of test, all others are train "
        "or dev. none: no file.",
    )
    matched: list[Path] = Field(
        default_factory=list,
        description="CSV or Parquet with a column url or key and a column matched (true, false, "
        "match, mismatch, unsure): dev and test are drawn from pairs that match. May be repeated, "
        "once a judge: a pair they differ on counts as unsure. none: no file.",
    )
    min_characters: int | None = Field(
        None, ge=0, description="Least characters of a caption; 0 sets no limit."
    )
    max_characters: int | None = Field(
        None, ge=0, description="Most characters of a caption; 0 sets no limit."
    )
    languages: str | None = Field(
        None,
        pattern=r"^all$|^[a-z]{2,3}(,[a-z]{2,3})*$",
        description="Languages to keep, such as zh,en (und: undecided); all keeps all.",
    )
    drop: str | None = Field(
        None,
        description="Flags whose pages are left out, such as blank,error_page; none drops none; "
        f"blank for a new release. There are: {', '.join(FLAGS)}. For consent_wall the elements "
        "of all pages are read.",
    )
    duplicate_pages: Literal["keep", "drop"] | None = Field(
        None,
        description="drop: of listed URLs that led to one page, as redirects do, only one stays; "
        "drop for a new release.",
    )
    duplicate_captions: Literal["keep", "exact", "near"] | None = Field(
        None,
        description="exact: of captions equal after case folding only one stays; near: also of "
        "similar ones.",
    )
    similarity: float | None = Field(
        None,
        gt=0,
        le=1,
        description="From which captions are near: Jaccard similarity of their runs of three "
        "characters; 0.8 for a new release.",
    )
    duplicate_looks: int | None = Field(
        None,
        ge=-1,
        le=32,
        description="Of screenshots whose perceptual hashes differ in so many of 64 bits at most, "
        "only one stays; -1 keeps all. Alike are 0 to 4.",
    )
    mend: bool | None = Field(
        None,
        description="Captions with entities, tags and zero-width characters mended; must be what "
        "tokenize was told, which is taken when this is not given.",
    )
    npy: bool | None = Field(
        None, description="Also write {split}_ims.npy, which the authors' loader reads."
    )
    half: bool | None = Field(
        None, description="Store regions as float16; without the flag as they are in FEATURES."
    )
    name: str | None = Field(None, min_length=1, description="Name of the dataset, for its card.")
    licence: str | None = Field(
        None,
        pattern=r"^[a-z0-9][a-z0-9.+-]*$",
        description="Licence id as the hub writes it, in lower case (cc-by-nc-4.0, other …).",
    )
    homepage: str | None = Field(None, description="Where the release is published, for its card.")
    contact: str | None = Field(
        None, description="Where a site's owner can ask for removal, for the card."
    )

    @field_validator("matched", mode="before")
    @classmethod
    def _one_is_a_list(cls, matched: Any) -> Any:
        return [matched] if isinstance(matched, str | Path) else matched

    @field_validator("drop")
    @classmethod
    def _are_flags(cls, drop: str | None) -> str | None:
        unknown = set(_names(drop or "none", "none")) - set(FLAGS)
        if unknown:
            raise ValueError(f"no such flag: {', '.join(sorted(unknown))}")
        return drop


class ParquetSettings(Strict):
    """Settings of ``export-parquet``."""

    captures: Path | None = Field(
        None,
        description="Folder that the release was packaged from, for its screenshots; needed but "
        "with --no-images.",
    )
    images: bool = Field(
        True,  # noqa: FBT003 - a field
        description="Put the screenshots in; without them where a publication may not ship pixels.",
    )
    tokens: bool = Field(
        False,  # noqa: FBT003 - a field
        description="Add the token ids of the three tokenizers.",
    )
    regions: bool = Field(
        False,  # noqa: FBT003 - a field
        description="Add the 36 x 768 region features.",
    )
    file_mb: int = Field(500, ge=1, description="Megabytes of a file, about.")


class ReleaseSettings(Strict):
    """Settings of a release with nothing left open; ``manifest.json`` keeps them.

    Attributes:
        matched: Paths relative to the release folder, as is ``test_sites``.
    """

    train: int = NOW_TRAIN
    dev: int = NOW_DEV
    test: int = NOW_TEST
    seed: int
    by: By
    test_sites: str = ""
    matched: list[str] = Field(default_factory=list)
    min_characters: int = 0
    max_characters: int = 0
    languages: str = "all"
    drop: str = "blank"
    duplicate_pages: Literal["keep", "drop"] = "drop"
    duplicate_captions: Literal["keep", "exact", "near"] = "keep"
    similarity: float = 0.8
    duplicate_looks: int = -1
    mend: bool = False
    npy: bool = False
    half: bool | None = None
    name: str = "Rebuilt Noise of Web"
    licence: str = "other"
    homepage: str = ""
    contact: str = ""

    @field_validator("matched", mode="before")
    @classmethod
    def _as_it_was(cls, matched: Any) -> Any:
        """Read the setting of a release that knew one file at most."""
        return [matched] if isinstance(matched, str) else matched or []

    @property
    def kept_languages(self) -> frozenset[str]:
        """Languages whose pages are kept (``und``: undecided); empty for all."""
        return _names(self.languages, "all")

    @property
    def dropped_flags(self) -> frozenset[str]:
        """Flags that keep a page out."""
        return _names(self.drop, "none")


def _names(text: str, empty: str) -> frozenset[str]:
    """Take a list apart; a word of its own stands for the empty one."""
    return frozenset() if text == empty else frozenset(text.split(","))
