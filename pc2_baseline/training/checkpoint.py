"""Checkpoints: safetensors and JSON in a folder; ``state.json`` is written last."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, FiniteFloat
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from now_builder.config import Sha256, Strict, build
from now_builder.errors import FormatError
from now_builder.formats.io import atomic_write, read_json, sha256_of, write_json
from pc2_baseline.training.method import NETWORKS, Method, State

FORMAT = "pc2-checkpoint/1"
STATE = "state.json"


class EpochRecord(Strict):
    """One line of ``log.jsonl``: recalls of dev in percent, figures of the method and the judge.

    ``dev`` is empty for a warm-up epoch that was not evaluated (``train.judge_warmup``).
    """

    epoch: int
    seconds: FiniteFloat
    dev: dict[str, FiniteFloat]
    figures: dict[str, float]

    def scalars(self, pairs: int) -> dict[str, float]:
        """Return all figures by TensorBoard tag, with the speed for this number of pairs."""
        dev = {f"dev/{name}": value for name, value in self.dev.items()}
        figures = {f"figures/{name}": value for name, value in self.figures.items()}
        return {**dev, **figures, "train/pairs_per_second": pairs / self.seconds}


class CheckpointState(Strict):
    """``state.json``: written last; it names the tensor files that belong together.

    Attributes:
        epoch: The last finished epoch.
        best_epoch: The epoch with the highest dev rSum so far, among those that may be selected.
        best_rsum: Dev rSum of that epoch.
        stopped: Whether training stopped early.
        files: Tensor file of each group.
        sha256: Hash of each of these files.
        history: One record per epoch.
    """

    format: str = FORMAT
    epoch: int
    best_epoch: int
    best_rsum: FiniteFloat
    stopped: bool = False
    files: dict[str, str] = Field(default_factory=dict)
    sha256: dict[str, Sha256] = Field(default_factory=dict)
    history: list[EpochRecord]


def write_checkpoint(
    folder: Path, state: CheckpointState, tensors: Mapping[str, Mapping[str, Tensor]]
) -> CheckpointState:
    """Write the tensors, then the state that names them, then delete files it no longer names."""
    files = {group: f"{group}.{state.epoch:05d}.safetensors" for group in tensors if tensors[group]}
    for group, name in files.items():
        with atomic_write(folder / name) as temporary:
            save_file(dict(tensors[group]), temporary)
    hashes = {group: sha256_of(folder / name) for group, name in files.items()}
    return _commit(folder, state.model_copy(update={"files": files, "sha256": hashes}))


def copy_checkpoint(source: Path, target: Path, leave_out: set[str]) -> CheckpointState:
    """Copy a checkpoint without some groups."""
    state = read_state(source)
    files = {group: name for group, name in state.files.items() if group not in leave_out}
    hashes = {group: sha256 for group, sha256 in state.sha256.items() if group in files}
    for name in files.values():
        with atomic_write(target / name) as temporary:
            try:
                os.link(source / name, temporary)
            except OSError:  # a file system without links
                shutil.copyfile(source / name, temporary)
    return _commit(target, state.model_copy(update={"files": files, "sha256": hashes}))


def _commit(folder: Path, state: CheckpointState) -> CheckpointState:
    write_json(folder / STATE, state.model_dump(mode="json"))
    remove_unnamed(folder, state)
    return state


def remove_unnamed(folder: Path, state: CheckpointState) -> None:
    """Delete the files of earlier checkpoints, which the state does not name."""
    for path in folder.iterdir():
        if path.name != STATE and path.name not in state.files.values():
            path.unlink()


def read_state(folder: Path) -> CheckpointState:
    """Read the state of a checkpoint.

    Raises:
        FormatError: If there is no checkpoint, it has another format, or its fields contradict
            each other.
        ConfigError: If a field is unknown, missing or of the wrong type.
    """
    path = folder / STATE
    tree = read_json(path, "no checkpoint; `pc2-baseline train` writes it")
    state = build(CheckpointState, tree, str(path))
    if state.format != FORMAT:
        raise FormatError(path, f"format is {state.format!r}, expected {FORMAT!r}")
    epochs = len(state.history)
    if not 0 <= state.best_epoch <= state.epoch == epochs - 1:
        fields = f"epoch {state.epoch}, best_epoch {state.best_epoch}, {epochs} epochs of history"
        raise FormatError(path, f"{fields}: contradictory")
    if NETWORKS not in state.files or any(Path(name).name != name for name in state.files.values()):
        problem = f"files is {state.files!s:.200}, expected file names, with {NETWORKS} among them"
        raise FormatError(path, problem)
    return state


def load_checkpoint(method: Method, folder: Path, groups: set[str] | None = None) -> State:
    """Load a checkpoint into a method of the same settings and sizes, and return its tensors.

    Raises:
        FormatError: If it cannot be read, or its tensors are not of this method's networks.
    """
    tensors = read_tensors(folder, groups)
    try:
        method.load_state_dict(tensors)
    except (KeyError, RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise FormatError(folder, f"not of this run's network ({reason})") from None
    return tensors


def read_tensors(folder: Path, groups: set[str] | None = None) -> State:
    """Read a checkpoint's tensors by group.

    Raises:
        FormatError: If a file is missing, damaged or changed.
    """
    tensors, state = {}, read_state(folder)
    for group, name in state.files.items():
        if groups is None or group in groups:
            try:
                tensors[group] = load_file(folder / name)
                if state.sha256.get(group) != sha256_of(folder / name):
                    raise FormatError(
                        folder / name, f"changed since it was written: sha256 differs from {STATE}"
                    )
            except (OSError, SafetensorError) as error:
                raise FormatError(folder / name, f"not a readable tensor file ({error})") from None
    return tensors
