"""Learns: PC2 and the methods it is compared with.

What a user imports, here on a release of random pages::

    from pc2_baseline import Plan, load_run, plant, predict, read_settings, similarity, train

    release = plant("release", Plan(train=32, dev=8, test=8))
    small = ["model.embed_dim=16", "model.similarity_dim=16", "train.warmup_epochs=1"]
    train(release, "run", read_settings("sgr", [*small, "train.epochs=1"]))
    matrix = similarity("run", "test")  # (images, captions), float32
    predict("run", "test", "ours.zip")  # the same as a submission to the board

    run = load_run("run")  # to score several splits, or to look at the networks
    with run.open("dev") as pairs:
        matrix = run.method.similarity(pairs)

Nothing is imported before it is used, so that ``import pc2_baseline`` takes no time.
"""

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pc2_baseline.config import Plan, Settings, ZeroShotSettings, read_settings
    from pc2_baseline.data.planted import plant
    from pc2_baseline.data.torch_dataset import ReleaseDataset
    from pc2_baseline.runs.evaluate import evaluate
    from pc2_baseline.runs.open_run import open_run as load_run
    from pc2_baseline.runs.open_run import similarity
    from pc2_baseline.runs.predict import predict
    from pc2_baseline.runs.train import train
    from pc2_baseline.runs.zero_shot import zero_shot

__all__ = [
    "Plan",
    "ReleaseDataset",
    "Settings",
    "ZeroShotSettings",
    "evaluate",
    "load_run",
    "plant",
    "predict",
    "read_settings",
    "similarity",
    "train",
    "zero_shot",
]

_FROM = {
    "Plan": "config:Plan",
    "ReleaseDataset": "data.torch_dataset:ReleaseDataset",
    "Settings": "config:Settings",
    "ZeroShotSettings": "config:ZeroShotSettings",
    "evaluate": "runs.evaluate:evaluate",
    "load_run": "runs.open_run:open_run",
    "plant": "data.planted:plant",
    "predict": "runs.predict:predict",
    "read_settings": "config:read_settings",
    "similarity": "runs.open_run:similarity",
    "train": "runs.train:train",
    "zero_shot": "runs.zero_shot:zero_shot",
}


def __getattr__(name: str) -> Any:
    if name not in _FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return resolve_name(f"{__name__}.{_FROM[name]}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
