"""Reproductions: score an independent run of an entry, compare and file it."""

import math
from dataclasses import dataclass
from pathlib import Path

from leaderboard.core.uncertainty import Comparison
from leaderboard.scoring.evaluate import score
from leaderboard.scoring.pairing import compare_results
from leaderboard.store.entries import (
    Reproduction,
    add_reproduction,
    find_result,
    now,
    read_record,
    read_result,
)
from leaderboard.submission.archive import refusing_fields
from now_builder.errors import FormatError
from now_builder.formats.io import sha256_of


@dataclass(frozen=True, slots=True)
class Claim:
    """Name, commit and run folder of an independent run; its ``run.toml`` is recorded by hash."""

    by: str
    commit: str | None = None
    run: Path | None = None


def reproduce(
    store: Path,
    name: str,
    submission: Path,
    release: Path,
    claim: Claim,
) -> tuple[Reproduction, Comparison]:
    """Score the submission of a second run, compare it with the entry and file it, once.

    The record has the run's result. Merged by the store's keepers, it makes the entry reproduced,
    or contradicted if the interval of the difference lies below zero.

    Raises:
        SubmissionError: If the name or the commit is none; before anything is scored.
        FormatError: If the file is the entry's own, or the run is filed with another rSum.
        ConfigError: If track, split or release differ.
    """
    path = find_result(store, name)
    entry = read_result(path)
    settings = None if claim.run is None else claim.run / "run.toml"
    if settings is not None and not settings.is_file():
        raise FormatError(settings, "no such file, expected the resolved settings of the run")
    with refusing_fields("reproduction", Reproduction, {}):
        claimed = Reproduction(
            name=name,
            by=claim.by,
            reproduced_at=now(),
            rsum=entry.rsum,
            payload_sha256=entry.payload_sha256,
            code_commit=claim.commit,
            config_sha256=None if settings is None else sha256_of(settings),
        )
    again = score(submission, release)
    if again.payload_sha256 == entry.payload_sha256:
        raise FormatError(submission, f"is the very file of {name}, expected that of another run")
    compared = compare_results(again, entry)
    figures = {
        "rsum": again.rsum,
        "payload_sha256": again.payload_sha256,
        "result": again,
        "difference": (compared.low, compared.high),
    }
    reproduction = claimed.model_copy(update=figures)
    filed = add_reproduction(store, reproduction)
    known = read_record(filed, Reproduction)
    if not math.isclose(known.rsum, again.rsum):
        raise FormatError(filed, f"rSum {known.rsum}, expected {again.rsum}, that of this run")
    if (known.result, known.difference) != (again, reproduction.difference):
        raise FormatError(filed, "another result or difference, expected those of this run")
    return known, compared
