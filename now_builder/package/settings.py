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
    """Settings of ``package``; ``manifest.json`` keeps them with nothing left open.

    A setting that is not given is that of the release being replaced, if there is one: which were
    given is known by ``model_fields_set``. In the manifest, paths are relative to the release.
    """

    train: int = Field(NOW_TRAIN, ge=1, description="Maximum pairs of train.")
    dev: int = Field(NOW_DEV, ge=1, description="Maximum pairs of dev.")
    test: int = Field(NOW_TEST, ge=1, description="Maximum pairs of test.")
    seed: int | None = Field(
        None, description="Seed of the pools and of the draw from them; by default the crawl's."
    )
    by: By | None = Field(
        None,
        description="Unit that is kept together in one of train, dev, test; by default the "
        "crawl's. The card counts test pairs that were in the crawl's train pool.",
    )
    test_sites: str = Field(
        "",
        description="Text file (a host name or URL a line), or CSV/Parquet with a column site or "
        "url: these sites, with the hosts below them, are the pool of test, all others are train "
        "or dev. none: no file.",
    )
    matched: list[str] = Field(
        default_factory=list,
        description="CSV or Parquet with a column url or key and one matched or verdict (true, "
        "false, match, mismatch, unsure): dev and test are drawn from pairs that match. May be "
        "repeated, once a judge: a pair they differ on counts as unsure. none: no file.",
    )
    suspects: str = Field(
        "",
        description="Table with key and clean_prob, such as rank-pairs of pc2-baseline writes: "
        "pages below --min-clean are left out, unless --matched says that they match. Pages that "
        "it does not name stay. none: no file.",
    )
    min_clean: float = Field(
        0.5, ge=0, le=1, description="With --suspects: minimum clean probability of a pair."
    )
    licensed: str = Field(
        "",
        description="List of sites, such as sites.csv of pinned make (CSV or Parquet with host, "
        "licence, repository, commit): keep only pages whose site's licence is Apache, MIT, BSD, "
        "CC-BY or CC0, so that others may have all of the release. none: no file.",
    )
    never: str = Field(
        "",
        description="Text file of hosts, one a line, as crawl --never takes it: pages of these and "
        "of hosts below them are left out, such as those whose owners ask for it. none: no file.",
    )
    languages: str = Field(
        "all",
        pattern=r"^all$|^[a-z]{2,3}(,[a-z]{2,3})*$",
        description="Languages to keep, such as zh,en (und: undecided); all keeps all.",
    )
    drop: str = Field(
        "blank,personal_data",
        description="Flags whose pages are left out, such as blank,error_page; none drops none. "
        f"Flags: {', '.join(FLAGS)}. consent_wall takes reading the elements of all pages.",
    )
    duplicate_captions: Literal["keep", "exact"] = Field(
        "keep", description="exact: keep one of the captions equal after case folding."
    )
    npy: bool = Field(False, description="Also write {split}_ims.npy for the authors' loader.")
    name: str = Field("Rebuilt Noise of Web", min_length=1, description="Name of the dataset.")
    licence: str = Field(
        "other",
        pattern=r"^[a-z0-9][a-z0-9.+-]*$",
        description="Licence id as the hub writes it, in lower case (cc-by-nc-4.0, other …).",
    )
    contact: str = Field("", description="Address for requests of removal, for the card.")

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
        """Languages whose pages are kept (``und``: undecided); empty for all."""
        return _names(self.languages, "all")

    @property
    def dropped_flags(self) -> frozenset[str]:
        """Flags that keep a page out."""
        return _names(self.drop, "none")


def _names(text: str, empty: str) -> frozenset[str]:
    """Split a list at its commas; the word ``empty`` is the empty list."""
    return frozenset() if text == empty else frozenset(text.split(","))
