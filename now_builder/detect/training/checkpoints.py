"""Checkpoints of unfinished trainings, beside the weights to be."""

import logging
import zipfile
from pathlib import Path
from typing import Any

import torch

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import replacing

_log = logging.getLogger(__name__)


def checkpoint_path(weights: Path) -> Path:
    """Return the path of the checkpoint of an unfinished training."""
    return weights.with_name(f".{weights.name}.checkpoint")


def save_checkpoint(weights: Path, state: dict[str, Any], identity: dict[str, Any]) -> None:
    """Write a checkpoint, whole or not at all, with the settings that change the outcome."""
    with replacing(checkpoint_path(weights)) as temporary:
        torch.save({**state, "identity": repr(identity)}, temporary)


def load_checkpoint(
    weights: Path, identity: dict[str, Any], device: str | torch.device = "cpu"
) -> dict[str, Any] | None:
    """Return the state that was saved; ``None`` if there is no checkpoint.

    Raises:
        ConfigError: If it is of other settings.
        FormatError: If it is torn.
    """
    path = checkpoint_path(weights)
    if not path.exists():
        return None
    try:
        zipfile.ZipFile(path).close()  # else it may be a pickle of old, which takes long to refuse
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        found = state["identity"]
    except Exception as error:  # noqa: BLE001 - a torn pickle leads to any of them
        problem = f"not a readable checkpoint ({error!s:.200}); --force starts over"
        raise FormatError(path, problem) from None
    if found != repr(identity):
        raise ConfigError(f"{path}: begun with other settings; --force starts over")
    return state


def report_resumed(command: str, step: int) -> None:
    """Log from which step a training goes on."""
    _log.info("%s: goes on from step %d", command, step)
