"""Make and close blind rounds: a test split whose pairing only the judge has."""

import hmac
import logging
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd

from leaderboard.codabench.bundle import write_bundle
from leaderboard.core.rounds import (
    ROUND_FILE,
    TRUTH_FILE,
    BlindRound,
    BlindTruth,
    read_round,
    read_truth,
)
from leaderboard.scoring.within import sites_of
from now_builder.config import build
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.captions import from_line
from now_builder.formats.io import (
    atomic_folder,
    lock_folder,
    read_lines,
    remove_leftovers,
    sha256_of,
    write_json,
    write_text,
)
from now_builder.formats.release import (
    DATA_FOLDER,
    FileEntry,
    Manifest,
    Pair,
    check_files,
    fingerprint,
    hash_of,
    is_ours,
    read_manifest,
    stream_pairs,
    write_manifest,
    write_pairs,
    write_rejects,
)
from now_builder.formats.split import Shares, Split, SplitPlan

PARTICIPANTS, JUDGE, CLOSED = "participants", "judge", "closed"
MIN_PAIRS = 20
"""Minimum number of pairs; with fewer, chance alone often hits among the first ten."""

_LOG = logging.getLogger(__name__)
_WARN_PAIRS = 500
_MIN_SECRET = 32
_BATCH = 128
_TRAINING: tuple[Split, ...] = ("train", "dev")


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """Settings of a blind round.

    Attributes:
        pairs: number of pairs to draw from the test split; None draws all.
        secret_file: file with the secret of the draw and the orders; None makes a random one.
        with_train: whether participants get the train and dev splits of the release.
        scored: number of files that each person may have scored while the round is open.
        codabench: path of a Codabench competition to write.
    """

    pairs: int | None = None
    name: str = "round"
    secret_file: Path | None = None
    with_train: bool = False
    scored: int = 5
    codabench: Path | None = None


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder of a round, with the rows of the test split in the two orders of the round."""

    path: Path
    release: Path
    manifest: Manifest
    images: list[int]
    captions: list[int]
    training: tuple[Split, ...] = ()

    @property
    def keys(self) -> list[str]:
        """Keys of the rows, which do not identify the pages."""
        return [f"blind_{row:06d}" for row in range(len(self.images))]


def make_round(release: Path, out: Path, plan: RoundPlan | None = None) -> BlindRound:
    """Draw pairs of a release's test split and write both folders of a blind round.

    ``OUT/participants`` is a release with images in one secret order, captions in another, and
    keys that do not identify the pages. ``OUT/judge`` also contains the pairing. The same release,
    secret and name give the same bytes.

    Raises:
        FormatError: If the release is the authors' archive, damaged, or a blind round.
        ConfigError: If ``out`` exists and is not empty, or another command is writing it, the split
            is too small, or the secret too short.
    """
    plan = plan or RoundPlan()
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"{out}: exists; rounds are never overwritten. Name a new folder")
    bundle = plan.codabench
    if bundle and (bundle.is_dir() or out.resolve() in bundle.resolve().parents):
        raise ConfigError(f"{bundle}: found a folder, or a file in {out}; expected a zip elsewhere")
    manifest, test = _read_release(release, plan)
    secret = secrets.token_hex(32) if plan.secret_file is None else _read_secret(plan.secret_file)
    images, captions, truth = _draw(test, secret, plan)
    remove_leftovers(out.resolve().parent)
    with lock_folder(out), atomic_folder(out.resolve()) as temporary:
        judge = temporary / JUDGE
        judge.mkdir(mode=0o700)
        write_json(judge / TRUTH_FILE, truth.model_dump(mode="json"))
        (judge / TRUTH_FILE).chmod(0o600)
        blind = BlindRound(
            round=plan.name,
            split="test",
            pairs=len(images),
            commitment=sha256_of(judge / TRUTH_FILE),
            scored=plan.scored,
        )
        private = _Folder(judge, release, manifest, images, captions)
        training = _TRAINING if plan.with_train else ()
        public = replace(private, path=temporary / PARTICIPANTS, training=training)
        for folder in (private, public):
            _write(folder, blind)
        if bundle is not None:
            groups = sites_of(pd.DataFrame([test[row] for row in images]))
            sites = [rows.tolist() for rows in groups]
            write_bundle(bundle, public.path, judge, blind, sites)
    return blind


def close_round(out: Path) -> Path:
    """Publish the pairing of a round: ``OUT/closed``, the participants' folder and ``blind.json``.

    The judge's folder is closed first, so that no later score is blind. Anyone can then check the
    pairing against the commitment, and score every submission again.

    Raises:
        FormatError: If a folder is missing, or the pairing does not match the commitment.
    """
    blind = read_round(out / PARTICIPANTS)
    if blind is None or not (out / JUDGE / TRUTH_FILE).exists():
        raise FormatError(out, f"{PARTICIPANTS}/{ROUND_FILE} or {JUDGE}/{TRUTH_FILE} is missing")
    read_truth(out / JUDGE, blind)
    blind = blind.model_copy(update={"closed": True})
    _write_round(out / JUDGE, blind)
    closed = out / CLOSED
    with atomic_folder(closed) as temporary:
        shutil.copytree(out / PARTICIPANTS, temporary, dirs_exist_ok=True)
        shutil.copyfile(out / JUDGE / TRUTH_FILE, temporary / TRUTH_FILE)
        _write_round(temporary, blind)
    return closed


def keyed_order(keys: Sequence[str], secret: str, purpose: str) -> list[int]:
    """Return a uniform permutation that depends only on the secret, the keys and the purpose.

    The order of the keys does not matter; orders for different purposes are independent. Indices
    are sorted by the HMAC-SHA256 of their keys with the secret.
    """

    def digest(index: int) -> bytes:
        return hmac.digest(secret.encode(), f"{purpose}\n{keys[index]}".encode(), "sha256")

    return sorted(range(len(keys)), key=digest)


def _read_release(release: Path, plan: RoundPlan) -> tuple[Manifest, list[Pair]]:
    if not is_ours(release):
        problem = "no manifest.json: unfinished, or the authors' archive, whose pairing is public"
        raise FormatError(release, f"{problem}. Use a release of now-builder")
    if read_round(release) is not None:
        raise FormatError(release, "a blind round; expected the release that it was drawn from")
    manifest = read_manifest(release)
    if problems := check_files(release):
        raise FormatError(release, f"{problems[0]}. Run `now-builder verify` for details")
    test = [pair for pair in stream_pairs(release) if pair.split == "test"]
    count = len(test) if plan.pairs is None else plan.pairs
    if not MIN_PAIRS <= count <= len(test):
        expected = f"expected {MIN_PAIRS} or more, and at most the {len(test)} of the test split"
        raise ConfigError(f"{release}: found {count} pairs, {expected}")
    if count < _WARN_PAIRS:
        _LOG.warning("%d pairs: below %d the intervals of scores are wide", count, _WARN_PAIRS)
    return manifest, test


def _read_secret(path: Path) -> str:
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a readable text file ({error})") from None
    if len(secret) < _MIN_SECRET:
        problem = f"found {len(secret)} characters, expected {_MIN_SECRET} or more"
        raise ConfigError(f"{path}: {problem}. Make a secret with: openssl rand -hex 32")
    return secret


def _draw(
    test: Sequence[Pair], secret: str, plan: RoundPlan
) -> tuple[list[int], list[int], BlindTruth]:
    """Draw pairs, then put their images and captions in independent secret orders."""
    keys = [pair.key for pair in test]
    drawn = keyed_order(keys, secret, "draw")[: plan.pairs]
    images, captions = (
        [drawn[index] for index in keyed_order([keys[row] for row in drawn], secret, purpose)]
        for purpose in ("images", "captions")
    )
    row_of = {pair: row for row, pair in enumerate(images)}
    tree = {
        "round": plan.name,
        "split": "test",
        "secret": secret,
        "keys": tuple(keys[pair] for pair in images),
        "owner": tuple(row_of[pair] for pair in captions),
    }
    return images, captions, build(BlindTruth, tree, "blind make")


def _write(folder: _Folder, blind: BlindRound) -> None:
    """Write one folder, without anything that identifies a test page."""
    fingerprints = {split: folder.manifest.fingerprints[split] for split in folder.training}
    fingerprints["test"] = _write_captions(folder)
    pairs = _write_images(folder)
    _copy_files(folder)
    training = [pair for pair in stream_pairs(folder.release) if pair.split in folder.training]
    write_pairs(folder.path / "pairs.parquet", [*training, *pairs])
    # left empty: rejected pages can identify test pages
    write_rejects(folder.path / "rejects.parquet", [])
    readme = files("leaderboard.codabench").joinpath("participants.txt").read_text("utf-8")
    write_text(folder.path / "README.txt", readme.format(round=blind.round, pairs=blind.pairs))
    _write_round(folder.path, blind)
    counts = {split: folder.manifest.counts[split] for split in folder.training}
    _write_manifest(folder, blind.round, {**counts, "test": len(pairs)}, fingerprints)


def _write_round(folder: Path, blind: BlindRound) -> None:
    write_json(folder / ROUND_FILE, blind.model_dump(mode="json"))


def _write_captions(folder: _Folder) -> dict[str, str]:
    """Write the captions in their order; return their fingerprints by track."""
    keys, fingerprints = folder.keys, {}
    data = folder.path / DATA_FOLDER
    write_text(data / "test_ids.txt", "".join(f"{key}\n" for key in keys))
    for track in folder.manifest.tracks:
        name = f"test_caps_{track}.txt"
        source = folder.release / DATA_FOLDER / name
        lines = read_lines(source, "file not found")
        permuted = [lines[row] for row in folder.captions]
        write_text(data / name, "".join(f"{line}\n" for line in permuted))
        ids = (from_line(source, row, line) for row, line in enumerate(permuted, 1))
        fingerprints[track] = fingerprint(keys, ids)
    return fingerprints


def _write_images(folder: _Folder) -> list[Pair]:
    """Write the features in the order of the images; return rows with the features' hashes."""
    from now_builder.formats.features import OF_FILE, FeatureBatch, open_features, write_features

    order, keys, pairs = np.array(folder.images), folder.keys, []
    with open_features(folder.release / DATA_FOLDER / "test.h5") as features:
        half = features.dataset.dtype.itemsize == 2
        attributes = {
            name: str(value) for name, value in features.attributes.items() if name not in OF_FILE
        }

        def batches() -> Iterator[FeatureBatch]:
            for start in range(0, len(order), _BATCH):
                span = slice(start, start + _BATCH)
                batch = replace(features.read(order[span]), keys=keys[span])
                for row, image in enumerate(map(hash_of, batch.regions), start):
                    pairs.append(Pair(keys[row], "test", row, "", "", "", None, None, None, image))
                yield batch

        path = folder.path / DATA_FOLDER / "test.h5"
        write_features(path, batches(), attributes, half, len(order))
    return pairs


