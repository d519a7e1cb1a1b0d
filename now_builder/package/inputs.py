"""Read the inputs of packaging: captures, captions and the files named in settings."""

import hashlib
import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from now_builder.errors import FormatError
from now_builder.formats.captions import Vocabulary, find_tokenizers, read_captions, read_vocabulary
from now_builder.formats.features import Features
from now_builder.formats.io import sha256_of
from now_builder.formats.pair_statistics import read_suspects
from now_builder.formats.shard import (
    CaptureRow,
    Planned,
    complete_shards,
    plan_path,
    read_plan,
    rows_path,
    stream_rows,
)
from now_builder.formats.split import SplitPlan, parent_domains, suffix_list
from now_builder.formats.tables import read_hosts
from now_builder.formats.verdicts import Verdict, read_named_rows
from now_builder.package.filters import CrawledPages
from now_builder.package.flags import copied_captions, flags_of, same_screenshots
from now_builder.package.licences import read_sites
from now_builder.package.settings import PackageSettings
from now_builder.program.progress import track_progress

_log = logging.getLogger(__name__)

FILES = ("test_sites", "licensed", "suspects", "never")
"""Settings that name a file; its path is relative to the release folder."""

_SHOWN = 5
"""Maximum number of sites in a warning."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of packaging.

    Attributes:
        split: Pools of the release.
        learned: Pools of the crawl, whose train pool vocabularies were learned on.
        tokenizers: Text of raw tokenizer files, by name.
        judged: Verdicts by key; ``None`` without ``--matched``.
        hashes: Hashes of all inputs.
    """

    split: SplitPlan
    learned: SplitPlan
    pages: CrawledPages
    vocabularies: dict[str, Vocabulary]
    tokenizers: dict[str, str]
    judged: dict[str, Verdict] | None
    hashes: dict[str, str]


def read_inputs(
    captures: Path,
    captions: Path,
    release: Path,
    settings: PackageSettings,
    split: SplitPlan,
    features: Features,
) -> Inputs:
    """Read and hash the plan, rows, captions and the files named in settings."""
    plan = read_plan(captures)
    rows, flags = _read_rows(captures, plan)
    hashes = {"plan": sha256_of(plan_path(captures))}
    shards = [sha256_of(rows_path(captures, shard)) for shard in complete_shards(captures)]
    hashes["rows"] = hashlib.sha256("\n".join(shards).encode()).hexdigest()
    ids: dict[str, dict[str, list[int]]] = {}
    vocabularies: dict[str, Vocabulary] = {}
    for name in find_tokenizers(captions):
        vocabularies[name] = read_vocabulary(captions / f"{name}.vocab.json")
        path = captions / f"{name}.txt"
        ids[name] = read_captions(path)
        hashes[name] = sha256_of(path)
        hashes[f"{name}.vocab"] = sha256_of(captions / f"{name}.vocab.json")
        if vocabularies[name].extra.get("ids_sha256", hashes[name]) != hashes[name]:
            raise FormatError(path, "does not belong to its vocabulary. Run tokenize again")
    paths = [captions / f"{name}.tokenizer.json" for name in sorted(vocabularies)]
    tokenizers = {path.name: _read_text(path) for path in paths if path.exists()}
    judged = None
    if settings.matched:
        paths = [_from_release(release, name) for name in settings.matched]
        judged = read_judgements(paths, plan)
        hashes |= {f"matched.{number}": sha256_of(path) for number, path in enumerate(paths)}
    files = {
        name: _from_release(release, file) for name in FILES if (file := getattr(settings, name))
    }
    urls = {line.key: line.url for line in plan}
    sites = _read_test_sites(files["test_sites"], plan) if settings.test_sites else []
    pages = CrawledPages(
        plan,
        rows,
        frozenset(features.keys),
        ids,
        flags,
        sites=read_sites(files["licensed"]) if settings.licensed else None,
        suspects=read_suspects(files["suspects"], urls) if settings.suspects else {},
        never=frozenset(read_hosts(files["never"]) if settings.never else ()),
    )
    hashes |= {name: sha256_of(path) for name, path in files.items()}
    pools = _choose_pools(split, settings, sites)
    return Inputs(pools, split, pages, vocabularies, tokenizers, judged, hashes)


def _from_release(release: Path, name: str) -> Path:
    return Path(os.path.normpath(release.resolve() / name))


