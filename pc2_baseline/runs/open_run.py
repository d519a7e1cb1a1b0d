"""Open trained runs, and score splits with them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int

from leaderboard.core.rounds import round_of
from now_builder.errors import ConfigError
from now_builder.formats.release import check_split
from now_builder.formats.split import Split
from pc2_baseline.data.pairs import PairSet, open_pairs
from pc2_baseline.methods import make_method
from pc2_baseline.modules.reading import with_texts_read
from pc2_baseline.modules.retrieval import ensemble
from pc2_baseline.networks.onednn_products import fast_float32
from pc2_baseline.training.checkpoint import load_checkpoint
from pc2_baseline.training.method import NETWORKS, Method
from pc2_baseline.training.run_folder import (
    BEST,
    RunRecord,
    check_reads_round,
    check_split_is_the_runs,
    locate_release,
    pick_device,
    read_run,
)


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run with its best epoch loaded; ``parameters`` is the number of its weights."""

    folder: Path
    record: RunRecord
    release: Path
    device: torch.device
    method: Method
    parameters: int

    @contextmanager
    def open(
        self, split: Split, *, whole: bool = False, from_disk: bool = False, bank: int = 0
    ) -> Iterator[PairSet]:
        """Open a split for scoring.

        ``whole`` ignores ``data.dev_images``; ``from_disk`` keeps no regions in memory, for few
        pairs of many; ``bank`` draws this many pairs at random and reads only their texts.

        Raises:
            FormatError: If the split cannot be read, or is neither the run's own nor a blind
                round of the same vocabulary.
        """
        settings = self.record.settings
        data = settings.data
        changed: dict[str, int] = {"dev_images": 0} if whole else {}
        changed |= {"memory_gb": 0, "device_gb": 0} if from_disk else {}
        data = data.model_copy(update=changed)
        with (
            fast_float32(settings.model.product_width),
            open_pairs(self.release, split, data, self.device, settings.model) as pairs,
        ):
            if round_of(self.release, split) is None:
                check_split_is_the_runs(self.folder, self.record, self.release, split, pairs)
            else:
                check_reads_round(self.folder, self.record, self.release, pairs.features)
            yield with_texts_read(draw_bank(pairs, bank) if bank else pairs, settings)

    def bank(self, split: Split) -> PairSet | None:
        """Return ``data.bank`` training pairs for the hub correction of a split; ``None`` for 0."""
        count = self.record.settings.data.bank
        if not count:
            return None
        at_training = round_of(self.release, split) is not None
        run = replace(self, release=self.record.release.path) if at_training else self
        with run.open("train", from_disk=True, bank=count) as train:
            return train


def open_run(
    run: Path | str,
    *,
    release: Path | str | None = None,
    device: str | None = None,
    bank: int | None = None,
) -> OpenRun:
    """Open a trained run and load its best epoch.

    By default, the release is where it was at training, and device and ``data.bank`` are the run's.

    Raises:
        FormatError: If the run or its checkpoint cannot be read, or the release is missing.
        ConfigError: If the device does not exist.
    """
    run = Path(run)
    record = read_run(run)
    if bank is not None:
        data = record.settings.data.model_copy(update={"bank": bank})
        settings = record.settings.model_copy(update={"data": data})
        record = record.model_copy(update={"settings": settings})
    folder = locate_release(run, record, Path(release) if release else None)
    where = pick_device(device or record.settings.train.device)
    method = make_method(record.settings, record.release.sizes, where)
    tensors = load_checkpoint(method, run / BEST, {NETWORKS})
    parameters = sum(value.numel() for value in tensors[NETWORKS].values())
    return OpenRun(run, record, folder, where, method, parameters)


def open_runs(
    runs: Path | str | Sequence[Path | str],
    *,
    release: Path | str | None = None,
    device: str | None = None,
    bank: int | None = None,
) -> list[OpenRun]:
    """Open one run, or several on the same data to average."""
    folders = [Path(run) for run in ([runs] if isinstance(runs, Path | str) else runs)]
    if not folders:
        raise ConfigError("no run, expected at least one")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ConfigError(f"{', '.join(map(str, folders))}: a run is repeated")
    first, *others = [
        open_run(folder, release=release, device=device, bank=bank) for folder in folders
    ]
    expected = _trained_on(first.record)
    for other in others:
        for name, value in _trained_on(other.record).items():
            if value != expected[name]:
                problem = f"{name} {value}, but {first.folder} has {expected[name]}"
                raise ConfigError(f"{other.folder}: {problem}; expected the same data")
    return [first, *others]


def _trained_on(record: RunRecord) -> dict[str, str]:
    release, names = record.release, ("name", "tokenizer", "dev_images")
    prints = ", ".join(f"{split} {value[:12]}" for split, value in release.fingerprints.items())
    return {
        **{f"data.{name}": str(getattr(record.settings.data, name)) for name in names},
        "a release of fingerprints": prints,
        "the noise file": release.noise.sha256[:12] if release.noise else "none",
    }


