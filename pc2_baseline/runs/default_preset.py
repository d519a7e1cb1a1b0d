"""The preset of a training for which no other is named: by its release's size and features."""

from pathlib import Path

from now_builder.formats.release import read_manifest, region_attributes
from now_builder.formats.word_vectors import read_columns
from pc2_baseline.config import DEFAULT_PRESET

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
