"""The readers of what trainings leave: runs and their divisions, checkpoints, weights."""

import shutil
from pathlib import Path

import torch
from kinds import Kinds
from safetensors.torch import save_file

from now_builder.detect.model.clip_resnet import ModifiedResNet, load_clip
from now_builder.detect.training.checkpoints import (
    checkpoint_path,
    load_checkpoint,
    save_checkpoint,
)
from now_builder.formats.pair_statistics import read_clean_prob
from now_builder.formats.release import read_manifest
from pc2_baseline.analysis.truth import report
from pc2_baseline.config import Plan, read_settings
from pc2_baseline.data.planted import plant
from pc2_baseline.training.checkpoint import (
    CheckpointState,
    EpochRecord,
    copy_checkpoint,
    read_tensors,
    write_checkpoint,
)
from pc2_baseline.training.run_folder import ReleaseRecord, RunRecord, read_run, start_run

_PAIRS = 8
_PLAN = Plan(train=_PAIRS, dev=2, test=2, topics=2, details=0, vocabulary=0)
_WEIGHTS = "detector.safetensors"
_CHECKPOINT = checkpoint_path(Path(_WEIGHTS)).name
_TOWER = ModifiedResNet((1, 1, 1, 1), width=2, outputs=4, side=1)


def _write_all(folder: Path) -> None:
    release, run = plant(folder / "release", _PLAN), folder / "run"
    settings = read_settings("contrastive", ["data.tokenizer=jieba"])
    prints = read_manifest(release).fingerprints
    told = {split: tracks["jieba"] for split, tracks in prints.items()}
    data = ReleaseRecord(
        path=release, fingerprints=told, pairs=_PAIRS, features=768, vocabulary=6,
        vocabulary_sha256="0" * 64,
    )  # fmt: skip
    start_run(run, RunRecord(release=data, settings=settings), force=False)
    first = EpochRecord(epoch=0, seconds=1.0, dev={}, figures={})
    state = CheckpointState(epoch=0, best_epoch=0, best_rsum=1.0, history=[first])
    write_checkpoint(run / "last", state, {"networks": {"weight": torch.ones(2, 3)}})
    copy_checkpoint(run / "last", run / "best", set())
    (run / "divisions").mkdir()
    halves = {"clean_prob": torch.linspace(0, 1, _PAIRS), "loss": torch.ones(_PAIRS)}
    save_file(halves, run / "divisions" / "00000.safetensors")
    shutil.copytree(run, folder / "believed")  # one reader's refusal would hide the other's fault
    save_checkpoint(folder / _WEIGHTS, {"step": 3, "model": {"a": torch.ones(2)}}, {"a": 1})
    torch.save({"state_dict": _TOWER.state_dict()}, folder / "clip.pt")
    save_file(_TOWER.state_dict(), folder / "clip.safetensors")


def _read_run(folder: Path) -> None:
    run, release = folder / "run", folder / "release"
    report(run, read_run(run), release, release / "truth.csv")


def _believe(folder: Path) -> None:
    read_clean_prob(folder / "believed", folder / "release")


READER = Kinds(
    _write_all,
    {
        _CHECKPOINT: lambda path: load_checkpoint(path.with_name(_WEIGHTS), {"a": 1}),
        "clip.pt": lambda path: load_clip(_TOWER, str(path)),
        "clip.safetensors": lambda path: load_clip(_TOWER, str(path)),
        "run/last/state.json": lambda path: read_tensors(path.parent),
        "run/last/networks.00000.safetensors": lambda path: read_tensors(path.parent),
    },
    {
        f"{folder}/{name}": reader
        for folder, reader in {"run": _read_run, "believed": _believe}.items()
        for name in ("run.toml", "best/state.json", "divisions/00000.safetensors")
    },
    longest=2**17,
)