def _copy_files(folder: _Folder) -> None:
    """Copy vocabularies and training splits, without file times and permissions."""
    sources = sorted((folder.release / "vocab").glob("*.json"))
    for split in folder.training:
        tracks = [f"{split}_caps_{track}.txt" for track in folder.manifest.tracks]
        names = (f"{split}.h5", f"{split}_ids.txt", *tracks)
        sources += [folder.release / DATA_FOLDER / name for name in names]
    for source in sources:
        target = folder.path / source.relative_to(folder.release)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _write_manifest(
    folder: _Folder, name: str, counts: dict[Split, int], fingerprints: dict[Split, dict[str, str]]
) -> None:
    """Write a manifest that lists the files, without settings and versions of the release."""
    entries = {
        path.relative_to(folder.path).as_posix(): FileEntry(
            sha256=sha256_of(path), bytes=path.stat().st_size
        )
        for path in sorted(folder.path.rglob("*"))
        if path.is_file() and path.name not in {ROUND_FILE, TRUTH_FILE}
    }
    manifest = Manifest(
        name=name,
        created_at=folder.manifest.created_at[:10],
        split=SplitPlan(shares=Shares(train=1.0, dev=0.0, test=0.0)),
        counts=counts,
        rejects={},
        fingerprints=fingerprints,
        detector=folder.manifest.detector,
        settings={},
        versions={},
        files=entries,
    )
    write_manifest(folder.path, manifest)
