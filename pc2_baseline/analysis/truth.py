"""Quality of a run's divisions, measured against a truth file."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float
from safetensors import SafetensorError
from safetensors.numpy import load_file

from now_builder.errors import ConfigError, FormatError, TrainingError
from now_builder.formats.io import sha256_of
from now_builder.formats.noise import matched as pairs_matched
from now_builder.formats.noise import read_noise
from now_builder.formats.tables import read_frame
from now_builder.formats.verdicts import Verdict, read_named_rows
from pc2_baseline.analysis.counting import count_signs_of
from pc2_baseline.data.readers import make_reader
from pc2_baseline.modules.coteaching import DIVISIONS, TAUGHT
from pc2_baseline.modules.division import THRESHOLD
from pc2_baseline.modules.learner import select_prefix
from pc2_baseline.training.checkpoint import read_state
from pc2_baseline.training.run_folder import BEST, RunRecord

STATISTICS = ("loss", "oscillation")
"""Statistics of the pairs to compare with the truth, if a method keeps them."""


@dataclass(frozen=True, slots=True)
class Truth:
    """Whether each pair of a split is matched, and whether that is known (if not: false)."""

    matched: Bool[np.ndarray, " pairs"]
    known: Bool[np.ndarray, " pairs"]

    @property
    def has_both(self) -> bool:
        """Whether some known pairs match, and others do not."""
        return 0 < int(self.matched.sum()) < int(self.known.sum())

    def without_taught(self, division: Mapping[str, np.ndarray]) -> "Truth":
        """Return the truth without the pairs whose labels the method was given."""
        taught = np.asarray(division.get(TAUGHT, np.zeros(len(self.known))), dtype=bool)
        return Truth(self.matched & ~taught, self.known & ~taught)

    def matched_or_none(self, row: int) -> bool | None:
        """Return whether a pair is matched; ``None`` if unknown."""
        return bool(self.matched[row]) if self.known[row] else None


@dataclass(frozen=True, slots=True)
class DivisionQuality:
    """One epoch's division against the truth.

    Attributes:
        epoch: Number of the epoch, from 0.
        auroc: AUROC of the mean clean probability of the peers.
        auroc_by_statistic: AUROC of each statistic that the method keeps (low means clean),
            averaged over the peers.
        clean: Number of known pairs that are called clean, by the shared division of all peers or
            by the mean probability.
        clean_matched: Number of them that are matched.
        precision: Share of the clean pairs that are matched; ``None`` if none is clean.
        recall: Share of the matched pairs that are clean.
    """

    epoch: int
    auroc: float
    auroc_by_statistic: dict[str, float]
    clean: int
    clean_matched: int
    precision: float | None
    recall: float


@dataclass(frozen=True, slots=True)
class Counted:
    """AUROC of counting and of other scores, on known pairs of a release that names sites.

    Attributes:
        auroc: AUROC by name of :data:`~pc2_baseline.analysis.counting.REFERENCES` or score.
        once: Number of known pairs whose caption stands once on its site.
        once_mismatched: Number of them that do not match.
        once_auroc: AUROC on these pairs by name, the division's as ``clean_prob``; empty if all or
            none of them match.
    """

    auroc: dict[str, float]
    once: int
    once_mismatched: int
    once_auroc: dict[str, float]


@dataclass(frozen=True, slots=True)
class DivisionReport:
    """Output of ``pc2-baseline division``; ``counted`` is ``None`` for data sets without sites."""

    pairs: int
    known: int
    matched: int
    best: DivisionQuality
    epochs: list[DivisionQuality]
    counted: Counted | None


def report(
    run: Path, record: RunRecord, release: Path, truth: Path | None, ranked: Path | None = None
) -> DivisionReport:
    """Compare every epoch's division with the truth.

    Args:
        run: Folder of the run.
        record: Its settings.
        release: Release that it was trained on.
        truth: File for :func:`read_truth`; default: the run's ``data.truth`` or noise file.
        ranked: Table of ``rank-pairs``, whose scores are compared with the same truth.

    Raises:
        FormatError: If a file cannot be used, or all known pairs match, or none.
        ConfigError: If there is neither a truth file nor a noise file, or both ``ranked`` and a
            noise file, which ``rank-pairs`` does not read.
        TrainingError: If the method makes no divisions, or was given the truth of all pairs that
            match, or of all that do not.
    """
    labels = find_truth(record, release, truth)
    if labels is None:
        problem = "the run has neither data.truth nor a noise file that moves captions"
        raise ConfigError(f"--truth: {problem}; expected a truth file")
    files = sorted((run / DIVISIONS).glob(f"{'[0-9]' * 5}.safetensors"))
    if not files:
        raise TrainingError(f"{run}: the method {record.settings.method.name} makes no divisions")
    pairs = len(labels.known)
    labels = labels.without_taught(read_division(files[0], pairs))
    known, matched = int(labels.known.sum()), int(labels.matched.sum())
    if not labels.has_both:
        raise TrainingError(
            f"{run}: {matched} of the {known} known pairs that the method did not train on as such "
            "are matched; an AUROC needs both kinds"
        )
    best, above = read_state(run / BEST).best_epoch, record.settings.division_threshold
    by_epoch = {int(file.stem): file for file in files}
    if best not in by_epoch:
        raise FormatError(run / DIVISIONS, f"no division of the best epoch, {best}")
    epochs = {epoch: quality(epoch, read_division(file, pairs), labels, above)
              for epoch, file in by_epoch.items()}  # fmt: skip
    clean_prob = read_division(by_epoch[best], pairs)["clean_prob"]
    counted = _count(record, release, labels, clean_prob, ranked)
    every = [*epochs.values()]
    return DivisionReport(record.release.pairs, known, matched, epochs[best], every, counted)


def _count(
    record: RunRecord,
    release: Path,
    truth: Truth,
    clean_prob: Float[np.ndarray, " pairs"],
    ranked: Path | None,
) -> Counted | None:
    """Compare counting, and the scores of ``rank-pairs``, with a truth; ``None`` without sites."""
    image_of, reader = None, make_reader(release, record.settings.data)
    if (path := record.settings.data.noise_file) is not None:
        image_of = read_noise(path, *reader.count_train())
    counts = count_signs_of(release, len(truth.known), image_of)
    if counts is None:
        return None
    scores, once = counts
    if ranked is not None:
        if path is not None:
            raise ConfigError(f"{ranked}: rank-pairs has not read the noise file of this run")
        table = read_frame(ranked).set_index("key")
        keys = reader.pair_names(len(truth.known))["key"]
        if absent := {"clean_prob", "lemon"} - {*table} or {*keys} - {*table.index}:
            raise FormatError(ranked, f"no {min(absent)}; rank the pairs of {release} again")
        table = table.loc[keys]
        clean, lemon = (table[name].to_numpy(np.float64) for name in ("clean_prob", "lemon"))
        scores |= {"rank_pairs": clean, "lemon": -lemon}
    alone = Truth(truth.matched & once, truth.known & once)
    of_once = scores | {"clean_prob": clean_prob} if alone.has_both else {}
    return Counted(
        {name: _auroc(truth, score) for name, score in scores.items()},
        int(alone.known.sum()),
        int((alone.known & ~alone.matched).sum()),
        {name: _auroc(alone, score) for name, score in of_once.items()},
    )


def _auroc(truth: Truth, score: Float[np.ndarray, " pairs"]) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(truth.matched[truth.known], score[truth.known]))


def find_truth(record: RunRecord, release: Path, truth: Path | None) -> Truth | None:
    """Read the truth of a run's training pairs; see :func:`truth_of`."""
    data = record.settings.data
    path, unmoved = data.noise_file, None
    if path is not None and record.release.noise is not None:
        captions, images = make_reader(release, data).count_train()
        unmoved = pairs_matched(read_noise(path, captions, images), images)
        if sha256_of(path) != record.release.noise.sha256:
            raise FormatError(path, "another content than at training")
    return truth_of(record, release, truth or data.truth, unmoved)


