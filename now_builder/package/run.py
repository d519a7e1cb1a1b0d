"""Package a crawl as a release in the published layout; write ``manifest.json`` last."""

import logging
import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from now_builder import __version__
from now_builder.config import build
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.captions import to_line, write_vocabulary
from now_builder.formats.features import (
    DIMENSION,
    OF_FILE,
    REGIONS,
    FeatureBatch,
    Features,
    check_captures,
    open_features,
    write_features,
)
from now_builder.formats.io import (
    atomic_write,
    check_folder_is_ours,
    lock_folder,
    remove_leftovers,
    sha256_of,
    write_json,
    write_text,
)
from now_builder.formats.release import (
    DATA_FOLDER,
    LICENCES,
    FileEntry,
    Manifest,
    Pair,
    fingerprint,
    hash_of,
    read_manifest,
    write_manifest,
    write_pairs,
    write_rejects,
)
from now_builder.formats.split import Split, SplitPlan, read_split
from now_builder.formats.statistics import (
    ReleaseStatistics,
    SplitStatistics,
    TokenStatistics,
    sort_counts,
)
from now_builder.package.card import ReleaseDescription, capture_columns, write_card
from now_builder.package.croissant import make_croissant
from now_builder.package.filters import Selection, select, unusable
from now_builder.package.inputs import (
    FILES,
    Inputs,
    hash_of_features,
    read_inputs,
    relative,
    with_flag,
)
from now_builder.package.licences import write_licences
from now_builder.package.screenshots import find_consent_walls
from now_builder.package.settings import PackageSettings
from now_builder.program.progress import track_progress

_log = logging.getLogger(__name__)

_PREVIOUS = ".previous-manifest.json"
_LIBRARIES = ("h5py", "numpy", "phonenumberslite", "pyarrow", "tldextract")
_BATCH = 128
"""Number of pages whose regions are copied at once."""
_FEW = 50
"""Number of pairs of dev or test below which a warning suggests more."""
_MORE = (
    "; dev and test are too small to tell methods apart: crawl more sites, or into a new folder"
    " with --split-shares 0.5,0.25,0.25, or package --split-by page (build: --set"
    " crawl.split_shares=0.5,0.25,0.25, --set package.by=page)"
)


def package(
    captures: Path,
    features: Path,
    captions: Path,
    release: Path,
    settings: PackageSettings,
    force: bool = False,  # noqa: FBT001, FBT002 - as in every stage
) -> Manifest:
    """Write a release, unless it exists and was made from the same files and settings.

    Settings that are not given are those of the existing release, else those of ``split.toml``. The
    draw of dev and test depends only on the inputs and the seed. If other pairs or captions replace
    a release, a warning names its splits.

    Raises:
        FormatError: If an input is missing, damaged or unfinished, or the features were made from
            other captures.
        ConfigError: If the captures were crawled again with other pools, a split would be empty, or
            another command made ``release`` or is writing in it.
    """
    check_folder_is_ours(release, "manifest.json")
    with lock_folder(release):
        split = read_split(captures / "split.toml")
        before = _read_previous(release)
        resolved = resolve_settings(settings, split, before, release)
        with open_features(features) as opened:
            inputs = read_inputs(captures, captions, release, resolved, split, opened)
            pages = inputs.pages
            screenshots = {key: row.sha256 for key, row in pages.rows.items()}
            check_captures(features, opened.keys, opened.attributes, screenshots)
            inputs.hashes["features"] = hash_of_features(features, opened)
            if not force and before is not None and _is_current(release, before, resolved, inputs):
                (release / _PREVIOUS).unlink(missing_ok=True)  # left by a kill
                return before
            if "consent_wall" in resolved.dropped_flags:
                usable = frozenset(n.key for n in pages.plan if unusable(pages, n.key) is None)
                walls = find_consent_walls(captures, usable)
                pages = replace(pages, flags=with_flag(pages.flags, "consent_wall", walls))
                inputs = replace(inputs, pages=pages)
            selection = select(pages, inputs.split, resolved, inputs.judged)
            _warn_of_unknown_words(selection, inputs)
            _check_sizes(selection, resolved, release)
            if before is not None and not force:
                _warn_of_replacing(release, before, _fingerprints(selection, inputs))
            _clear(release)
            return _write(release, opened, inputs, selection, resolved)


