"""Settings of ``package``."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from now_builder.config import Strict
from now_builder.formats.benchmarks import NOW_DEV, NOW_TEST, NOW_TRAIN
from now_builder.formats.split import By
from now_builder.formats.text import ODDITIES

FLAGS = (
    *ODDITIES, "email", "phone", "personal_data", "adult", "error_page", "garbled_screenshot",
    "blank", "same_screenshot", "copied_caption", "consent_wall",
)  # fmt: skip
"""Flags that a pair may have."""


class PackageSettings(Strict):
    """Settings of ``package``; ``manifest.json`` stores all of them.

    The default of a setting is that of the release to replace, if any; ``model_fields_set`` tells
    which settings were given. In the manifest, paths are relative to the release.
    """

    train: int = Field(NOW_TRAIN, ge=1, description="Maximum number of train pairs.")
    dev: int = Field(NOW_DEV, ge=1, description="Maximum number of dev pairs.")
    test: int = Field(NOW_TEST, ge=1, description="Maximum number of test pairs.")
    seed: int | None = Field(
        None, description="Seed of the pools and of the draw from them; default: that of the crawl."
    )
    by: By | None = Field(
        None,
        description="Unit whose pages stay in one split; default: that of the crawl. With another, "
        "the card counts dev and test pairs that were in the crawl's train pool.",
    )
    test_sites: str = Field(
        "",
        description="List of the sites of the test pool, with the hosts below them; all others are "
        "train or dev. Text file with a host name or URL per line, or CSV or Parquet with a column "
        "site or url; none: no file.",
    )
    matched: list[str] = Field(
        default_factory=list,
        description="Verdicts on pairs: dev and test are drawn from pairs that match. CSV or "
        "Parquet with url or key, and matched or verdict (true, false, match, mismatch, unsure). "
        "Repeatable, one file per judge; if judges differ, the pair is unsure. none: no file.",
    )
    suspects: str = Field(
        "",
        description="Table of clean probabilities with key and clean_prob, as pc2-baseline "
        "rank-pairs writes it: pages below --min-clean are left out, unless --matched has them as "
        "matching. Pages that are not in the table are kept. none: no file.",
    )
    min_clean: float = Field(
        0.5, ge=0, le=1, description="Minimum clean probability of a pair, with --suspects."
    )
    licensed: str = Field(
        "",
        description="List of sites with host, licence, repository, commit (CSV or Parquet, such as "
        "sites.csv of pinned make): only pages of sites with a licence of Apache, MIT, BSD, CC-BY "
        "or CC0 are kept, so that the complete release may be published. none: no file.",
    )
    never: str = Field(
        "",
        description="Text file of hosts to leave out, one per line, with all hosts below them, as "
        "for crawl --never; for example hosts whose owners ask for it. none: no file.",
    )
    languages: str = Field(
        "all",
        pattern=r"^all$|^[a-z]{2,3}(,[a-z]{2,3})*$",
        description="Languages to keep, such as zh,en (und: undecided), or all.",
    )
    drop: str = Field(
        "blank,personal_data",
        description="Flags whose pages are left out, such as blank,error_page, or none. "
        f"Flags: {', '.join(FLAGS)}. consent_wall reads the elements of all pages.",
    )
    duplicate_captions: Literal["keep", "exact"] = Field(
        "keep", description="Captions that are equal except for case: keep all, or one (exact)."
    )
    npy: bool = Field(False, description="Also write {split}_ims.npy for the authors' loader.")
    name: str = Field("Rebuilt Noise of Web", min_length=1, description="Name of the dataset.")
    licence: str = Field(
        "other",
        pattern=r"^[a-z0-9][a-z0-9.+-]*$",
        description="Licence id of the Hugging Face hub in lower case (cc-by-nc-4.0, other …).",
    )
    contact: str = Field("", description="Contact for removal requests, shown on the card.")

    @field_validator("matched", mode="before")
    @classmethod
    def _as_list(cls, matched: Any) -> Any:
        names = [matched] if isinstance(matched, str | Path) else matched
        return [*map(cls._as_text, names)] if isinstance(names, list) else names

    @field_validator("test_sites", "licensed", "suspects", "never", mode="before")
    @classmethod
    def _as_text(cls, path: Any) -> Any:
        return str(path) if isinstance(path, Path) else path

    @field_validator("drop")
    @classmethod
    def _are_flags(cls, drop: str) -> str:
        if _names(drop, "none") - set(FLAGS):
            raise ValueError(f"none, or flags among {', '.join(FLAGS)}")
        return drop

    @property
    def kept_languages(self) -> frozenset[str]:
        """Languages to keep (``und``: undecided); empty: all."""
        return _names(self.languages, "all")

    @property
    def dropped_flags(self) -> frozenset[str]:
        """Flags whose pages are left out."""
        return _names(self.drop, "none")


def _names(text: str, empty: str) -> frozenset[str]:
    """Split a comma-separated list; the word ``empty`` is the empty list."""
    return frozenset() if text == empty else frozenset(text.split(","))
