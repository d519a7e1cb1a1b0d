"""Settings of ``report`` and ``audit``."""

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
        "adds the mismatch that it estimates, and its least and most certain pairs.",
    )
    audit: list[Path] = Field(
        default_factory=list,
        description="CSV made by audit, or any with key or url, and matched: adds the share of "
        "mismatched pairs. May be repeated.",
    )
    output: Path = Field(Path("report.html"), description="Page to write (.html).")
    pairs: int = Field(60, ge=1, le=2000, description="Number of random pairs to show.")


class AuditSettings(Strict):
    """Settings of ``audit``."""

    captures: Path | None = Field(
        None, description="Folder made by crawl, for the pictures; not needed with --stats."
    )
    output: Path = Field(Path("audit.csv"), description="CSV of verdicts to write, or to continue.")
    from_: Path | None = Field(
        None,
        description="Table of verdicts to correct (CSV or Parquet with key or url, matched or "
        "verdict, and note or kind): its pairs are shown with these verdicts.",
    )
    suspects: Path | None = Field(
        None,
        description="Table with key and clean_prob, such as rank-pairs of pc2-baseline writes: "
        "judge the pairs with the lowest probability, these first, instead of random ones.",
    )
    once: bool = Field(
        default=False,
        description="Judge only pairs whose caption stands once on its site; with --suspects at "
        "random, likelier ones the lower the probability, and the CSV has the weight of each.",
    )
    sample: int = Field(
        200, ge=1, description="Number of pairs to judge; by default all with --from."
    )
    split: Literal["train", "dev", "test"] | None = Field(
        None, description="Split of the pairs; by default all."
    )
    judge: str = Field(
        "judge", min_length=1, max_length=80, description="Name of the person, for the CSV."
    )
