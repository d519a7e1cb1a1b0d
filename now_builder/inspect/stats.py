"""Statistics of audits: the mismatch, agreement between judges, and agreement with a run."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import sqrt
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.pair_statistics import read_clean_prob
from now_builder.formats.release import stream_pairs
from now_builder.formats.split import SPLITS
from now_builder.formats.verdicts import (
    COLUMNS,
    VERDICTS,
    Verdict,
    VerdictRow,
    read_judged,
    read_verdicts,
    verdict_of,
)
from now_builder.program import intervals

_KINDS = 12
"""Kinds of mismatch that are printed; the JSON has all."""


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
        name: Name of the judge, with the file's name where judges share one.
        kinds: How often each note stands at a mismatch, the commonest first; on all judges
            together, where they agree on it.
    """

    name: str
    counts: dict[str, int]
    noise: Proportion | None
    by_split: dict[str, Proportion | None]
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
    if len(judge.by_split) > 1:
        lines += [f"  {split}: {percent(share)}" for split, share in judge.by_split.items()]
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


def audit_stats(audits: Sequence[Path], release: Path | None, run: Path | None) -> AuditStats:
    """Compute the statistics of audits, files of verdicts of one judge each.

    An audit is a CSV made by ``audit``, or a table as
    :func:`now_builder.formats.verdicts.read_judged` reads it, with ``key`` or ``url``, and
    ``matched``; with a release only the latter's pairs in it count. A run is given as to
    :func:`now_builder.formats.pair_statistics.read_clean_prob`.

    Raises:
        FormatError: If a file cannot be read, or none holds a verdict.
        ConfigError: If a run folder, or a file by ``url`` beside others, is given without the
            release.
    """
    if run is not None and run.is_dir() and release is None:
        raise ConfigError("--run is a run folder: give the --release that it was trained on")
    files = {path: read_audit(path, release) for path in dict.fromkeys(audits)}
    by_url = [path for path, lines in files.items() if any(not line.key for line in lines)]
    if by_url and (run is not None or len(files) > 1):
        raise ConfigError(f"{by_url[0]}: pairs by url, no key; give the --release that was judged")
    if not any(files.values()):
        raise FormatError(audits[0], "no verdict yet")
    names = _names(files)
    by_judge = {
        names[path]: {line.key or line.url: line for line in lines} for path, lines in files.items()
    }
    together: dict[str, VerdictRow] = {}
    verdicts: dict[str, Verdict] = {}
    for lines in by_judge.values():
        for key, line in lines.items():
            known = together.get(key, line)
            together[key] = line if known.note == line.note else replace(line, note="")
        for key, verdict in _verdicts(lines).items():
            verdicts[key] = verdict if verdicts.get(key, verdict) == verdict else "unsure"
    return AuditStats(
        [_judge(name, lines, _verdicts(lines)) for name, lines in by_judge.items()],
        _judge("together", together, verdicts),
        [
            _between(first, second, _verdicts(by_judge[first]), _verdicts(by_judge[second]))
            for first, second in combinations(by_judge, 2)
        ],
        None if run is None else _with_run(verdicts, read_clean_prob(run, release or run)),
    )


