"""Statistics of audits: the mismatch, agreement between judges, and agreement with a run."""

import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from now_builder.errors import FormatError
from now_builder.formats.pair_statistics import read_clean_prob
from now_builder.formats.release import is_ours, read_manifest, stream_pairs
from now_builder.formats.split import SPLITS, registrable_domain
from now_builder.formats.verdicts import VERDICTS, read_named_rows
from now_builder.program import intervals

_KINDS = 12
"""Kinds of mismatch that are printed; the JSON has all."""
_WORDS = ("note", "judge", "drawn")
"""Columns of words that a table of verdicts may lack."""


@dataclass(frozen=True, slots=True)
class Proportion:
    """The share of cases that are hits, with its 95 % interval, all in [0, 1]."""

    hits: int
    of: int
    value: float
    low: float
    high: float


def wilson(hits: int, of: int) -> Proportion | None:
    """Return a share and its interval; ``None`` if ``of`` is 0."""
    return Proportion(hits, of, hits / of, *intervals.wilson(float(hits), of)) if of else None


def clustered(hits: Any, owners: Any, weights: Any) -> Proportion | None:
    """Return a weighted share and its interval, by owner where all cases have one."""
    share, by_owner = wilson(int(hits.sum()), len(hits)), (owners != "").all()
    if share is None or (not by_owner and (weights == 1).all()):
        return share
    numbers = owners.factorize()[0] if by_owner else np.arange(len(hits))
    cases, weight = hits.to_numpy(np.float64), weights.to_numpy(np.float64)
    low, high = intervals.clustered_wilson(cases, numbers, weight)
    return replace(share, value=float(weight @ cases / weight.sum()), low=low, high=high)


def mean_interval(values: Float[np.ndarray, " values"]) -> tuple[float, float, float]:
    """Return a mean and its 95 % interval by the normal approximation: the bootstrap's limit."""
    mean = float(values.mean())
    half = intervals.Z95 * float(values.std(ddof=1)) / sqrt(len(values)) if len(values) > 1 else 0.0
    return mean, mean - half, mean + half


def kappa(first: Sequence[Hashable], second: Sequence[Hashable]) -> float | None:
    """Return the agreement of two raters beyond chance; ``None`` where chance always agrees.

    Source:
        Cohen, A Coefficient of Agreement for Nominal Scales, 1960.
    """
    total = len(first)
    if not total:
        return None
    seen = sum(one == other for one, other in zip(first, second, strict=True)) / total
    ones, others = Counter(first), Counter(second)
    by_chance = sum(ones[word] * others[word] for word in ones) / total**2
    return (seen - by_chance) / (1 - by_chance) if by_chance < 1 else None


def auroc(score: Float[np.ndarray, " cases"], matched: Bool[np.ndarray, " cases"]) -> float | None:
    """Return the area under the ROC curve, ties as half; ``None`` where all cases are of one kind.

    Source:
        Mann and Whitney, 1947; Hanley and McNeil, 1982.
    """
    good, bad = np.sort(score[matched]), score[~matched]
    if not len(good) or not len(bad):
        return None
    above = len(good) - np.searchsorted(good, bad, "right")
    tied = np.searchsorted(good, bad, "right") - np.searchsorted(good, bad, "left")
    return float((above + tied / 2).sum() / (len(good) * len(bad)))


@dataclass(frozen=True, slots=True)
class JudgeSummary:
    """The verdicts of one file: their counts, and the mismatches among those that are decided.

    Attributes:
        name: Name of the judge, with the name of the file if judges share a name.
        by_draw: Mismatches by the sample of each pair, if the file has the column ``drawn``.
        kinds: Number of mismatches with each note, the commonest first; of all judges together,
            those on whose note they agree.
    """

    name: str
    counts: dict[str, int]
    noise: Proportion | None
    by_split: dict[str, Proportion | None]
    by_draw: dict[str, Proportion | None]
    kinds: dict[str, int]


