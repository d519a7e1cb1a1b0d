"""Compute the recalls of a run's best epoch on a split of any layout."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from now_builder.errors import ConfigError
from now_builder.formats.benchmarks import BENCHMARKS, FOLD
from now_builder.formats.io import atomic_write
from now_builder.formats.release import check_split
from pc2_baseline.modules.retrieval import fold_scores, scores
from pc2_baseline.runs.open_run import mean_similarity, open_runs
from pc2_baseline.training.run_folder import refuse_round


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores of a run over a whole split, and their mean over folds of ``fold`` images."""

    split: str
    images: int
    captions: int
    scores: dict[str, float]
    fold: int | None = None
    fold_scores: dict[str, float] | None = None

    def __str__(self) -> str:
        """Return a line for the terminal over the whole split, and one over the folds."""
        split = f"{self.split}, {self.images} images, {self.captions} captions"
        lines = [f"{split}: {_line(self.scores)}"]
        if self.fold is not None and self.fold_scores is not None:
            folds = f"{self.images // self.fold} folds of {self.fold} images"
            lines.append(f"mean of {folds}: {_line(self.fold_scores)}")
        return "\n".join(lines)


def evaluate(  # noqa: PLR0913 - the options of the command
    run: Path | str | Sequence[Path | str],
    split: str,
    *,
    release: Path | str | None = None,
    device_name: str | None = None,
    bank: int | None = None,
    matrix: Path | str | None = None,
    fold: int | None = None,
) -> Evaluation:
    """Score a split with the best epoch of a run, or the mean similarity of several.

    Args:
        run: The run folder, or several.
        split: ``dev`` or ``test``; for MS-COCO, ``test`` has the 5,000 images of ``testall``.
        release: Folder of the release; default: where it was at training.
        device_name: Device; default: the run's setting.
        bank: Number of training pairs for the hub correction; default: ``data.bank`` of the runs.
        matrix: File for the similarities (images × captions, float32), if any.
        fold: Number of images in a fold, to average over folds, too; default: 1,000 for
            MS-COCO's test split if its size is a multiple of that.

    Raises:
        FormatError: If the run, the release or the checkpoint cannot be read, or the release is
            another one than at training or a blind round.
        ConfigError: If the split is ``train``, the number of images is no multiple of ``fold``, or
            several runs are not of the same data.
    """
    opened = open_runs(run, release=release, device=device_name, bank=bank)
    name = check_split(split)
    if name == "train":
        raise ConfigError("--split train: expected dev or test, which no noise file has changed")
    refuse_round(opened[0].release, name)
    similarity, owner = mean_similarity(opened, name, fold=fold)
    images, captions = similarity.shape
    is_coco = opened[0].record.settings.data.name == BENCHMARKS["coco"].folder
    if fold is None and is_coco and name == "test" and not images % FOLD:
        fold = FOLD
    if matrix is not None:
        with atomic_write(Path(matrix)) as temporary, temporary.open("wb") as file:
            np.lib.format.write_array(file, similarity, allow_pickle=False)
    folds = None if fold is None else fold_scores(similarity, owner, fold)
    return Evaluation(name, images, captions, scores(similarity, owner), fold, folds)


def _line(values: dict[str, float]) -> str:
    return ", ".join(
        f"{'rSum' if name == 'rsum' else name.replace('_', ' ')} {value:.1f}"
        for name, value in values.items()
    )