def read_audit(path: Path, release: Path | None) -> list[VerdictRow]:
    """Read what ``audit`` wrote, or any table of pairs; those judged in two ways are unsure.

    A row of a table that has key and URL is on a pair of the release only if both are the pair's:
    another crawl gives its pages the same keys.
    """
    try:
        with path.open("rb") as file:
            header = file.readline(1000).decode("utf-8-sig", "replace").strip()
    except OSError:
        return read_verdicts(path)
    if header == ",".join(COLUMNS):
        return read_verdicts(path)
    table = read_judged(path)
    columns = [name for name in ("key", "url") if name in table.columns]
    if not columns or "matched" not in table.columns:
        found = [str(name) for name in table.columns]
        raise FormatError(path, f"columns {found}, expected key or url, and matched")
    own = stream_pairs(release) if release else ()
    pairs = {getattr(pair, name): pair for pair in own for name in columns}
    lines: dict[str, VerdictRow] = {}
    for number, row in enumerate(table.to_dict("records"), 2):
        line = _line_of(row, verdict_of(path, number, row["matched"]))
        if release is not None:
            pair = pairs.get(line.key or line.url)
            if pair is None or line.url not in {"", pair.url}:
                continue
            line = replace(line, key=pair.key, url=pair.url, split=pair.split)
        name = line.key or line.url
        known = lines.get(name, line)
        lines[name] = line if known.matched == line.matched else replace(line, matched="unsure")
    if len(table) and not lines:
        what = " and ".join(columns)
        raise FormatError(path, f"none of its {len(table)} lines names a {what} of {release}")
    return list(lines.values())


def _line_of(row: Mapping[str, object], verdict: Verdict) -> VerdictRow:
    """Make a line of a table's row."""
    texts = {name: "" if (cell := row.get(name)) is None else str(cell).strip() for name in COLUMNS}
    own = {name: texts[name] for name in ("key", "url", "split", "judge", "note")}
    return VerdictRow(**own, lang="", matched=verdict, at="", seconds=0.0)


def _names(files: Mapping[Path, Sequence[VerdictRow]]) -> dict[Path, str]:
    judges = {path: ", ".join(sorted({line.judge for line in files[path]})) for path in files}
    often = Counter(judges.values())
    return {
        path: name if name and often[name] == 1 else f"{name} ({path})" if name else str(path)
        for path, name in judges.items()
    }


def _verdicts(lines: Mapping[str, VerdictRow]) -> dict[str, Verdict]:
    return {key: line.matched for key, line in lines.items()}


def _judge(
    name: str, lines: Mapping[str, VerdictRow], verdicts: Mapping[str, Verdict]
) -> JudgeSummary:
    found: dict[str, Counter[Verdict]] = defaultdict(Counter)
    for key, line in lines.items():
        found[line.split][verdicts[key]] += 1
    splits = [*(split for split in SPLITS if split in found), *sorted({*found} - {*SPLITS})]
    counts = Counter(verdicts.values())
    kinds = Counter(
        line.note.casefold()
        for key, line in lines.items()
        if line.note and verdicts[key] == "mismatch"
    )
    return JudgeSummary(
        name,
        {word: counts[word] for word in VERDICTS},
        _noise_ratio(counts),
        {split: _noise_ratio(found[split]) for split in splits},
        dict(kinds.most_common()),
    )


def _noise_ratio(counts: Mapping[Verdict, int]) -> Proportion | None:
    return wilson(counts["mismatch"], counts["mismatch"] + counts["match"])


def _between(
    first: str, second: str, ones: Mapping[str, Verdict], others: Mapping[str, Verdict]
) -> Between:
    both = [key for key in ones if key in others]
    decided = [key for key in both if "unsure" not in {ones[key], others[key]}]
    same = sum(ones[key] == others[key] for key in decided)
    return Between(
        first,
        second,
        len(both),
        len(decided),
        wilson(same, len(decided)),
        kappa([ones[key] for key in decided], [others[key] for key in decided]),
    )


def _with_run(verdicts: Mapping[str, Verdict], clean_prob: Mapping[str, float]) -> WithRun:
    keys = [key for key, verdict in verdicts.items() if verdict != "unsure" and key in clean_prob]
    probs = np.array([clean_prob[key] for key in keys], np.float64)
    matched = np.array([verdicts[key] == "match" for key in keys], np.bool_)
    clean = probs > 0.5
    return WithRun(
        len(keys),
        wilson(int((clean == matched).sum()), len(keys)),
        wilson(int((~clean).sum()), len(keys)),
        auroc(probs, matched),
        kappa(clean.tolist(), matched.tolist()),
    )