def resolve_settings(
    settings: PackageSettings, split: SplitPlan, before: Manifest | None, release: Path
) -> PackageSettings:
    """Return all settings: those given, else those of the existing release, else the defaults.

    Raises:
        ConfigError: If seed or ``by`` are those of the existing release, and the captures were
            crawled again with others.
    """
    tree: dict[str, Any] = {"seed": split.seed, "by": split.by}
    if before is not None:  # earlier versions may have had other settings
        fields = PackageSettings.model_fields
        tree |= {name: value for name, value in before.settings.items() if name in fields}
    options = settings.model_dump(exclude_unset=True, exclude_none=True)
    if options.get("matched"):
        files = [name for name in settings.matched if name != "none"]
        options["matched"] = [relative(name, release) for name in files]
    for option in FILES:
        if name := options.get(option):
            options[option] = "" if name == "none" else relative(name, release)
    resolved = build(PackageSettings, tree | options, str(release / "manifest.json"))
    if "min_clean" in options and not resolved.suspects:
        raise ConfigError("--min-clean: expected --suspects, the table of clean probabilities")
    for name in ("seed", "by"):
        value, crawled = getattr(resolved, name), getattr(split, name)
        was_given = name in options or (before is not None and before.learned_split is not None)
        if value != crawled and not was_given:
            raise ConfigError(
                f"{release}: {name} is {value}, but split.toml of the captures has {crawled}: they "
                f"were crawled again. Give --split-{name}, or choose another release folder"
            )
    return resolved


def _read_previous(release: Path) -> Manifest | None:
    """Return the manifest of the existing or incomplete release, if any."""
    for name in ("manifest.json", _PREVIOUS):
        if (release / name).exists():
            return read_manifest(release, name)
    return None


def _is_current(release: Path, before: Manifest, settings: PackageSettings, inputs: Inputs) -> bool:
    """Return whether a release is complete and would not change."""
    return (
        (release / "manifest.json").exists()
        and before.settings == settings.model_dump()
        and before.inputs == inputs.hashes
        and before.split == inputs.split
        and before.versions == _versions()
        and all(
            (release / name).is_file() and (release / name).stat().st_size == entry.bytes
            for name, entry in before.files.items()
        )
    )


def _check_sizes(selection: Selection, settings: PackageSettings, release: Path) -> None:
    counts = ", ".join(f"{name} {len(keys)}" for name, keys in selection.splits.items())
    empty = [name for name, keys in selection.splits.items() if not keys]
    if empty:
        reasons = ", ".join(f"{name} {count}" for name, count in selection.reasons.items())
        raise ConfigError(
            f"{release}: no pair for {' and '.join(empty)} (pairs: {counts}; other pages: "
            f"{reasons}). Crawl more sites, or try --split-by page or another --split-seed; judge "
            "more pairs if --matched leaves too few"
        )
    sizes = {name: getattr(settings, name) for name in selection.splits}
    cut = [f"{name} {len(keys)} of {sizes[name]}" for name, keys in selection.splits.items()
           if len(keys) < sizes[name]]  # fmt: skip
    few = any(len(selection.splits[name]) < min(sizes[name], _FEW) for name in ("dev", "test"))
    if cut:
        _log.warning(
            "the pools have fewer pairs than the maximum, all are used: %s%s",
            ", ".join(cut), _MORE if few else "",
        )  # fmt: skip


def _warn_of_unknown_words(selection: Selection, inputs: Inputs) -> None:
    """Warn of pages whose captions share no token with the train pool, by language."""
    keys = [item.key for item in selection.rejects if item.reason.startswith("empty_tokens:")]
    rows = inputs.pages.rows
    counts = Counter(rows[key].lang or "unknown" for key in keys)
    if counts:
        pages = Counter(row.lang or "unknown" for row in rows.values() if row.caption)
        shares = (f"{lang} {count} of {pages[lang]}" for lang, count in counts.most_common())
        _log.warning(
            "%d pages are rejects, as no word or letter of their captions is in the train pool "
            "(captions by language: %s): crawl more sites in these languages, or all of them into "
            "a new folder with --split-by page", len(keys), ", ".join(shares),
        )  # fmt: skip


def _fingerprints(selection: Selection, inputs: Inputs) -> dict[str, dict[str, str]]:
    return {
        split: {
            name: fingerprint(keys, (ids[key] for key in keys))
            for name, ids in inputs.pages.ids.items()
        }
        for split, keys in selection.splits.items()
    }


def _warn_of_replacing(
    release: Path, before: Manifest, fingerprints: Mapping[str, Mapping[str, str]]
) -> None:
    """Warn of splits and tokenizers whose fingerprints change."""
    changed = {
        split: [name for name, old in tracks.items() if fingerprints[split].get(name) != old]
        for split, tracks in before.fingerprints.items()
    }
    texts = [f"{split} ({', '.join(names)})" for split, names in changed.items() if names]
    if texts:
        _log.warning(
            "%s: replacing the release by one with other pairs or captions: the fingerprints of %s "
            "change; runs and submissions made with the old one do not fit the new one",
            release, ", ".join(texts),
        )  # fmt: skip


