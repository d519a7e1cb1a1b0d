"""The Codabench bundle: its program gives the evaluator's figures, with only NumPy."""

import json
import subprocess
import sys
import zipfile
from datetime import date
from pathlib import Path

import numpy as np
import pytest
import yaml

from leaderboard.blind import RoundPlan, make_round
from leaderboard.codabench.score import scores_of
from leaderboard.metrics import recalls
from leaderboard.scoring.evaluate import check_submission, score
from leaderboard.submission.archive import new_submission
from now_builder.errors import NowError
from now_builder.formats.release import read_pairs
from tests.leaderboard.conftest import pack_for_round, pairing_of


@pytest.fixture(scope="module")
def made(release, secret, tmp_path_factory):
    """A round with its bundle."""
    folder = tmp_path_factory.mktemp("round")
    bundle = folder / "bundle.zip"
    plan = RoundPlan(name="May 🐈\x7f: {x}", secret_file=secret, scored=3, codabench=bundle)
    make_round(release, folder / "out", plan)
    return folder


@pytest.fixture(scope="module")
def bundle(made):
    """The bundle as Codabench unpacks it."""
    with zipfile.ZipFile(made / "bundle.zip") as archive:
        archive.extractall(made / "unpacked")
    return made / "unpacked"


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A Python environment with only NumPy."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    for path in Path(np.__file__).parents[1].glob("numpy*"):
        (packages / path.name).symlink_to(path)
    python = folder / "bin/python3"
    code = (
        "import importlib.util as u; print([n for n in ('jaxtyping', 'regex') if u.find_spec(n)])"
    )
    assert subprocess.check_output([python, "-c", code], env={}) == b"[]\n"
    return python


@pytest.fixture
def run(bundle, bare, tmp_path):
    """Score a submission as Codabench does: unpack its zip, and call the command."""

    def program(path, inside="."):
        app = tmp_path / f"app-{len(list(tmp_path.glob('app-*')))}"
        for name in ("input", "output"):
            (app / name).mkdir(parents=True)
        (app / "program").symlink_to(bundle / "scoring_program")
        (app / "input/ref").symlink_to(bundle / "reference_data")
        with zipfile.ZipFile(path) as archive:
            archive.extractall(app / "input/res" / inside)
        (app / "input/res").mkdir(exist_ok=True)
        command = yaml.safe_load((app / "program/metadata.yaml").read_text())["command"]
        words = [word.replace("/app", str(app)) for word in command.split()]
        assert words[0] == "python3"
        ended = subprocess.run(
            [bare, *words[1:]],
            cwd=app / "program",
            env={},
            capture_output=True,
            check=False,
            text=True,
        )
        scores = app / "output/scores.json"
        return ended, json.loads(scores.read_text()) if scores.exists() else None

    return program


def _matrix(made, seed=0, dtype=np.float32, steps=None):
    perfect = pairing_of(made / "out")
    noise = np.random.default_rng(seed).standard_normal(perfect.shape)
    values = noise + 2 * perfect
    return (values if steps is None else np.round(values * steps)).astype(dtype)


def _figures(result):
    figures = {"rsum": result.rsum, "ties": float(not result.ranked)}
    for way, found in (("i2t", result.i2t), ("t2i", result.t2i)):
        figures |= {
            f"{way}_r{k}": value for k, value in zip((1, 5, 10), found.values(), strict=True)
        }
    return figures


def test_the_figures_equal_the_evaluators(made, run, tmp_path):
    for track, dtype, steps in (("jieba", "<f4", 1), ("bpe", "<f8", None), ("bert", "<f2", 0)):
        matrix = _matrix(made, 1, dtype, steps)
        path = pack_for_round(made / "out", matrix, tmp_path / "x.zip", track)
        ended, scores = run(path)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert scores == _figures(score(path, made / "out/judge"))