@dataclass(frozen=True, slots=True)
class Between:
    """Agreement of two judges, on the pairs that both decided."""

    first: str
    second: str
    both: int
    decided: int
    agree: Proportion | None
    kappa: float | None


@dataclass(frozen=True, slots=True)
class WithRun:
    """Agreement of a run with the judges together, on the pairs that both decided.

    A pair is called clean above a clean probability of one half; ``auroc`` is that of the
    probability, the other figures are those of the calls.
    """

    decided: int
    accuracy: Proportion | None
    called_noisy: Proportion | None
    auroc: float | None
    kappa: float | None


@dataclass(frozen=True, slots=True)
class AuditStats:
    """The statistics of some audits.

    Attributes:
        together: All judges as one: a pair on which two differ is unsure, as ``package`` reads it.
    """

    judges: list[JudgeSummary]
    together: JudgeSummary
    between: list[Between]
    with_run: WithRun | None

    def __str__(self) -> str:
        judges = [*self.judges, self.together] if len(self.judges) > 1 else self.judges
        lines = [line for judge in judges for line in _judge_lines(judge)]
        lines += [
            f"{pair.first} and {pair.second}: {pair.both} pairs seen by both, {pair.decided} "
            f"decided by both, agree {percent(pair.agree)}, kappa {figure(pair.kappa)}"
            for pair in self.between
        ]
        if self.with_run is not None:
            run = self.with_run
            lines.append(
                f"the run, on {run.decided} decided pairs: accuracy {percent(run.accuracy)}, "
                f"AUROC {figure(run.auroc)}, kappa {figure(run.kappa)}; calls noisy "
                f"{percent(run.called_noisy)}"
            )
        return "\n".join(lines)


def _judge_lines(judge: JudgeSummary) -> list[str]:
    counts = ", ".join(f"{word} {judge.counts[word]}" for word in VERDICTS)
    lines = [f"{judge.name}: {counts}; mismatched {percent(judge.noise)}"]
    for shares in (judge.by_split, judge.by_draw):
        if len(shares) > 1:
            lines += [f"  {name}: {percent(share)}" for name, share in shares.items()]
    if judge.kinds:
        common = list(judge.kinds.items())[:_KINDS]
        lines.append("  mismatched by: " + ", ".join(f"{kind} {count}" for kind, count in common))
    return lines


def percent(share: Proportion | None) -> str:
    """Write a share with its 95 % interval."""
    if share is None:
        return "undefined (none decided)"
    return (
        f"{100 * share.value:.1f} % [{100 * share.low:.1f}, {100 * share.high:.1f}] "
        f"({share.hits} of {share.of})"
    )


def figure(value: float | None) -> str:
    """Write a figure, or that it is not defined."""
    return "undefined" if value is None else f"{value:.3f}"


def audit_stats(audits: Sequence[Path], release: Path, run: Path | None) -> AuditStats:
    """Compute the statistics of audits of a release, files of verdicts of one judge each.

    An audit is a CSV made by ``audit``, or any table as
    :func:`now_builder.formats.verdicts.read_named_rows` reads it. A run is given as to
    :func:`now_builder.formats.pair_statistics.read_clean_prob`.

    Raises:
        FormatError: If a file cannot be read, or holds no verdict on a pair of the release.
    """
    files = {path: read_audit(path, release) for path in dict.fromkeys(audits)}
    judges = {path: ", ".join(sorted({*lines["judge"]} - {""})) for path, lines in files.items()}
    often = Counter(judges.values())
    named = {
        name if name and often[name] == 1 else f"{name} ({path})" if name else str(path): path
        for path, name in judges.items()
    }
    by_judge = {name: files[path] for name, path in named.items()}
    together = _one_a_pair(pd.concat(files.values()))
    return AuditStats(
        [_judge(name, lines) for name, lines in by_judge.items()],
        _judge("together", together),
        [_between(one, other, by_judge) for one, other in combinations(by_judge, 2)],
        None if run is None else _with_run(together["matched"], read_clean_prob(run, release)),
    )


