"""Write a blind round as a competition bundle for Codabench."""

import io
import json
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
from PIL import Image

from leaderboard.core.rounds import BlindRound, check_track
from leaderboard.metrics import steps_of
from leaderboard.submission.archive import MATRIX, META, new_submission, zip_member
from leaderboard.submission.gallery import Gallery, read_gallery
from now_builder.formats.io import atomic_write
from now_builder.formats.release import read_manifest

_HERE = Path(str(files("leaderboard.codabench")))

_COLUMN = (
    "\n      - {index: 8, key: within_site_rsum, title: rSum within sites, sorting: desc,"
    " precision: 1}"
)
"""Column of the competition if the release has sites."""

_EVALUATOR = (
    "leaderboard/metrics.py",
    "leaderboard/submission/untrusted.py",
    "now_builder/errors.py",
)
"""Modules that ``score.py`` imports; they require only NumPy, and jaxtyping for annotations."""


def write_bundle(
    path: Path,
    participants: Path,
    judge: Path,
    blind: BlindRound,
    sites: Sequence[Sequence[int]] = (),
) -> None:
    """Write the competition of a blind round as a zip, which only the owner of the file can read.

    It contains the ``participants`` folder as public data, and the pairing from the ``judge``
    folder. ``sites`` are the rows of the images of each site, for rSum within sites.
    """
    manifest = read_manifest(judge)
    galleries = {name: read_gallery(judge, "test", check_track(name)) for name in manifest.tracks}
    texts = {
        "pages/overview.md": (participants / "README.txt").read_text(encoding="utf-8"),
        **dict(_pages(blind, manifest.created_at, _COLUMN if sites else "")),
        **dict(_program()),
        "reference_data/reference.json": _reference(galleries, sites),
        **dict(_starting_kit(participants, galleries)),
    }
    with atomic_write(path, mode=0o600) as temporary, zipfile.ZipFile(temporary, "w") as bundle:
        for name, text in texts.items():
            bundle.writestr(zip_member(name), text)
        bundle.writestr(zip_member("logo.png"), _logo())
        scores = np.random.default_rng(0).random((blind.pairs, blind.pairs), np.float32)
        with bundle.open(zip_member(f"starting_kit/{MATRIX}"), "w", force_zip64=True) as stream:
            np.lib.format.write_array(stream, scores, version=(1, 0), allow_pickle=False)
        for source in sorted(path for path in participants.rglob("*") if path.is_file()):
            info = zip_member(f"public_data/{source.relative_to(participants).as_posix()}")
            with source.open("rb") as file, bundle.open(info, "w", force_zip64=True) as stream:
                shutil.copyfileobj(file, stream)


def _pages(blind: BlindRound, created_at: str, column: str) -> Iterator[tuple[str, str]]:
    name = "".join(filter(str.isprintable, blind.round))
    recall, points = steps_of(blind.pairs)
    values = {
        "recall": f"{recall:g}",
        "points": f"{points:g}",
        "title": json.dumps(f"Noise of Web: blind round {name}", ensure_ascii=False),
        "start": created_at[:10],
        "pairs": blind.pairs,
        "scored": blind.scored,
        "within": column,
    }
    for page in ("competition.yaml", "pages/evaluation.md", "pages/terms.md"):
        yield page, (_HERE / page).read_text(encoding="utf-8").format_map(values)


def _program() -> Iterator[tuple[str, str]]:
    """Yield the files of the scoring program: ``score.py`` and the modules that it imports."""
    yield "scoring_program/score.py", (_HERE / "score.py").read_text(encoding="utf-8")
    for name in _EVALUATOR:
        module = _HERE.parents[1] / name
        yield f"scoring_program/{name}", module.read_text(encoding="utf-8")
        for package in Path(name).parents[:-1]:
            yield f"scoring_program/{package.as_posix()}/__init__.py", ""
    yield "scoring_program/jaxtyping.py", (_HERE / "jaxtyping.txt").read_text(encoding="utf-8")
    command = "python3 /app/program/score.py /app/input /app/output"
    yield "scoring_program/metadata.yaml", f"command: {command}\n"


def _reference(galleries: Mapping[str, Gallery], sites: Sequence[Sequence[int]]) -> str:
    first = next(iter(galleries.values()))
    tree = {
        "keys": first.image_keys,
        "owner": first.owner.tolist(),
        "images": first.image_labels.tolist(),
        "tracks": {
            name: {"fingerprint": gallery.fingerprint, "captions": gallery.caption_labels.tolist()}
            for name, gallery in galleries.items()
        },
    }
    return json.dumps(tree | ({"sites": sites} if sites else {}))


def _starting_kit(
    participants: Path, galleries: Mapping[str, Gallery]
) -> Iterator[tuple[str, str]]:
    yield "starting_kit/README.md", (_HERE / "starting_kit.md").read_text(encoding="utf-8")
    for name in galleries:
        meta = new_submission(participants, name, "test", "Random scores")
        text = meta.model_dump_json(indent=1, exclude_none=True, exclude={"environment"})
        yield f"starting_kit/{name}/{META}", text


def _logo() -> bytes:
    """Return a plain square; Codabench requires a logo."""
    file = io.BytesIO()
    Image.new("RGB", (256, 256), "#1d4ed8").save(file, "PNG")
    return file.getvalue()