def _read_rows(
    captures: Path, plan: list[Planned]
) -> tuple[dict[str, CaptureRow], dict[str, frozenset[str]]]:
    """Read the rows, without columns that no release needs, and the flags of flagged pages."""
    urls = {line.key: line.url for line in plan}
    rows: dict[str, CaptureRow] = {}
    flags: dict[str, frozenset[str]] = {}
    for row in track_progress(stream_rows(captures), "read", total=len(plan)):
        if row.status == "ok" and row.caption and (row_flags := flags_of(row)):
            flags[row.key] = row_flags
        texts: dict[str, Any] = {
            name: sys.intern(text) for name in _REPEATED if (text := getattr(row, name))
        }
        url = urls.get(row.key, row.url)  # shares the object of the plan
        rows[row.key] = replace(row, url=url, **texts, **_UNUSED)
    flags = with_flag(flags, "same_screenshot", same_screenshots(rows.values()))
    return rows, with_flag(flags, "copied_caption", copied_captions(rows.values()))


_REPEATED = ("site", "status", "error", "caption_source", "lang")
"""Columns with few distinct values; equal texts share one object."""

_UNUSED: dict[str, Any] = {
    "url_canonical": "", "redirects": [], "content_type": None, "charset": None,
    "charset_source": None, "charset_browser": None, "title": None, "candidates": None,
    "lang_declared": None, "html_sha256": None, "load_state": None, "robots": None, "browser": None,
    "tool": None, "overlays": [],
}  # fmt: skip
"""Columns that only the flags need, or nothing: half of a row's memory."""


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(path, f"not UTF-8 text ({error})") from None


def hash_of_features(path: Path, features: Features) -> str:
    """Return a hash of a feature file's size, keys and attributes, without reading gigabytes."""
    attributes = sorted((name, str(value)) for name, value in features.attributes.items())
    text = f"{path.stat().st_size}\n{attributes}\n" + "\n".join(features.keys)
    return hashlib.sha256(text.encode()).hexdigest()


def with_flag(
    flags: Mapping[str, frozenset[str]], name: str, keys: Iterable[str]
) -> dict[str, frozenset[str]]:
    """Add a flag to the flags of some pages."""
    return {**flags, **{key: flags.get(key, frozenset()) | {name} for key in keys}}


def _choose_pools(learned: SplitPlan, settings: PackageSettings, sites: list[str]) -> SplitPlan:
    """Return the pools of a release."""
    suffixes = (learned.suffixes or suffix_list()) if settings.by == "domain" else None
    update = {"seed": settings.seed, "by": settings.by, "suffixes": suffixes}
    if (settings.seed, settings.by) == (learned.seed, learned.by):
        update = {}  # a file of an earlier version has no suffixes
    return learned.model_copy(update=update | ({"test_sites": sites} if sites else {}))


def _read_test_sites(path: Path, plan: Sequence[Planned]) -> list[str]:
    """Return the listed sites that have a page in the crawl; log the others."""
    sites = read_hosts(path)
    crawled = {name for line in plan for name in parent_domains(line.site)}
    missing = [site for site in sites if site not in crawled]
    if len(missing) == len(sites):
        raise FormatError(path, f"none of its {len(sites)} sites has a page in the crawl")
    if missing:
        rest = len(missing) - _SHOWN
        names = ", ".join(missing[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
        _log.warning("%s: no page in the crawl of %s", path, names)
    return sorted({*sites}.difference(missing))


def read_judgements(paths: Iterable[Path], plan: Iterable[Planned]) -> dict[str, Verdict]:
    """Read the verdicts of files by page key; different verdicts on a page count as unsure."""
    keys: dict[str, dict[str, list[str]]] = {"key": {}, "url": {}}
    for line in plan:
        keys["key"].setdefault(line.key, []).append(line.key)
        for url in {line.url, line.url_canonical}:
            keys["url"].setdefault(url, []).append(line.key)
    verdicts: dict[str, Verdict] = {}
    for path in paths:
        for key, verdict, _ in read_named_rows(path, keys, "the plan"):
            verdicts[key] = verdict if verdicts.get(key, verdict) == verdict else "unsure"
    return verdicts


def relative(name: str, release: Path) -> str:
    """Make a path relative, so that the manifest does not reveal the home directory."""
    return os.path.relpath(Path(name).resolve(), release.resolve())
