"""Checkpoints: safetensors and JSON in a folder; ``state.json`` is written last."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from now_builder.config import Strict, build
from now_builder.errors import FormatError
from now_builder.formats.io import read_json, replacing, write_json

FORMAT = "pc2-checkpoint/1"
STATE = "state.json"


class EpochRecord(Strict):
    """One line of ``log.jsonl``: recalls of dev in percent, figures of the method and the judge.

    ``dev`` is empty for an epoch of the warm-up that was not judged (``train.judge_warmup``).
    """

    epoch: int
    seconds: float
    dev: dict[str, float]
    figures: dict[str, float]


class CheckpointState(Strict):
    """``state.json``: written last; it names the tensor files that belong together.

    Attributes:
        epoch: The last finished epoch.
        best_epoch: The epoch with the highest dev rSum so far, of those to choose from.
        best_rsum: Dev rSum of that epoch.
        stopped: Whether the training ended early because no epoch was better.
        files: Tensor file of each group.
        history: One record an epoch, from the first.
    """

    format: str = FORMAT
    epoch: int
    best_epoch: int
    best_rsum: float
    stopped: bool = False
    files: dict[str, str] = Field(default_factory=dict)
    history: list[EpochRecord]


def write_checkpoint(
    folder: Path, state: CheckpointState, tensors: Mapping[str, Mapping[str, Tensor]]
) -> CheckpointState:
    """Write the tensors, then the state that names them, then delete files it no longer names."""
    files = {group: f"{group}.{state.epoch:05d}.safetensors" for group in tensors if tensors[group]}
    for group, name in files.items():
        with replacing(folder / name) as temporary:
            save_file(dict(tensors[group]), temporary)
    return _commit(folder, state.model_copy(update={"files": files}))


def copy_checkpoint(source: Path, target: Path, leave_out: set[str]) -> CheckpointState:
    """Copy a checkpoint, all groups but those to leave out."""
    state = read_state(source)
    files = {group: name for group, name in state.files.items() if group not in leave_out}
    for name in files.values():
        with replacing(target / name) as temporary:
            try:
                os.link(source / name, temporary)
            except OSError:  # a file system without links
                shutil.copyfile(source / name, temporary)
    return _commit(target, state.model_copy(update={"files": files}))


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
        FormatError: If there is no checkpoint or it has another format.
    """
    path = folder / STATE
    tree = read_json(path, "no checkpoint; `pc2-baseline train` writes it")
    state = build(CheckpointState, tree, str(path))
    if state.format != FORMAT:
        raise FormatError(path, f"format is {state.format!r}, expected {FORMAT!r}")
    return state


def read_tensors(folder: Path, groups: set[str] | None = None) -> dict[str, dict[str, Tensor]]:
    """Read a checkpoint's tensors by group.

    Raises:
        FormatError: If a file is missing or torn.
    """
    tensors = {}
    for group, name in read_state(folder).files.items():
        if groups is None or group in groups:
            try:
                tensors[group] = load_file(folder / name)
            except (OSError, SafetensorError) as error:
                raise FormatError(folder / name, f"not a readable tensor file ({error})") from None
    return tensors