def test_releases_with_sites_get_rsum_within_sites(by_domain, secret, tmp_path):
    make_round(by_domain, tmp_path / "out",
               RoundPlan(secret_file=secret, codabench=tmp_path / "b.zip"))  # fmt: skip
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        archive.extractall(tmp_path / "bundle")
    tree = yaml.safe_load((tmp_path / "bundle/competition.yaml").read_text())
    assert tree["leaderboards"][0]["columns"][-1]["key"] == "within_site_rsum"
    reference = json.loads((tmp_path / "bundle/reference_data/reference.json").read_text())
    assert sorted(map(len, reference["sites"])) == [6] * 4
    hosts = {pair.key: pair.site for pair in read_pairs(by_domain)}
    keys = json.loads((tmp_path / "out/judge/blind.json").read_text())["keys"]
    assert all(len({hosts[keys[row]] for row in rows}) == 1 for rows in reference["sites"])
    path = pack_for_round(tmp_path / "out", pairing_of(tmp_path / "out"), tmp_path / "x.zip")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "res")
    assert scores_of(tmp_path / "res", reference)["within_site_rsum"] == 600


def test_the_program_counts_to_the_last_digit(made, bundle, bare, tmp_path):
    matrix, owner = _matrix(made, 1, steps=1), np.arange(24)[::-1].copy()
    np.savez(tmp_path / "x.npz", matrix=matrix, owner=owner)
    code = (
        "from leaderboard.metrics import recalls; import numpy as np, sys; x = np.load(sys.argv[1])"
    )
    code += "; print(recalls(x['matrix'], x['owner']).per_image.tolist())"
    output = subprocess.check_output(
        [bare, "-c", code, tmp_path / "x.npz"], cwd=bundle / "scoring_program", env={}
    )
    assert json.loads(output) == recalls(matrix, owner).per_image.tolist()


def test_a_zip_around_a_folder_is_read_as_the_board_reads_it(made, run, tmp_path):
    path = pack_for_round(made / "out", _matrix(made), tmp_path / "x.zip")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("__MACOSX/._submission.json", b"\0\5\x16\7")
    assert run(path, "mine")[1] == run(path)[1] == _figures(score(path, made / "out/judge"))


def _write(path, text, matrix):
    with zipfile.ZipFile(path, "w") as archive:
        if text is not None:
            archive.writestr("submission.json", text)
        if matrix is not None:
            with archive.open("similarity.npy", "w") as stream:
                np.lib.format.write_array(stream, matrix, version=(1, 0))
    return path


def test_refusals_equal_the_evaluators_and_none_is_a_traceback(made, run, tmp_path):
    plain = _matrix(made)
    infinite = plain.copy()
    infinite[3, 4] = np.inf
    keys = tuple(f"blind_{row:06d}" for row in range(len(plain)))
    foreign = {"image_ids": ("a", *keys[1:]), "caption_ids": keys[::-1]}
    meta = new_submission(made / "out/participants", "jieba", "test", "Mine")
    tree = json.loads(meta.model_dump_json(exclude_none=True))

    def refused(text, matrix=plain):
        ended, scores = run(_write(tmp_path / "x.zip", text, matrix))
        assert (ended.returncode, scores) == (1, None)
        assert ended.stderr.startswith("refused: ")
        assert ended.stderr.count("\n") == 1
        return ended.stderr

    for changes, matrix in (
        ({}, infinite),
        ({"caption_ids": keys[:-1]}, plain[:, :5]),
        (foreign, plain[:3]),
    ):
        errors = refused(json.dumps(tree | changes), matrix)
        with pytest.raises(NowError) as caught:
            score(tmp_path / "x.zip", made / "out/judge")
        assert errors == f"refused: {str(caught.value).removeprefix(f'{tmp_path}/x.zip: ')}\n"
    errors = refused(json.dumps(tree | {"dataset_fingerprint": "0" * 64, "split": "dev"}))
    assert errors.count(": found ") == 2
    strange = '{"track": "jieba", "image_ids": [["a"]], "caption_ids": 3, "payload": {}}'
    for text in (None, "{" * 10_000, strange):
        refused(text)
    assert "similarity.npy" in refused(json.dumps(tree), np.array([[None]]))