def truth_of(
    record: RunRecord,
    release: Path,
    truth: Path | None,
    unmoved: Bool[np.ndarray, " pairs"] | None,
    *,
    both: bool = True,
) -> Truth | None:
    """Join a truth file with ``unmoved``: whether a noise file left each caption its image.

    Without a truth file, return ``None`` unless the noise file has pairs of both kinds. See
    :func:`read_truth` for ``both``.
    """
    if truth is not None:
        names = make_reader(release, record.settings.data).pair_names(record.release.pairs)
        return read_truth(truth, names, unmoved, both=both)
    if unmoved is None or unmoved.all() or not unmoved.any():
        return None
    return Truth(unmoved, np.ones(len(unmoved), dtype=bool))


def read_truth(
    path: Path,
    names: dict[str, list[str]],
    unmoved: Bool[np.ndarray, " pairs"] | None = None,
    *,
    both: bool = True,
) -> Truth:
    """Read which training pairs are matched.

    A caption that a noise file gave another image is mismatched, whatever the truth of its page.

    Args:
        path: Table for :func:`read_named_rows`, such as ``now-builder audit`` writes; pairs that
            are unsure, or have two verdicts, are not known.
        names: Names of the pairs by column.
        unmoved: Whether each caption has its own image; ``None``: all have.
        both: Whether pairs of both kinds must be known, as an AUROC requires.
    """
    rows: dict[str, dict[str, list[int]]] = {column: defaultdict(list) for column in names}
    for column, cells in names.items():
        for row, cell in enumerate(cells):
            rows[column][cell].append(row)
    verdicts: dict[int, Verdict] = {}
    for row, verdict, _ in read_named_rows(path, rows, "the training pairs"):
        verdicts[row] = verdict if verdicts.get(row, verdict) == verdict else "unsure"
    pairs = range(max(map(len, names.values())))
    is_known = np.array([verdicts.get(row, "unsure") != "unsure" for row in pairs])
    matched = np.array([verdicts.get(row) == "match" for row in pairs])
    if unmoved is not None:
        is_known, matched = is_known | ~unmoved, matched & unmoved
    truth, decided = Truth(matched, is_known), int(is_known.sum())
    if not decided or (both and not truth.has_both):
        which = "none" if not decided else "all matched" if matched.any() else "all mismatched"
        problem = f"{decided} training pairs known ({which}), expected both kinds"
        raise FormatError(path, problem)
    return truth


