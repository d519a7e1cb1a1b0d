"""The preset of a training without ``--config``, and the track of a release that has only one."""

from pathlib import Path

from now_builder.formats.benchmarks import PRECOMP
from now_builder.formats.release import read_manifest, region_attributes
from now_builder.formats.word_vectors import read_columns
from pc2_baseline.config import DEFAULT_PRESET, read_settings
from pc2_baseline.data.readers import tracks_of
from pc2_baseline.progress import say

SMALL_PRESET = "crossfit-pooled"
"""Taken, on ``demo``, for fewer than :data:`FEW_PAIRS` training pairs."""

FEW_PAIRS = 10_000
"""Training pairs below which the paper's method learns mismatched pairs by heart."""


def default_preset(release: Path, overrides: list[str]) -> tuple[str, list[str], str | None]:
    """Return the arguments of :func:`~pc2_baseline.config.read_settings` that fit a release.

    Data sets without a manifest, such as the authors' archive, have the paper's preset. For a small
    release whose detector reads, the network begins with the words on the pages. The overrides of
    the user come last.
    """
    if not (release / "manifest.json").exists():
        return DEFAULT_PRESET, overrides, None
    manifest = read_manifest(release)
    if manifest.counts.get("train", 0) >= FEW_PAIRS:
        return DEFAULT_PRESET, overrides, None
    track = [] if "bert" in manifest.tracks else [f'data.tokenizer="{manifest.tracks[0]}"']
    reads = read_columns(region_attributes(release, "train")) is not None
    network = ['model.similarity="reading"'] if reads else []
    return SMALL_PRESET, [*track, *network, *overrides], "demo"


def with_only_track(
    release: Path, config: str | None, overrides: list[str], on: str | None = None
) -> list[str]:
    """Return the overrides, with the only track of a release that lacks the preset's; write a line.

    A track that the user sets is left as it is.
    """
    data, tracks = read_settings(config, overrides, on).data, tracks_of(release)
    chosen = any(override.partition("=")[0].strip() == "data.tokenizer" for override in overrides)
    if chosen or data.name in PRECOMP or len(tracks) != 1 or data.tokenizer in tracks:
        return overrides
    say(f"{release}: track {tracks[0]}, the only one there is, instead of {data.tokenizer}")
    return [*overrides, f'data.tokenizer="{tracks[0]}"']