def test_the_competition_is_what_codabench_reads(bundle, made, run, tmp_path):
    tree = yaml.safe_load((bundle / "competition.yaml").read_text(encoding="utf-8"))
    assert tree["version"] == 2
    assert tree["title"] == "Noise of Web: blind round May 🐈: {x}"
    files = [tree["image"], tree["terms"], *(page["file"] for page in tree["pages"])]
    assert all((bundle / file).stat().st_size for file in files)
    [task], [phase], [board] = tree["tasks"], tree["phases"], tree["leaderboards"]
    for folder in (task["scoring_program"], task["reference_data"]):
        assert folder.endswith("/"), "Codabench puts the zip of another into its parent"
        assert (bundle / folder).is_dir()
    assert all((bundle / phase[name]).is_dir() for name in ("starting_kit", "public_data"))
    assert (phase["max_submissions"], phase["max_submissions_per_day"]) == (3, 3)
    assert phase["tasks"] == [task["index"]]
    assert phase["start"] < date(2100, 1, 1)
    assert {len(column["key"]) <= 36 >= len(column["title"]) for column in board["columns"]} == {
        True
    }
    scores = run(pack_for_round(made / "out", _matrix(made), tmp_path / "x.zip"))[1]
    assert {column["key"] for column in board["columns"]} == set(scores)
    assert board["columns"][0]["key"] == "rsum"


def test_only_the_reference_data_contain_the_pairing(bundle, made):
    public = bundle / "public_data"
    for path in (made / "out/participants").rglob("*"):
        if path.is_file():
            copy = public / path.relative_to(made / "out/participants")
            assert copy.read_bytes() == path.read_bytes()
    assert not list(public.rglob("blind.json"))
    holders = [
        path for path in bundle.rglob("*") if path.is_file() and b'"owner"' in path.read_bytes()
    ]
    names = {path.relative_to(bundle).as_posix() for path in holders}
    assert names == {"reference_data/reference.json", "scoring_program/score.py"}
    reference = json.loads((bundle / "reference_data/reference.json").read_text())
    assert "secret" not in reference
    assert (made / "bundle.zip").stat().st_mode & 0o777 == 0o600


def test_the_starting_kit_can_be_sent_as_it_is(bundle, made, run, tmp_path):
    kit, path = bundle / "starting_kit", tmp_path / "kit.zip"
    for track in ("jieba", "bpe", "bert"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(kit / track / "submission.json", "submission.json")
            archive.write(kit / "similarity.npy", "similarity.npy")
        assert check_submission(path, made / "out/participants")[0].track == track
    assert run(path)[1] == _figures(score(path, made / "out/judge"))


def test_the_secret_gives_the_same_bundle_again(release, secret, made, tmp_path, now_leaderboard):
    make = ("blind", "make", release, tmp_path / "out", "--secret-file", secret, "--scored", 3)
    name = ("--round", "May 🐈\x7f: {x}")
    blocked = tmp_path / "file"
    blocked.touch()
    (tmp_path / "folder").mkdir()
    for path in (blocked / "b.zip", tmp_path / "folder", tmp_path / "out/participants/b.zip"):
        code, _, errors = now_leaderboard(*make, *name, "--codabench", path)
        assert (code, (tmp_path / "out").exists()) == (1, False)
        assert str(path).removesuffix("/b.zip") in errors.splitlines()[-1]
    code, _, errors = now_leaderboard(*make, *name, "--codabench", tmp_path / "b.zip")
    assert code == 0, errors
    assert (tmp_path / "b.zip").read_bytes() == (made / "bundle.zip").read_bytes()
    assert not list(tmp_path.glob(".*"))
