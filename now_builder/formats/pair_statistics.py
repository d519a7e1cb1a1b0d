"""Clean probabilities of pairs, read from the folder of a run or from a table."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from now_builder.errors import FormatError
from now_builder.formats.io import read_json, read_lines
from now_builder.formats.release import data_folder, is_ours, read_manifest, stream_pairs
from now_builder.formats.tables import read_frame

_RUN, _STATE = "pc2-run/1", "pc2-checkpoint/1"


def read_clean_prob(run: Path, release: Path) -> dict[str, float]:
    """Read the clean probability of pairs, by key.

    ``run`` is the folder of a run on the release, whose division of the selected epoch is read; or
    a CSV or Parquet file with columns ``key`` and ``clean_prob``, from any other method, and best
    ``url``.

    Raises:
        FormatError: If a file is missing, is not what its format says, belongs to another
            release, or a probability is outside [0, 1].
        ConfigError: If the library that reads tensor files is not installed.
    """
    if not run.is_dir():
        pairs = stream_pairs(release) if is_ours(release) else ()
        return _read_table(run, {pair.key: pair.url for pair in pairs})
    keys = read_lines(data_folder(release) / "train_ids.txt", "no such file")
    file = _division_file(run, release)
    values = _clean_prob(file)
    if len(values) != len(keys):
        raise FormatError(file, f"{len(values)} probabilities, the release has {len(keys)}")
    return _by_key(file, keys, values)


def read_suspects(path: Path, urls: Mapping[str, str]) -> dict[str, float]:
    """Read the clean probability of the pages in ``urls``, by key, from a table of pairs.

    It has columns ``key`` and ``clean_prob``, and best ``url``, as ``pc2-baseline rank-pairs``
    writes it: another crawl gives its pages the same keys.

    Raises:
        FormatError: As :func:`read_clean_prob` says, or if no row, or a row by its URL, is of the
            pages.
    """
    by_key = _read_table(path, urls)
    known = {key: value for key, value in by_key.items() if key in urls}
    if not known:
        raise FormatError(path, f"none of its {len(by_key)} keys is one of the {len(urls)} pages")
    return known


def _by_key(file: Path, keys: Sequence[str], values: np.ndarray) -> dict[str, float]:
    good = (values >= 0) & (values <= 1)
    if not good.all():
        row = int((~good).argmax())
        problem = f"clean_prob of {keys[row]} is {values[row]}, expected 0 to 1"
        raise FormatError(file, problem)
    return dict(zip(keys, values.tolist(), strict=True))


def origin_of_run(run: Path) -> tuple[str, str | None]:
    """Return the name of a run's method and its folder; or of a table, and ``None``.

    The run is one that :func:`read_clean_prob` has read.
    """
    path = run.resolve()
    if not run.is_dir():
        return path.name, None
    settings = tomllib.loads((run / "run.toml").read_text(encoding="utf-8"))["settings"]
    method = settings.get("method")
    name = method.get("name", path.name) if isinstance(method, dict) else path.name
    return str(name), "/".join(path.parts[-2:])


def _division_file(run: Path, release: Path) -> Path:
    """Find the division of the selected epoch, and check that the run is one on this release."""
    path = run / "run.toml"
    try:
        record = tomllib.loads(path.read_text(encoding="utf-8"))
        found, tokenizer = record["format"], record["settings"]["data"]["tokenizer"]
        trained_on = record["release"]["fingerprints"]["train"]
    except FileNotFoundError:
        raise FormatError(path, "no such file; `pc2-baseline train` writes it") from None
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise FormatError(path, f"not the settings of a run ({error!r:.100})") from None
    if found != _RUN:
        raise FormatError(path, f"format is {found!r:.40}, expected {_RUN!r}")
    if trained_on != read_manifest(release).fingerprints.get("train", {}).get(str(tokenizer)):
        raise FormatError(path, f"a run on another release than {release}")
    state_path = run / "best" / "state.json"
    state: Any = read_json(state_path, "no selected epoch; the run has not got that far")
    epoch = state.get("best_epoch") if isinstance(state, dict) else None
    if not isinstance(epoch, int) or state.get("format") != _STATE:
        raise FormatError(state_path, f"not a checkpoint of format {_STATE!r} with best_epoch")
    return run / "divisions" / f"{epoch:05d}.safetensors"


def _clean_prob(path: Path) -> np.ndarray:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        values = load_file(path)["clean_prob"]
    except FileNotFoundError:
        raise FormatError(path, "no such file; the method of this run divides nothing") from None
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise FormatError(path, f"not a readable tensor file ({error})") from None
    except KeyError:
        raise FormatError(path, "no tensor clean_prob") from None
    if values.ndim != 1 or values.dtype.kind != "f":
        raise FormatError(path, f"clean_prob is {values.dtype} {values.shape}, expected a list")
    return values.astype(np.float64)


def _read_table(path: Path, urls: Mapping[str, str]) -> dict[str, float]:
    """Read numbers by key; a row with the URL of another page than in ``urls`` is an error."""
    if not path.exists():
        raise FormatError(path, "no such run folder, CSV or Parquet file")
    table = read_frame(path)
    missing = {"key", "clean_prob"} - set(table.columns)
    if missing:
        raise FormatError(path, f"missing columns {sorted(missing)}")
    keys = [str(key) for key in table["key"]]
    try:
        values = table["clean_prob"].to_numpy(np.float64)
    except (ValueError, TypeError) as error:
        raise FormatError(path, f"clean_prob is not of numbers ({error!s:.200})") from None
    if len(set(keys)) != len(keys):
        raise FormatError(path, "a key is in two rows")
    found = table["url"] if "url" in table.columns else []
    for row, (key, url) in enumerate(zip(keys, map(str, found), strict=False), 2):
        if key in urls and url not in {"", urls[key]}:
            problem = f"row {row}: {key} is {url:.80}, expected {urls[key]:.80}"
            raise FormatError(path, f"{problem}; it is of another crawl")
    return _by_key(path, keys, values)
