"""What a user can set in packaging, and what is taken where nothing is given."""

from pathlib import Path

from pydantic import Field

from now_builder.config import Strict
from now_builder.formats.split import By


class PackageSettings(Strict):
    """Settings of ``package``; what is not given is taken from the release as it was, if it was."""

    train: int | None = Field(
        None, ge=1, description="Pairs of train at most; 98000 for a new release, as published."
    )
    dev: int | None = Field(None, ge=1, description="Pairs of dev at most; 1000, as published.")
    test: int | None = Field(None, ge=1, description="Pairs of test at most; 1000, as published.")
    seed: int | None = Field(
        None, description="Must be the seed of split.toml, which is taken when this is not given."
    )
    by: By | None = Field(
        None, description="Must be what split.toml says, which is taken when this is not given."
    )
    matched: Path | None = Field(
        None,
        description="CSV or Parquet with a column url or key and a column matched (true, false, "
        "match, mismatch, unsure): dev and test are drawn from pairs that match. none: no file.",
    )
    npy: bool | None = Field(
        None, description="Also write {split}_ims.npy, which the authors' loader reads."
    )
    half: bool | None = Field(
        None, description="Store regions as float16; without the flag as they are in FEATURES."
    )
    name: str | None = Field(None, min_length=1, description="Name of the dataset, for its card.")
    licence: str | None = Field(
        None, min_length=1, description="Licence id as the hub writes it (cc-by-nc-4.0, other …)."
    )
    homepage: str | None = Field(None, description="Where the release is published, for its card.")
    contact: str | None = Field(
        None, description="Where a site's owner can ask for removal, for the card."
    )


class Settled(Strict):
    """Settings of a release with nothing left open; ``manifest.json`` keeps them.

    Attributes:
        matched: Path relative to the release folder.
    """

    train: int = 98_000
    dev: int = 1_000
    test: int = 1_000
    seed: int
    by: By
    matched: str | None = None
    npy: bool = False
    half: bool | None = None
    name: str = "Rebuilt Noise of Web"
    licence: str = "other"
    homepage: str = ""
    contact: str = ""
