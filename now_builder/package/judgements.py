"""Read which pairs match: a truth file, or what people judged."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from now_builder.errors import FormatError
from now_builder.formats.shard import Planned
from now_builder.formats.verdicts import Verdict, read_judged, verdict_of


def read_judgements(paths: Iterable[Path], plan: Iterable[Planned]) -> dict[str, Verdict]:
    """Read verdicts by page key from files with a column ``url`` or ``key`` and one ``matched``.

    Two verdicts on one page that differ count as unsure. Lines about other pages are ignored, and
    so are those whose key and URL are of two pages: another crawl gives its pages the same keys.

    Raises:
        FormatError: If one cannot be read, lacks a column, has a word that is no verdict, or
            speaks of no page of the plan.
    """
    keys: dict[str, dict[str, list[str]]] = {"key": {}, "url": {}}
    for line in plan:
        keys["key"].setdefault(line.key, []).append(line.key)
        for url in {line.url, line.url_canonical}:
            keys["url"].setdefault(url, []).append(line.key)
    verdicts: dict[str, Verdict] = {}
    for path in paths:
        for key, verdict in _verdicts(path, keys):
            verdicts[key] = verdict if verdicts.get(key, verdict) == verdict else "unsure"
    return verdicts


def _verdicts(
    path: Path, keys: Mapping[str, Mapping[str, list[str]]]
) -> Iterator[tuple[str, Verdict]]:
    table = read_judged(path)
    column = "key" if "key" in table.columns else "url"
    if column not in table.columns or "matched" not in table.columns:
        raise FormatError(
            path,
            f"columns {[str(name) for name in table.columns]}, expected url or key, and matched",
        )
    columns = [name for name in ("key", "url") if name in table.columns]
    known = False
    for number, cells in enumerate(zip(*(table[name] for name in columns), strict=True), 2):
        verdict = verdict_of(path, number, table["matched"].iloc[number - 2])
        named = [
            set(keys[name].get(str(cell).strip(), []))
            for name, cell in zip(columns, cells, strict=True)
            if cell is not None and str(cell).strip()
        ]
        for key in sorted(set.intersection(*named)) if named else ():
            known = True
            yield key, verdict
    if not known:
        what = " and ".join(columns)
        raise FormatError(path, f"none of its {len(table)} lines names a {what} of the plan")


def relative(name: str, release: Path) -> str:
    """Name a file from the release folder: the manifest then tells no home folder."""
    return os.path.relpath(Path(name).resolve(), release.resolve())
