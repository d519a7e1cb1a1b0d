"""How well a run's divisions tell matched from mismatched pairs, against a truth file."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError
from safetensors.numpy import load_file
from sklearn.metrics import roc_auc_score

from now_builder.errors import ConfigError, FormatError, TrainingError
from now_builder.formats.atomic import sha256_of
from now_builder.formats.release import is_ours, read_pairs, read_split_captions
from pc2_baseline import precomp
from pc2_baseline.checkpoint import read_state
from pc2_baseline.data import count_train
from pc2_baseline.noise import matched as pairs_matched
from pc2_baseline.noise import read_noise
from pc2_baseline.run import BEST, DIVISIONS, RunRecord


@dataclass(frozen=True, slots=True)
class DivisionQuality:
    """One epoch's division against the truth.

    Attributes:
        epoch: From 0.
        auroc: Of the clean probability, mean of the peers.
        auroc_by_statistic: Of each statistic, mean of the peers, low meaning clean.
        clean: Pairs of known truth that the mean probability calls clean.
        clean_matched: Those of them that are matched.
    """

    epoch: int
    auroc: float
    auroc_by_statistic: dict[str, float]
    clean: int
    clean_matched: int


@dataclass(frozen=True, slots=True)
class DivisionReport:
    """All that ``pc2-baseline division`` tells.

    Attributes:
        pairs: Training pairs.
        known: Pairs whose truth is in the file.
        matched: Of these.
        best: At the selected epoch.
        epochs: Every epoch.
    """

    pairs: int
    known: int
    matched: int
    best: DivisionQuality
    epochs: list[DivisionQuality]

    def as_json(self) -> dict[str, Any]:
        """Give plain values; ``auroc`` of the selected epoch stands at the top."""
        return {"auroc": self.best.auroc, **asdict(self)}


def report(run: Path, record: RunRecord, release: Path, truth: Path | None) -> DivisionReport:
    """Compare every epoch's division with the truth.

    Args:
        run: The run folder.
        record: Its ``run.toml``.
        release: Where its release lies now.
        truth: CSV or Parquet with ``url`` or ``key``, and ``matched``; default: what the run's
            noise file tells.

    Raises:
        FormatError: If the truth file cannot be used, or all known pairs are of one kind.
        ConfigError: If there is neither a truth file nor a noise file.
        TrainingError: If the method makes no divisions.
    """
    state = read_state(run / BEST)
    if truth is None:
        rows, matched = _of_noise(release, record)
    else:
        rows, matched = _joined(truth, _train_names(release, record))
    files = sorted((run / DIVISIONS).glob("*.safetensors"))
    if not files:
        raise TrainingError(f"{run}: the method {record.settings.method.name} makes no divisions")
    epochs = [_quality(file, rows, matched) for file in files]
    best = next(quality for quality in epochs if quality.epoch == state.best_epoch)
    return DivisionReport(record.release.pairs, len(rows), int(matched.sum()), best, epochs)


def _of_noise(
    release: Path, record: RunRecord
) -> tuple[Int[np.ndarray, " known"], Bool[np.ndarray, " known"]]:
    path = record.settings.data.noise_file
    if path is None or record.release.noise is None:
        raise ConfigError("--truth: the run has no noise file, so a truth file must be given")
    captions, images = count_train(release, record.settings.data)
    truth = pairs_matched(read_noise(path, captions, images), images)
    if sha256_of(path) != record.release.noise.sha256:
        raise FormatError(path, "another content than at training")
    if truth.all() or not truth.any():
        raise FormatError(path, "all pairs are of one kind, expected both")
    return np.arange(captions), truth


def _train_names(release: Path, record: RunRecord) -> dict[str, list[str]]:
    """Names of the training pairs under each column that a truth file may have."""
    if precomp.is_precomp(record.settings.data):
        return {"key": [str(row) for row in range(record.release.pairs)]}
    if is_ours(release):
        pairs = [pair for pair in read_pairs(release) if pair.split == "train"]
        pairs.sort(key=lambda pair: pair.pair_index)
        return {"key": [pair.key for pair in pairs], "url": [pair.url for pair in pairs]}
    return {"key": read_split_captions(release, "train", record.settings.data.tokenizer).keys}


def _joined(
    truth: Path, names: dict[str, list[str]]
) -> tuple[Int[np.ndarray, " known"], Bool[np.ndarray, " known"]]:
    """Find the pairs whose truth is told: their pair_index, and whether they are matched."""
    table = _read_table(truth)
    column = next((name for name in names if name in table.columns), None)
    if column is None or "matched" not in table.columns:
        raise FormatError(
            truth, f"columns {list(table.columns)}, expected {' or '.join(names)}, and matched"
        )
    table = table.dropna(subset=[column, "matched"])
    told = dict(zip(table[column].astype(str), _booleans(truth, table["matched"]), strict=True))
    rows = np.array([row for row, name in enumerate(names[column]) if name in told], dtype=np.int64)
    matched = np.array([told[names[column][row]] for row in rows], dtype=bool)
    if matched.all() or not matched.any():
        kind = "none" if not len(rows) else "all matched" if matched.all() else "all mismatched"
        raise FormatError(
            truth, f"{len(rows)} training pairs known by {column} ({kind}), expected both kinds"
        )
    return rows, matched


def _read_table(path: Path) -> pd.DataFrame:
    try:
        return pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    except FileNotFoundError:
        raise FormatError(path, "no such file") from None
    except (ValueError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise FormatError(path, f"not a readable .csv or .parquet file ({reason})") from None


def _booleans(path: Path, column: pd.Series) -> list[bool]:
    words = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
    values = [words.get(str(value).strip().lower()) for value in column]
    told = [value for value in values if value is not None]
    if len(told) < len(values):
        found = column.iloc[values.index(None)]
        raise FormatError(path, f"matched: found {found!r}, expected true or false")
    return told


def _quality(
    file: Path, rows: Int[np.ndarray, " known"], matched: Bool[np.ndarray, " known"]
) -> DivisionQuality:
    try:
        beliefs = load_file(file)
    except (OSError, SafetensorError) as error:
        raise FormatError(file, f"not a readable tensor file ({error})") from None
    clean_prob = beliefs["clean_prob"][rows]
    clean = clean_prob > 0.5
    by_statistic = {
        name: float(np.mean([_auroc(-beliefs[f"{peer}.{name}"][rows], matched) for peer in "ab"]))
        for name in ("loss", "oscillation")
    }
    return DivisionQuality(
        int(file.stem),
        _auroc(clean_prob, matched),
        by_statistic,
        int(clean.sum()),
        int((clean & matched).sum()),
    )


def _auroc(belief: Float[np.ndarray, " known"], matched: Bool[np.ndarray, " known"]) -> float:
    return float(roc_auc_score(matched, belief))


def in_words(found: DivisionReport, *, every: bool) -> str:
    """Write a report for people.

    Args:
        found: The report.
        every: One line an epoch besides.
    """
    mismatched = found.known - found.matched
    lines = [
        f"known pairs: {found.known} of {found.pairs}, {found.matched} matched, {mismatched} not",
        *([_line("epoch", quality) for quality in found.epochs] if every else []),
        _line("best epoch", found.best),
    ]
    return "\n".join(lines)


def _line(name: str, quality: DivisionQuality) -> str:
    statistics = ", ".join(
        f"{statistic} {value:.3f}" for statistic, value in quality.auroc_by_statistic.items()
    )
    return (
        f"{name} {quality.epoch + 1}: AUROC of the clean probability {quality.auroc:.3f} "
        f"(by statistic: {statistics}); {quality.clean} called clean, "
        f"{quality.clean_matched} of them matched"
    )
