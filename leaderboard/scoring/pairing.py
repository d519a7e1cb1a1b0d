"""Paired comparison of two results."""

from leaderboard.core.uncertainty import Comparison, compare
from leaderboard.scoring.result import Result
from now_builder.errors import ConfigError


def compare_results(first: Result, second: Result) -> Comparison:
    """Compare two results on the same queries.

    Raises:
        ConfigError: If track, split, release or number of queries differ, or one of them holds no
            ranks, or some that no matrix has.
    """
    for field, found, expected in (
        ("track", first.track, second.track),
        ("split", first.split, second.split),
        ("release.fingerprint", first.release.fingerprint, second.release.fingerprint),
    ):
        if found != expected:
            raise ConfigError(
                f"{field}: found {found[:16]} ({first.method.name}) and {expected[:16]}"
                f" ({second.method.name}), expected the same: these are other queries"
            )
    if first.ranks is None or second.ranks is None:
        raise ConfigError("ranks: none in the result of a blind round, expected those of both")
    one, other = first.ranks, second.ranks
    for name, ranks in ((first.method.name, one), (second.method.name, other)):
        if not ranks.possible():
            raise ConfigError(
                f"ranks ({name}): found some that no matrix has, expected those of every query"
            )
    sizes = [(len(ranks.i2t.greater), len(ranks.t2i.greater)) for ranks in (one, other)]
    if sizes[0] != sizes[1]:
        raise ConfigError(f"ranks: found {sizes[1]} queries, expected as many as {sizes[0]}")
    return compare(one.read(), other.read(), one.owner())
