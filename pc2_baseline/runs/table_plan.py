"""Read the rows, seeds and processes of a table from the options of the command."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field

from now_builder.config import Strict, build, nearest, read_toml
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.benchmarks import BENCHMARKS
from now_builder.formats.captions import TOKENIZERS
from now_builder.formats.release import data_folder
from pc2_baseline.config import DEFAULT_PRESET, Settings, path_of, read_settings
from pc2_baseline.data.readers import check_layout
from pc2_baseline.runs.measured_run import SPLIT

Environment = Mapping[str, str]
"""Extra environment variables for the processes of a slot, which run one at a time."""

_ROW_SETS = Path(__file__).with_name("rows")
_VISIBLE = "CUDA_VISIBLE_DEVICES"


class Row(Strict):
    """A row of a table: a name, a preset, and changed settings.

    Attributes:
        name: Title of the row, and folder of its runs.
        config: Name of a preset or path of a TOML file.
        on: Section of the preset, instead of the table's.
        set: ``section.key=value`` each, applied after the table's.
    """

    name: Annotated[str, Field(pattern=r"^[^/.\x00-\x1f][^/\x00-\x1f]*$", max_length=60)]
    config: str = DEFAULT_PRESET
    on: str | None = None
    set: list[str] = Field(default_factory=list)


class Rows(Strict):
    """A file of rows, an array of tables named ``row``."""

    row: Annotated[list[Row], Field(min_length=1)]


def read_rows(methods: Sequence[str], file: str | None = None) -> list[Row]:
    """Return a row for each preset or TOML file of a method, then those of a file of rows."""
    rows = []
    for method in methods:
        name = method if not method.endswith(".toml") else Path(method).stem
        rows.append(build(Row, {"name": name, "config": method}, f"--methods {method}"))
        path_of(method, "--methods")
    if file:
        row_sets = sorted(path.stem for path in _ROW_SETS.glob("*.toml"))
        path = _ROW_SETS / f"{file}.toml" if file in row_sets else Path(file)
        if not path.exists():
            sets = f"{', '.join(row_sets)}{nearest(file, row_sets)}"
            raise ConfigError(f"--rows {file}: neither a file nor one of {sets}")
        rows += build(Rows, read_toml(path), file).row
    names = [row.name for row in rows]
    if not names:
        raise ConfigError("--methods: none, expected one or more, or --rows")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"{twice[0]}: two rows have this name, expected different names")
    return rows


def table_rows(
    release: Path,
    rows: Sequence[Row],
    tokenizers: Sequence[str],
    overrides: Sequence[str],
    on: str | None = None,
) -> dict[tuple[str, str], Settings]:
    """Build the settings of each row on each track, by track and name.

    By default, the track is jieba, or the first in the release; data sets other than NoW have one
    track. ``on`` is the section of rows that name none.

    Raises:
        ConfigError: If a section or tokenizer does not exist, a setting is wrong or sets the
            tokenizer, or two rows are for different data sets.
        FormatError: If the release is missing.
    """

    def settings_of(row: Row, *track: str) -> Settings:
        try:
            return read_settings(row.config, [*overrides, *row.set, *track], row.on or on)
        except ConfigError as error:
            where = "" if row.name == row.config else f"row {row.name}: "
            raise ConfigError(f"{where}{error}") from None

    settings = {row.name: settings_of(row) for row in rows}
    benchmarks: dict[str, str] = {data.folder: track for track, data in BENCHMARKS.items()}
    tracks = {name: benchmarks.get(of_row.data.name) for name, of_row in settings.items()}
    if len(set(tracks.values())) > 1:
        words = ", ".join(f"{name} is for {track or 'NoW'}" for name, track in tracks.items())
        raise ConfigError(f"{words}; expected one data set")
    if track := next(iter(tracks.values())):
        if tokenizers:
            raise ConfigError(f"--tokenizers: {track} has none, expected it only for NoW")
        check_layout(release, next(iter(settings.values())).data)
        return {(track, name): of_row for name, of_row in settings.items()}
    every = [*overrides, *(one for row in rows for one in row.set)]
    if any(one.partition("=")[0].strip() == "data.tokenizer" for one in every):
        raise ConfigError("data.tokenizer is set, but each row is trained on each of --tokenizers")
    return {
        (name, row.name): settings_of(row, f'data.tokenizer="{name}"')
        for name in _tokenizers(release, tokenizers)
        for row in rows
    }


def _tokenizers(release: Path, names: Sequence[str]) -> list[str]:
    folder = data_folder(release)
    tracks = [str(name) for name in TOKENIZERS if (folder / f"{SPLIT}_caps_{name}.txt").exists()]
    if not tracks:
        raise FormatError(folder, f"no {SPLIT}_caps_jieba.txt, nor of another tokenizer")
    if absent := [name for name in names if name not in tracks]:
        there = f"{', '.join(tracks)}{nearest(absent[0], tracks)}"
        raise ConfigError(f"--tokenizers {absent[0]}: {release} has {there}")
    return [*dict.fromkeys(names)] or tracks[:1]


def read_seeds(text: str, overrides: Sequence[str] = ()) -> list[int]:
    """Read a number of seeds or a list: ``3`` is ``0,1,2``, and ``4,`` is seed 4 alone."""
    if any(one.partition("=")[0].strip() == "train.seed" for one in overrides):
        raise ConfigError(f"train.seed is set, but --seeds {text} says which seeds")
    if not re.fullmatch(r"\s*\d{1,9}\s*(,\s*\d{1,9}\s*)*,?", text):
        raise ConfigError(f"--seeds {text}: expected a number, or numbers with commas, such as 0,4")
    seeds = [int(part) for part in text.split(",") if part] if "," in text else [*range(int(text))]
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds {text}: expected one seed or more, each once")
    return seeds


def make_slots(devices: Sequence[str], jobs: int | None) -> tuple[list[Environment], list[str]]:
    """Make a slot for each parallel process, by default one for each device.

    Returns:
        The slots, and an override of the device. Settings name no GPU number, so that another GPU
        can resume a run.

    Raises:
        ConfigError: If a GPU does not exist, one of several devices is no numbered GPU, or torchrun
            started this process.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("table: does not run under torchrun; use --jobs for parallel runs")
    slots = jobs or max(1, len(devices))
    gpus = [int(name[5:]) for name in devices if re.fullmatch(r"cuda:\d+", name)]
    if not gpus and len(devices) < 2:
        return [{}] * slots, [f'train.device="{device}"' for device in devices]
    if len(gpus) < len(devices):
        raise ConfigError(
            f"--device {','.join(devices)}: expected one device, or GPUs such as cuda:0,cuda:1"
        )
    count = torch.cuda.device_count()
    if max(gpus) >= count:
        raise ConfigError(f"--device cuda:{max(gpus)}: this machine has {count} GPUs")
    names = os.environ.get(_VISIBLE, ",".join(map(str, range(count)))).split(",")
    environments = [{_VISIBLE: names[gpu].strip()} for gpu in gpus]
    return [environments[n % len(gpus)] for n in range(slots)], ['train.device="cuda"']
