"""Read clean probabilities of pairs from a run folder or a table."""

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
    """Return the clean probabilities of pairs by key.

    Args:
        run: Folder of a run on the release, read at its selected epoch; or a CSV or Parquet file of
            any other method with ``key``, ``clean_prob`` and preferably ``url``.
        release: Folder of the release.

    Raises:
        FormatError: If a file is missing, does not have its format, belongs to another release, or
            has a probability outside [0, 1].
    """
    if not run.is_dir():
        pairs = stream_pairs(release) if is_ours(release) else ()
        return _read_table(run, {pair.key: pair.url for pair in pairs})
    keys = read_lines(data_folder(release) / "train_ids.txt")
    file = _division_file(run, release)
    values = _clean_prob(file)
    if len(values) != len(keys):
        raise FormatError(file, f"{len(values)} probabilities, the release has {len(keys)}")
    return _by_key(file, keys, values)


def read_suspects(path: Path, urls: Mapping[str, str]) -> dict[str, float]:
    """Return the clean probabilities of the pages in ``urls`` by key, from a table of pairs.

    The table has ``key``, ``clean_prob`` and preferably ``url``, as ``pc2-baseline rank-pairs``
    writes it.

    Raises:
        FormatError: As in :func:`read_clean_prob`, or if no row belongs to the pages.
    """
    by_key = _read_table(path, urls)
    suspects = {key: value for key, value in by_key.items() if key in urls}
    if not suspects:
        raise FormatError(path, f"none of its {len(by_key)} keys is one of the {len(urls)} pages")
    return suspects


def _by_key(file: Path, keys: Sequence[str], values: np.ndarray) -> dict[str, float]:
    is_valid = (values >= 0) & (values <= 1)
    if not is_valid.all():
        row = int((~is_valid).argmax())
        raise FormatError(file, f"clean_prob of {keys[row]} is {values[row]}, expected 0 to 1")
    return dict(zip(keys, values.tolist(), strict=True))


def origin_of_run(run: Path) -> tuple[str, str | None]:
    """Return the method and folder of a run; for a table, its file name and ``None``.

    :func:`read_clean_prob` must have read the run before.
    """
    path = run.resolve()
    if not run.is_dir():
        return path.name, None
    settings = tomllib.loads((run / "run.toml").read_text(encoding="utf-8"))["settings"]
    method = settings.get("method")
    name = method.get("name", path.name) if isinstance(method, dict) else path.name
    return str(name), "/".join(path.parts[-2:])


def _division_file(run: Path, release: Path) -> Path:
    """Return the path of the selected epoch's division; check that the run used this release."""
    path = run / "run.toml"
    try:
        record = tomllib.loads(path.read_text(encoding="utf-8"))
        version, tokenizer = record["format"], record["settings"]["data"]["tokenizer"]
        fingerprint = record["release"]["fingerprints"]["train"]
    except FileNotFoundError:
        raise FormatError(path, "no such file; `pc2-baseline train` writes it") from None
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise FormatError(path, f"not the settings of a run ({error!r:.100})") from None
    if version != _RUN:
        raise FormatError(path, f"format is {version!r:.40}, expected {_RUN!r}")
    if fingerprint != read_manifest(release).fingerprints.get("train", {}).get(str(tokenizer)):
        raise FormatError(path, f"a run on another release than {release}")
    state_path = run / "best" / "state.json"
    state: Any = read_json(state_path, "no such file; the run has no selected epoch yet")
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
    """Return probabilities by key; each URL must be the one of its key in ``urls``."""
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
        raise FormatError(path, f"clean_prob is not numeric ({error!s:.200})") from None
    if len(set(keys)) != len(keys):
        raise FormatError(path, "a key is in two rows")
    table_urls = table["url"] if "url" in table.columns else []
    # Another crawl assigns the same keys to other pages.
    for row, (key, url) in enumerate(zip(keys, map(str, table_urls), strict=False), 2):
        if key in urls and url not in {"", urls[key]}:
            problem = f"row {row}: {key} is {url:.80}, expected {urls[key]:.80}"
            raise FormatError(path, f"{problem}; the table is of another crawl")
    return _by_key(path, keys, values)
