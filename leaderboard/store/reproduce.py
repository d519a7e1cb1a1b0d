"""Somebody else's run of an entry: scored, compared with it, and filed beside it."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from leaderboard.core.uncertainty import Comparison
from leaderboard.scoring.evaluate import score
from leaderboard.scoring.pairing import compare_results
from leaderboard.store.entries import Reproduction, add_reproduction, find_result, read_result
from now_builder.errors import FormatError
from now_builder.formats.io import sha256_of


@dataclass(frozen=True, slots=True)
class Claim:
    """What is said of a second run.

    Attributes:
        by: Who ran it.
        commit: Of the code.
        run: Its run folder; the hash of the ``run.toml`` in it is kept.
    """

    by: str
    commit: str | None = None
    run: Path | None = None


def reproduce(
    store: Path, name: str, submission: Path, release: Path, claim: Claim, at: datetime
) -> tuple[Reproduction, Comparison]:
    """Score a second run's submission, compare it with an entry and file what it came to.

    Whether the two agree is for the reader to say: both figures, and the interval of their
    difference, are kept and shown.

    Args:
        store: Where the entry is.
        name: Of the entry.
        submission: Of the second run; not the entry's own file.
        release: That both were made on.
        claim: Who ran what.
        at: When, UTC.

    Raises:
        FormatError: If there is no such entry, or the file is the entry's own.
        SubmissionError: If the submission cannot be scored.
        ConfigError: If it is of another track, split or release.
    """
    path = find_result(store, name)
    entry, again = read_result(path), score(submission, release)
    if again.payload_sha256 == entry.payload_sha256:
        raise FormatError(submission, f"is the very file of {name}, expected that of another run")
    compared = compare_results(again, entry)
    settings = None if claim.run is None else claim.run / "run.toml"
    if settings is not None and not settings.is_file():
        raise FormatError(settings, "no such file, expected the resolved settings of the run")
    reproduction = Reproduction(
        name=name,
        by=claim.by,
        reproduced_at=at,
        rsum=again.rsum,
        payload_sha256=again.payload_sha256,
        code_commit=claim.commit,
        config_sha256=None if settings is None else sha256_of(settings),
    )
    add_reproduction(store, reproduction)
    return reproduction, compared
