"""What a user can set in looking at a release and in judging its pairs."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from now_builder.config import Strict


class ReportSettings(Strict):
    """Settings of ``report``."""

    captures: Path = Field(description="Folder made by crawl, for the pictures.")
    run: Path | None = Field(
        None,
        description="Run folder of pc2-baseline, or CSV/Parquet with columns key and clean_prob: "
        "adds the noise that it estimates, and its least and most certain pairs.",
    )
    audit: list[Path] = Field(
        default_factory=list,
        description="CSV made by audit, or any with key or url, and matched: adds the noise that "
        "was measured. May be repeated.",
    )
    output: Path = Field(Path("report.html"), description="Page to write (.html).")
    pairs: int = Field(60, ge=1, le=2000, description="Random pairs to show.")
    extremes: int = Field(
        12, ge=1, le=200, description="Pairs to show of each kind: least clean, doubtful, cleanest."
    )
    seed: int = Field(0, description="Changes which random pairs are shown.")
    max_mb: float = Field(
        10.0, gt=0, le=500, description="Size of the page at most; pictures shrink to fit in."
    )


class AuditSettings(Strict):
    """Settings of ``audit``."""

    captures: Path = Field(description="Folder made by crawl, for the pictures.")
    output: Path = Field(
        Path("audit.csv"), description="CSV of verdicts; one that is there is gone on with."
    )
    sample: int = Field(200, ge=1, description="Random pairs to judge; raising it later adds some.")
    seed: int = Field(0, description="Changes which pairs; two judges of one sample share it.")
    split: Literal["train", "dev", "test"] | None = Field(
        None, description="Pairs of this split alone; by default of all."
    )
    judge: str = Field(
        "judge", min_length=1, max_length=80, description="Name of the person, for the CSV."
    )
    port: int = Field(0, ge=0, le=65535, description="Port on 127.0.0.1; 0 picks a free one.")
    html: Path | None = Field(
        None,
        description="Serve nothing: write a page (.html) that works by itself, keeps the verdicts "
        "in the browser, and gives them as a CSV.",
    )
    max_mb: float = Field(40.0, gt=0, le=500, description="Size of the --html page at most.")
