"""Read which pairs match: a truth file, or what people judged."""

import os
from collections.abc import Iterable
from pathlib import Path

from now_builder.formats.shard import Planned
from now_builder.formats.verdicts import Verdict, read_named


def read_judgements(paths: Iterable[Path], plan: Iterable[Planned]) -> dict[str, Verdict]:
    """Read verdicts by page key from files with a column ``url`` or ``key`` and one ``matched``.

    Two verdicts on one page that differ count as unsure.

    Raises:
        FormatError: As :func:`read_named` says.
    """
    keys: dict[str, dict[str, list[str]]] = {"key": {}, "url": {}}
    for line in plan:
        keys["key"].setdefault(line.key, []).append(line.key)
        for url in {line.url, line.url_canonical}:
            keys["url"].setdefault(url, []).append(line.key)
    verdicts: dict[str, Verdict] = {}
    for path in paths:
        for key, verdict in read_named(path, keys, "the plan"):
            verdicts[key] = verdict if verdicts.get(key, verdict) == verdict else "unsure"
    return verdicts


def relative(name: str, release: Path) -> str:
    """Name a file from the release folder: the manifest then tells no home folder."""
    return os.path.relpath(Path(name).resolve(), release.resolve())