def read_division(file: Path, pairs: int) -> dict[str, np.ndarray]:
    """Read an epoch's division: arrays by name."""
    try:
        division: dict[str, np.ndarray] = load_file(file)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise FormatError(file, f"not a readable tensor file ({error!s:.200})") from None
    if "clean_prob" not in division:
        raise FormatError(file, "no tensor clean_prob")
    for name, values in division.items():
        used = name.rpartition(".")[2] in {"clean_prob", *STATISTICS, "is_clean", TAUGHT}
        if used and (values.shape != (pairs,) or not np.isfinite(values).all()):
            problem = f"{name!r:.60} is {values.dtype} {values.shape}"
            raise FormatError(file, f"{problem}, expected {pairs} finite numbers")
    return division


def by_peer(division: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """Group an epoch's statistics by peer: ``peer.name``, or plain names as the peer ``""``."""
    peers = sorted({name.partition(".")[0] for name in division if "." in name})
    if not peers:
        return {"": dict(division)}
    return {peer: select_prefix(division, peer) for peer in peers}


def quality(
    epoch: int, division: Mapping[str, np.ndarray], truth: Truth, threshold: float = THRESHOLD
) -> DivisionQuality:
    """Compare one epoch's division with a truth that has pairs of both kinds.

    Without a division that all peers share, pairs whose mean clean probability is above the
    threshold are clean.
    """
    clean_prob = division["clean_prob"]
    is_clean = np.asarray(division.get("is_clean", clean_prob > threshold), dtype=bool)
    peers = by_peer(division).values()
    by_statistic = {
        name: float(np.mean([_auroc(truth, -peer[name]) for peer in peers]))
        for name in STATISTICS
        if all(name in peer for peer in peers)
    }
    auroc = _auroc(truth, clean_prob)
    called, both = int((is_clean & truth.known).sum()), int((is_clean & truth.matched).sum())
    precision = both / called if called else None
    recall = both / int(truth.matched.sum())
    return DivisionQuality(epoch, auroc, by_statistic, called, both, precision, recall)


def in_words(report: DivisionReport, *, every: bool) -> str:
    """Write a report for the terminal, on request with a line for every epoch."""
    mismatched, counted = report.known - report.matched, report.counted
    pairs = f"known pairs: {report.known} of {report.pairs}"
    lines = [f"{pairs}, {report.matched} matched, {mismatched} not"]
    lines += [_line("epoch", quality) for quality in report.epochs if every]
    lines.append(_line("best epoch", report.best))
    if counted is not None:
        lines.append(f"AUROC of counting alone: {_figures(counted.auroc)}")
        once = f"{counted.once} known, {counted.once_mismatched} mismatched"
        auroc = _figures(counted.once_auroc) or "undefined"
        lines.append(f"captions that stand once on their site: {once}; AUROC: {auroc}")
    return "\n".join(lines)


def _figures(by_name: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in by_name.items())


def _line(name: str, quality: DivisionQuality) -> str:
    return (
        f"{name} {quality.epoch + 1}: AUROC of the clean probability {quality.auroc:.3f} "
        f"(by statistic: {_figures(quality.auroc_by_statistic)}); {quality.clean} called clean, "
        f"{quality.clean_matched} of them matched"
    )
