"""Paired comparison of two results."""

from leaderboard.core.uncertainty import Comparison, compare
from leaderboard.scoring.result import Result
from now_builder.errors import ConfigError


def compare_results(first: Result, second: Result) -> Comparison:
    """Compare two results on the same queries.

    Raises:
        ConfigError: If track, split or release differ, or one of them holds no ranks.
    """
    for field, one, other in (
        ("track", first.track, second.track),
        ("split", first.split, second.split),
        ("release.fingerprint", first.release.fingerprint, second.release.fingerprint),
    ):
        if one != other:
            raise ConfigError(
                f"{field}: found {one[:16]} ({first.method.name}) and {other[:16]}"
                f" ({second.method.name}), expected the same: these are other queries"
            )
    if first.ranks is None or second.ranks is None:
        raise ConfigError("ranks: none in the result of a blind round, expected those of both")
    return compare(first.ranks.read(), second.ranks.read(), first.ranks.owner())