def mean_similarity(
    opened: Sequence[OpenRun], split: Split, *, whole: bool = False, fold: int | None = None
) -> tuple[Float[np.ndarray, "images captions"], Int[np.ndarray, " captions"]]:
    """Score a split with one run, or average the similarities of several.

    Each run counts once, however many networks it has; hubs are corrected by its ``data.bank``.

    Returns:
        The matrix, see :func:`~pc2_baseline.modules.retrieval.ensemble`, and the row of each
        caption's image.
    """
    matrices = []
    for run in opened:
        with run.open(split, whole=whole) as pairs:
            images = pairs.images
            if fold is not None and images % fold:
                raise ConfigError(f"--fold {fold}: {split} has {images} images, no multiple of it")
            bank, score = run.bank(split), run.method.similarity
            matrices.append(
                without_hubs(*map(score, with_bank(pairs, bank))) if bank else score(pairs)
            )
            owner = pairs.image_of
    return ensemble(matrices), owner


def similarity(
    run: Path | str | Sequence[Path | str],
    split: str = "test",
    *,
    release: Path | str | None = None,
    device: str | None = None,
    bank: int | None = None,
) -> Float[np.ndarray, "images captions"]:
    """Score every image of a split against every caption with a run's best epoch.

    Args:
        run: The run folder, or several: their similarities are averaged.
        split: ``train``, ``dev`` or ``test``.
        release: Folder of the release; default: where it was at training.
        device: Device, such as ``cpu``; default: the run's setting.
        bank: Number of training pairs for the hub correction; default: ``data.bank`` of the run.

    Raises:
        FormatError: If the run, the release or the checkpoint cannot be read, or the release is
            another one than at training.
        ConfigError: If several runs are not of the same data.
    """
    name = check_split(split)
    opened = open_runs(run, release=release, device=device, bank=bank)
    return mean_similarity(opened, name, whole=True)[0]


NEAREST = 10
"""Number of averaged neighbours in the bank; half of a bank with fewer than 20."""


def draw_bank(split: PairSet, pairs: int) -> PairSet:
    """Draw this many pairs of a split, each with its image; all if it has no more."""
    rows = np.random.default_rng(0).permutation(len(split))[:pairs]
    images, words = split.image_of[rows], split.words
    if words is not None:
        every = words
        words = replace(words, read_texts=lambda: [every.texts[row] for row in rows])
    regions = split.image_batch(images).cpu().numpy()
    captions = [split.captions[row] for row in rows]
    image_of = np.arange(len(rows))
    return replace(
        split, regions=regions, captions=captions, image_of=image_of, words=words, matched=None
    )


def with_bank(split: PairSet, bank: PairSet) -> tuple[PairSet, PairSet, PairSet]:
    """Return the pair sets to score for :func:`without_hubs`.

    These are the split, its images with the bank's captions, and the bank's images with its
    captions.
    """
    return split, _paired(split, bank), _paired(bank, split)


def without_hubs(
    matrix: Float[np.ndarray, "images captions"],
    to_bank: Float[np.ndarray, "images bank"],
    from_bank: Float[np.ndarray, "bank captions"],
) -> Float[np.ndarray, "images captions"]:
    r"""Correct similarities for hubs: images and captions that are near to many of a bank.

    .. math:: s_{ij} - \tfrac12 r_i - \tfrac12 r_j

    with the mean similarity :math:`r_i` of an image to its nearest captions in the bank, and
    :math:`r_j` of a caption to its nearest images there. The bank has other pairs, so that the
    answer to a query does not depend on the other queries.

    Source:
        CSLS (Conneau et al., ICLR 2018); neighbours from a bank of training queries as in QB-Norm
        (Bogolin et al., CVPR 2022).
    """
    corrected: np.ndarray = matrix - (nearness(to_bank, 1)[:, None] + nearness(from_bank, 0)) / 2
    return corrected


def nearness(
    matrix: Float[np.ndarray, "images captions"], axis: Literal[0, 1]
) -> Float[np.ndarray, " _"]:
    """Return the mean of the largest similarities along the axis of a bank."""
    nearest = min(NEAREST, -(-matrix.shape[axis] // 2))
    largest = np.partition(matrix, -nearest, axis).take(range(-nearest, 0), axis)
    return np.asarray(largest.mean(axis))


def _paired(images: PairSet, captions: PairSet) -> PairSet:
    """Return the images of one set with the captions of another."""
    image_of = np.zeros(len(captions), dtype=np.int64)  # not used
    return replace(images, captions=captions.captions, image_of=image_of, matched=None)
