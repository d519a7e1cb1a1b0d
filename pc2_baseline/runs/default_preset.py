"""What a release decides of a training's settings: the preset, if none is named, and the track."""

from pathlib import Path

from now_builder.formats.release import read_manifest, region_attributes
from now_builder.formats.word_vectors import read_columns
from pc2_baseline.config import DEFAULT_PRESET, read_settings
from pc2_baseline.data.pairs import tracks_of
from pc2_baseline.data.precomp import is_precomp
from pc2_baseline.progress import say

SMALL_PRESET = "crossfit-pooled-demo"
FEW_PAIRS = 10_000
"""Training pairs below which the paper's method learns mismatched pairs by heart."""


def default_preset(release: Path, overrides: list[str]) -> tuple[str, list[str]]:
    """Choose a preset for a release, and the settings that make it fit.

    Data sets without a manifest, the authors' archive among them, have the paper's. Where the
    detector of a small release reads, its words are begun with.

    Args:
        release: Folder of the data set.
        overrides: ``section.key=value`` each, by the user.

    Returns:
        Its name, and overrides that begin with what the release asks for.
    """
    if not (release / "manifest.json").exists():
        return DEFAULT_PRESET, overrides
    manifest = read_manifest(release)
    if manifest.counts.get("train", 0) >= FEW_PAIRS:
        return DEFAULT_PRESET, overrides
    track = [] if "bert" in manifest.tracks else [f'data.tokenizer="{manifest.tracks[0]}"']
    reads = read_columns(region_attributes(release, "train")) is not None
    network = ['model.similarity="reading"'] if reads else []
    return SMALL_PRESET, [*track, *network, *overrides]


def with_only_track(release: Path, config: str | None, overrides: list[str]) -> list[str]:
    """Take the only track of a release that lacks the preset's, and say so.

    Args:
        release: Folder of the data set.
        config: As for :func:`~pc2_baseline.config.read_settings`.
        overrides: ``section.key=value`` each, by the user; a track among them is left as it is.

    Returns:
        The overrides, maybe with one more.
    """
    data, tracks = read_settings(config, overrides).data, tracks_of(release)
    chosen = any(override.partition("=")[0].strip() == "data.tokenizer" for override in overrides)
    if chosen or is_precomp(data) or len(tracks) != 1 or data.tokenizer in tracks:
        return overrides
    say(f"{release}: track {tracks[0]}, the only one there is, instead of {data.tokenizer}")
    return [*overrides, f'data.tokenizer="{tracks[0]}"']