def _count_learned(release: Path, inputs: Inputs, selection: Selection) -> dict[Split, int]:
    """Count dev and test pairs in the train pool of the crawl, with a warning, if pools differ."""
    if inputs.split == inputs.learned:
        return {}
    learned: dict[Split, int] = {
        split: sum(
            inputs.learned.pool_of(inputs.pages.rows[key].site, key) == "train" for key in keys
        )
        for split, keys in selection.splits.items()
        if split != "train"
    }
    sizes = {split: len(keys) for split, keys in selection.splits.items()}
    counts = [f"{n} of {sizes[split]} pairs of {split}" for split, n in learned.items()]
    _log.warning(
        "%s: its pools differ from split.toml. The vocabularies were learned on that train pool, "
        "and so were detector weights trained on these captures (tiny-web was not). %s were in it; "
        "the manifest and the card record this", release, " and ".join(counts),
    )  # fmt: skip
    return learned


def _clear(release: Path) -> None:
    """Make a release incomplete before it is rewritten; keep its settings for the next run."""
    release.mkdir(parents=True, exist_ok=True)
    if (release / "manifest.json").exists():
        (release / "manifest.json").replace(release / _PREVIOUS)
    for folder in (release, release / DATA_FOLDER, release / "vocab"):
        remove_leftovers(folder)
    stale = [f"{DATA_FOLDER}/*_ims.npy", f"{DATA_FOLDER}/*_caps_*.txt", "vocab/*.json", LICENCES]
    for path in [path for pattern in stale for path in release.glob(pattern)]:
        path.unlink()


def _write(
    release: Path,
    features: Features,
    inputs: Inputs,
    selection: Selection,
    settings: PackageSettings,
) -> Manifest:
    pages = inputs.pages
    statistics = ReleaseStatistics(capture_columns(pages.rows))
    pairs: list[Pair] = []
    shapes: dict[str, list[int] | None] = {}
    for split, keys in selection.splits.items():
        counted = statistics.splits[split]
        h5, npy = f"{DATA_FOLDER}/{split}.h5", f"{DATA_FOLDER}/{split}_ims.npy"
        npy_path = release / npy if settings.npy else None
        hashes = _write_images(features, keys, release / h5, npy_path, counted)
        for index, (key, regions_sha256) in enumerate(zip(keys, hashes, strict=True)):
            row, flags = pages.rows[key], ",".join(sorted(pages.flags.get(key, ())))
            pairs.append(Pair(
                key, split, index, row.url, row.site, row.caption or "", row.caption_source,
                row.lang, row.phash, regions_sha256, flags,
            ))  # fmt: skip
            counted.add_pair(pairs[-1])
        for track, ids in pages.ids.items():
            counted.tracks[track] = TokenStatistics()
            for key in keys:
                counted.tracks[track].add(ids[key])
        shape = [len(keys), *features.dataset.shape[1:]]
        shapes |= dict.fromkeys([h5, npy] if settings.npy else [h5], shape)
    shapes |= dict.fromkeys(_write_texts(release, inputs, selection))
    write_pairs(release / "pairs.parquet", pairs)
    write_rejects(release / "rejects.parquet", selection.rejects)
    licences: dict[str, int] = {}
    if pages.sites is not None:
        licences = write_licences(release / LICENCES, pages.sites, (pair.site for pair in pairs))
        shapes[LICENCES] = None
    times = sorted(row.fetched_at for row in pages.rows.values() if row.fetched_at)
    verdicts: dict[Split, dict[str, int]] = {}
    if (judged := inputs.judged) is not None:
        for split, keys in selection.splits.items():
            verdicts[split] = sort_counts(Counter(judged.get(key, "not judged") for key in keys))
    description = ReleaseDescription(
        statistics,
        inputs.vocabularies,
        listed=len(pages.plan),
        rejects=selection.reasons,
        fetched=(times[0], times[-1]) if times else ("", ""),
        verdicts=verdicts,
        learned_split=inputs.learned,
        learned=_count_learned(release, inputs, selection),
        licences=licences,
        detector={name: str(value) for name, value in sorted(_detector(features).items())},
    )
    return _describe(release, inputs, settings, selection, description, shapes)


def _detector(features: Features) -> dict[str, Any]:
    """Return the attributes of a feature file that describe its detector."""
    return {name: value for name, value in features.attributes.items() if name not in OF_FILE}


