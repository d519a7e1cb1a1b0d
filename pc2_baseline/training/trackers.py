"""Experiment trackers: the figures and pictures of a run by epoch, in Trackio, W&B or MLflow."""

import secrets
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from now_builder.errors import ConfigError
from now_builder.formats.io import read_json, write_json
from now_builder.program.missing_package import install_extra
from pc2_baseline.training.checkpoint import CheckpointState
from pc2_baseline.training.method import EpochOutputs
from pc2_baseline.training.run_folder import CURVES, PICTURES, TRACK

DEFAULT_PROJECT = "noise-of-web"
_PACKAGES = {"trackio": "trackio", "wandb": "wandb", "mlflow": "mlflow-skinny"}


def check_tracker(track: str) -> None:
    """Check that the library that ``train.track`` names, if any, is installed.

    Raises:
        ConfigError: If it is not.
    """
    name = track.partition(":")[0]
    spec = find_spec(name) if name else None
    if name and (spec is None or spec.origin is None):  # wandb makes a folder of its name
        hint = f"{install_extra('track')}, or {_PACKAGES[name]}"
        raise ConfigError(f"train.track: {name} is not installed; {hint}")


class MlflowRun:
    """A run of MLflow in the shape of wandb's; pictures are its artifacts."""

    def __init__(self, project: str, name: str, own: str | None, config: dict[str, Any]) -> None:
        import mlflow

        self._mlflow = mlflow
        mlflow.set_experiment(project)
        self.id = mlflow.start_run(run_id=own, run_name=name).info.run_id
        if own is None:
            mlflow.log_params(_flat(config))

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Write figures and pictures of an epoch."""
        figures = {name: value for name, value in values.items() if isinstance(value, float)}
        self._mlflow.log_metrics(figures, step=step)
        for path in values.values():
            if isinstance(path, Path):
                self._mlflow.log_artifact(str(path), PICTURES)

    def finish(self) -> None:
        """Close the run."""
        self._mlflow.end_run()


def _flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return the leaves of a tree of settings, named as ``--set`` names them."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        own = f"{above}{name}"
        flat |= _flat(value, f"{own}.") if isinstance(value, Mapping) else {own: value}
    return flat


class TrackerCallback:
    """Write recalls, figures, speed and pictures of each epoch to a tracker.

    ``RUN/track.json`` holds the name of the run there, so that a resumed training goes on in it,
    and the next epoch to write: one that was written but never counted is not written twice.
    """

    def __init__(self, run: Path, track: str, config: dict[str, Any], pairs: int) -> None:
        self.name, _, project = track.partition(":")
        self._project = project or DEFAULT_PROJECT
        self._run, self._config, self._pairs = run, config, pairs
        self._next = 0
        self._id: str | None = None
        self._tracked: Any = None

    def on_epoch_end(self, state: CheckpointState, _: EpochOutputs) -> None:
        """Write the epoch that just ended."""
        record = state.history[-1]
        if self._tracked is None:
            self._tracked = self._open()
        if record.epoch < self._next:
            return
        scalars = record.scalars(self._pairs).items()
        values: dict[str, Any] = {name.replace("@", ""): value for name, value in scalars}
        pictures = {"division": Path(PICTURES) / f"{record.epoch:05d}.png", "curves": Path(CURVES)}
        for name, path in pictures.items():
            if (self._run / path).is_file():
                values[name] = self._picture(self._run / path)
        self._tracked.log(values, step=record.epoch)
        self._next = record.epoch + 1
        self._keep()

    def close(self) -> None:
        """Close the run; a later training may go on in it."""
        if self._tracked is not None:
            self._tracked.finish()

    def _picture(self, path: Path) -> Any:
        return path if self.name == "mlflow" else import_module(self.name).Image(str(path))

    def _open(self) -> Any:
        """Open the run at the tracker, the one before where there is one."""
        before = self._run / TRACK
        if before.is_file():
            kept = read_json(before, "no such file")
            self._id, self._next = kept["id"], kept["next"]
        if self.name == "mlflow":
            opened = MlflowRun(self._project, self._run.name, self._id, self._config)
            self._id = opened.id
            return opened
        self._id = self._id or secrets.token_hex(4)
        name = f"{self._run.name}-{self._id}"
        # trackio knows a run by its name, wandb by its id
        more = {} if self.name == "trackio" else {"id": self._id}
        return import_module(self.name).init(
            project=self._project, name=name, config=self._config, resume="allow", **more
        )

    def _keep(self) -> None:
        write_json(self._run / TRACK, {"id": self._id, "next": self._next})