def read_audit(path: Path, release: Path) -> Any:
    """Read the verdicts on pairs of a release: a row each, by key.

    Columns are ``split``, ``owner``, ``matched``, ``weight`` and :data:`_WORDS`. The owner is the
    page's registrable domain, empty unless the release is split by domain; the weight is 1 where
    the table has none.

    A line with key and URL is on a pair only if both are the pair's, as another crawl gives its
    pages the same keys.
    """
    by_domain = is_ours(release) and read_manifest(release).split.by == "domain"
    about: dict[str, tuple[str, str]] = {}
    by_key: dict[str, list[str]] = {}
    by_url: dict[str, list[str]] = {}
    for pair in stream_pairs(release):
        about[pair.key] = pair.split, registrable_domain(pair.site) if by_domain else ""
        by_key[pair.key] = [pair.key]
        by_url.setdefault(pair.url, []).append(pair.key)
    lines = [
        (key, *about[key], verdict, _weight(path, row.get("weight")),
         *(str(row.get(name) or "").strip() for name in _WORDS))
        for key, verdict, row in read_named_rows(path, {"key": by_key, "url": by_url}, str(release))
    ]  # fmt: skip
    columns = ["key", "split", "owner", "matched", "weight", *_WORDS]
    return _one_a_pair(pd.DataFrame(lines, columns=columns).set_index("key"))


def _weight(path: Path, cell: object) -> float:
    text = "" if cell is None else str(cell).strip()
    weight = float(text) if re.fullmatch(r"[\d.]+(e[+-]?\d+)?", text) else 0.0
    if not weight and text.casefold() not in {"", "nan"}:
        raise FormatError(path, f"weight is {text!r:.40}, expected a positive number")
    return weight or 1.0


def _one_a_pair(lines: Any) -> Any:
    """Merge the lines on each pair: differing verdicts become unsure, differing words empty."""
    by_key = lines.groupby(level="key", sort=False)
    merged = by_key.first()
    differs = by_key.nunique().gt(1)
    words = {name: merged[name].mask(differs[name], "") for name in _WORDS}
    return merged.assign(matched=merged["matched"].mask(differs["matched"], "unsure"), **words)


def _judge(name: str, lines: Any) -> JudgeSummary:
    counts = Counter(lines["matched"])
    wrong = lines.loc[(lines["matched"] == "mismatch") & (lines["note"] != ""), "note"]
    by_split = {split: lines[lines["split"] == split] for split in SPLITS}
    return JudgeSummary(
        name,
        {word: counts[word] for word in VERDICTS},
        _mismatched(lines),
        {split: _mismatched(part) for split, part in by_split.items() if len(part)},
        {str(draw): _mismatched(part) for draw, part in lines.groupby("drawn") if draw},
        dict(Counter(wrong.str.casefold()).most_common()),
    )


def _mismatched(lines: Any) -> Proportion | None:
    decided = lines[lines["matched"] != "unsure"]
    return clustered(decided["matched"] == "mismatch", decided["owner"], decided["weight"])


def _between(one: str, other: str, by_judge: Mapping[str, Any]) -> Between:
    both = pd.concat([by_judge[one]["matched"], by_judge[other]["matched"]], axis=1, join="inner")
    decided = both[(both != "unsure").all(axis=1)].to_numpy()
    same = int((decided[:, 0] == decided[:, 1]).sum())
    agree, beyond_chance = wilson(same, len(decided)), kappa(*decided.T.tolist())
    return Between(one, other, len(both), len(decided), agree, beyond_chance)


def _with_run(verdicts: Any, clean_prob: Mapping[str, float]) -> WithRun:
    decided = verdicts[(verdicts != "unsure") & verdicts.index.isin(clean_prob)]
    probs = np.array([clean_prob[key] for key in decided.index], np.float64)
    matched = (decided == "match").to_numpy(np.bool_)
    clean = probs > 0.5
    return WithRun(
        len(decided),
        wilson(int((clean == matched).sum()), len(decided)),
        wilson(int((~clean).sum()), len(decided)),
        auroc(probs, matched),
        kappa(clean.tolist(), matched.tolist()),
    )