def _write_images(
    features: Features, keys: Sequence[str], h5: Path, npy_path: Path | None,
    statistics: SplitStatistics,
) -> list[str]:  # fmt: skip
    """Copy the features of some pages to ``h5``, in the order of ``keys``, and count their regions.

    ``npy_path`` is a second file of the regions alone, for the authors' loader.

    Returns:
        Hashes of the pages' regions as stored.

    Raises:
        FormatError: If a page's features are not finite.
    """
    row_of = {key: row for row, key in enumerate(features.keys)}
    rows = np.array([row_of[key] for key in keys], dtype=np.int64)
    hashes: list[str] = []
    with ExitStack() as stack:
        npy: BinaryIO | None = None
        half = features.dataset.dtype.itemsize == 2
        dtype = "<f2" if half else "<f4"
        if npy_path is not None:  # not mapped: a full disk would kill the process
            npy = stack.enter_context(stack.enter_context(atomic_write(npy_path)).open("wb"))
            shape = (len(keys), REGIONS, DIMENSION)
            header = {"descr": dtype, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(npy, header)

        def batches() -> Iterator[FeatureBatch]:
            starts = range(0, len(rows), _BATCH)
            for start in track_progress(starts, h5.stem, "batch"):
                batch = features.read(rows[start : start + _BATCH])
                bad = ~np.isfinite(batch.regions).all((1, 2))
                if bad.any():
                    key = batch.keys[bad.argmax()]
                    raise FormatError(features.path, f"page {key}: regions not finite")
                if npy is not None:
                    npy.write(batch.regions.astype(dtype, copy=False).tobytes())
                hashes.extend(hash_of(page) for page in batch.regions)
                statistics.add_regions(batch.n_regions, batch.source)
                yield batch

        write_features(h5, batches(), _detector(features), half, len(keys))
    return hashes


def _write_texts(release: Path, inputs: Inputs, selection: Selection) -> list[str]:
    """Write captions, keys and vocabularies; return their paths."""
    written: list[str] = []

    def write(path: str, lines: Iterable[str]) -> None:
        with atomic_write(release / path) as part, part.open("w", encoding="utf-8") as file:
            file.writelines(lines)
        written.append(path)

    for split, keys in selection.splits.items():
        write(f"{DATA_FOLDER}/{split}_ids.txt", (f"{key}\n" for key in keys))
        for name, ids in inputs.pages.ids.items():
            lines = (f"{to_line(ids[key])}\n" for key in keys)
            write(f"{DATA_FOLDER}/{split}_caps_{name}.txt", lines)
    for name, text in inputs.tokenizers.items():
        write(f"vocab/{name}", [text])
    for name, vocabulary in inputs.vocabularies.items():
        path = f"vocab/{DATA_FOLDER}_vocab_{name}.json"
        write_vocabulary(release / path, vocabulary)
        written.append(path)
    return written


def _describe(
    release: Path,
    inputs: Inputs,
    settings: PackageSettings,
    selection: Selection,
    description: ReleaseDescription,
    shapes: dict[str, list[int] | None],
) -> Manifest:
    """Write card, metadata and, last, the manifest; ``shapes`` has the files written before."""
    write_text(release / "DATASET_CARD.md", write_card(description, settings, inputs.split))
    names = [*shapes, "pairs.parquet", "rejects.parquet", "DATASET_CARD.md"]
    files = {name: _entry(release, name, shapes.get(name)) for name in sorted(names)}
    write_json(release / "croissant.json", make_croissant(description, settings, files))
    files["croissant.json"] = _entry(release, "croissant.json")
    manifest = Manifest(
        name=settings.name,
        created_at=description.fetched[1],
        split=inputs.split,
        learned_split=None if inputs.split == inputs.learned else inputs.learned,
        counts={name: len(keys) for name, keys in selection.splits.items()},
        rejects=description.rejects,
        licences=description.licences,
        fingerprints=_fingerprints(selection, inputs),
        detector=description.detector,
        settings=settings.model_dump(),
        versions=_versions(),
        inputs=inputs.hashes,
        files=files,
    )
    write_manifest(release, manifest)
    (release / _PREVIOUS).unlink(missing_ok=True)
    return manifest


def _entry(release: Path, name: str, shape: list[int] | None = None) -> FileEntry:
    path = release / name
    return FileEntry(sha256=sha256_of(path), bytes=path.stat().st_size, shape=shape)


def _versions() -> dict[str, str]:
    libraries = {name: version(name) for name in _LIBRARIES}
    return {"noise-of-web": __version__, "python": platform.python_version(), **libraries}
