"""The command line: what a user types, reads and gets wrong."""

import json
import re
import shutil
import tomllib
import zipfile

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file

from leaderboard.metrics import recalls
from leaderboard.submission.archive import open_submission
from leaderboard.submission.gallery import read_gallery
from now_builder.formats.pair_statistics import read_clean_prob
from now_builder.formats.release import read_split_captions
from pc2_baseline.config import presets
from tests.pc2_baseline.commands import call, failed


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
    """A small finished run, by the command."""
    run = tmp_path_factory.mktemp("runs") / "run"
    sets = [
        "model.embed_dim=8", "model.word_dim=8", "model.similarity_dim=8", "train.batch=12",
        "train.warmup_epochs=2", "train.epochs=2", "method.class_hidden=8",
    ]  # fmt: skip
    flags = [part for value in sets for part in ("--set", value)]
    done = call(
        "train", tiny, run, "--config", "pc2-paper", "--on", "demo", "--device", "cpu", *flags
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"4 epochs, best epoch \d with dev rSum \d", done.stdout)
    assert re.search(r"epoch 1/4: .* pairs/s, dev rSum .* left", done.stderr)
    return run


def test_the_run_folder_holds_what_the_contract_says(trained, tiny):
    tree = tomllib.loads((trained / "run.toml").read_text())
    assert tree["release"]["path"] == str(tiny.resolve())
    expected = read_split_captions(tiny, "test", "jieba").fingerprint
    assert tree["release"]["fingerprints"]["test"] == expected
    assert tree["settings"]["method"]["margin_base"] == 10.0, "resolved, defaults included"
    assert len((trained / "log.jsonl").read_text().splitlines()) == 4
    for part in ("best", "last"):
        names = {path.suffix for path in (trained / part).iterdir()}
        assert names == {".json", ".safetensors"}


def test_predict_packs_the_matrix_that_the_board_reads(trained, tiny, tmp_path):
    out = tmp_path / "x.zip"
    assert call("predict", trained, "--split", "test", "-o", out).returncode == 0
    assert set(zipfile.ZipFile(out).namelist()) == {"submission.json", "similarity.npy"}
    with open_submission(out) as submission:
        matrix = submission.read(read_gallery(tiny, "test", "jieba"))
        assert submission.meta.training.ensemble_size == 2
        assert submission.meta.training.checkpoint_selection == "dev"
    assert matrix.shape == (8, 8)
    assert np.isfinite(matrix).all()
    dev = tmp_path / "dev.zip"
    assert call("predict", trained, "--split", "dev", "-o", dev).returncode == 0
    with open_submission(dev) as submission:
        matrix = submission.read(read_gallery(tiny, "dev", "jieba"))
    state = json.loads((trained / "best" / "state.json").read_text())
    assert recalls(np.asarray(matrix, dtype=np.float32)).rsum == pytest.approx(state["best_rsum"])


def test_a_release_that_moved_is_found_by_an_option(trained, tiny, tmp_path):
    moved = shutil.copytree(tiny, tmp_path / "moved")
    out = tmp_path / "x.zip"
    assert call("predict", trained, "-o", out, "--release", moved).returncode == 0
    failed(
        call("predict", trained, "-o", out, "--release", tmp_path / "nowhere"),
        "release not found at .*nowhere; set --release",
    )


def test_predicting_on_another_release_is_refused(trained, planted, tmp_path):
    plan = planted.Plan(train=24, dev=8, test=8, topics=4, seed=3)
    other = planted.plant(tmp_path / "other", plan)
    failed(
        call("predict", trained, "-o", tmp_path / "x.zip", "--release", other),
        "test split has fingerprint .* another release",
    )


def test_division_reads_truth_by_url_or_key_from_both_formats(trained, tiny, tmp_path):
    table = pd.read_csv(tiny / "truth.csv")
    csv, parquet = tmp_path / "truth.csv", tmp_path / "truth.parquet"
    table[["url", "matched"]].to_csv(csv, index=False)
    unknown = table[["key", "matched"]].astype({"matched": object})
    unknown.loc[unknown["key"].isin(["train_00000", "train_00001"]), "matched"] = None
    unknown.to_parquet(parquet)
    for path, known in ((csv, 24), (parquet, 22)):
        done = call("division", trained, "--truth", path, "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert 0 <= found["auroc"] <= 1
        assert found["auroc"] == found["best"]["auroc"]
        assert (found["pairs"], found["known"]) == (24, known)
        assert len(found["epochs"]) == 4
        assert set(found["best"]["auroc_by_statistic"]) == {"loss", "oscillation"}


def test_the_builder_reads_what_a_run_believes(trained, tiny):
    state = json.loads((trained / "best" / "state.json").read_text())
    file = trained / "divisions" / f"{state['best_epoch']:05d}.safetensors"
    keys = (tiny / "now100k_precomp" / "train_ids.txt").read_text().split()
    expected = dict(zip(keys, load_file(file)["clean_prob"].tolist(), strict=True))
    assert read_clean_prob(trained, tiny) == expected


def test_division_in_words_has_a_line_an_epoch_on_request(trained, tiny, tmp_path):
    done = call("division", trained, "--truth", tiny / "truth.csv", "--every-epoch")
    assert done.stdout.count("AUROC of the clean probability") == 5
    assert "known pairs: 24 of 24, 15 matched, 9 not" in done.stdout
    last = done.stdout.splitlines()[-2:]
    assert last[0].startswith("AUROC of counting alone: copies 0.")
    assert last[1].startswith("captions that stand once on their site: ")
    assert call("rank-pairs", tiny, "-o", tmp_path / "pairs.csv").returncode == 0
    names = {"copies", "url_kind", "language", "rank_pairs", "lemon"}
    found = json.loads(call("division", trained, "--truth", tiny / "truth.csv",
                            "--pairs", tmp_path / "pairs.csv", "--json").stdout)  # fmt: skip
    assert set(found["counted"]["auroc"]) == names
    assert set(found["counted"]["once_auroc"]) == {*names, "clean_prob"}


def test_a_truth_file_that_cannot_be_used_ends_in_one_line(trained, tmp_path):
    for text, pattern in (
        ("page,matched\na,true\n", "expected key or url, and matched"),
        ("key,matched\ntrain_00000,perhaps\n", "row 2: matched is 'perhaps'"),
        ("key,matched\ntrain_00000,true\n", "all matched"),
        ("key,matched\nnobody,true\n", "none of its 1 lines names a key of the training pairs"),
    ):
        (tmp_path / "truth.csv").write_text(text)
        failed(call("division", trained, "--truth", tmp_path / "truth.csv"), pattern)
    failed(call("division", trained), "--truth: the run has neither data.truth nor a noise file")


def test_what_people_judged_is_a_truth(trained, tiny, tmp_path):
    """As `now-builder audit` writes it; what is unsure, or judged in two ways, is not known."""
    truth = pd.read_csv(tiny / "truth.csv")
    truth = truth[truth["key"].str.startswith("train")]
    pairs = zip(truth["key"], truth["matched"], strict=True)
    rows = [(key, "match" if matched else "mismatch") for key, matched in pairs]
    rows[0] = (rows[0][0], "unsure")
    rows.append((rows[1][0], "mismatch" if rows[1][1] == "match" else "match"))
    text = "".join(
        f"{key},http://planted.test/{key},train,en,{word},ann,2026-01-01T00:00:00Z,1.0,\n"
        for key, word in rows
    )
    path = tmp_path / "judged.csv"
    path.write_text(f"key,url,split,lang,matched,judge,at,seconds,note\n{text}")
    done = call("division", trained, "--truth", path, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    matched = truth["matched"].tolist()[2:]
    assert (found["known"], found["matched"]) == (22, sum(matched))


def test_a_division_that_cannot_be_compared_ends_in_one_line(trained, tiny, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run")
    file = run / "divisions" / "00001.safetensors"
    whole = load_file(file)
    for changes, pattern in (
        ({"clean_prob": None}, "no tensor clean_prob"),
        ({"clean_prob": np.ones(3)}, r"'clean_prob' is float64 \(3,\), expected 24 finite"),
        ({"clean_prob": np.full(24, np.nan)}, "'clean_prob' is float64 .*expected 24 finite"),
        ({"A.loss": np.ones((24, 1))}, r"'A.loss' is float64 \(24, 1\), expected 24"),
    ):
        found = {**whole, **changes}
        save_file({name: value for name, value in found.items() if value is not None}, file)
        failed(call("division", run, "--truth", tiny / "truth.csv"), pattern)


def test_only_epochs_divisions_are_compared_and_the_best_must_be_there(trained, tiny, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (run / "divisions" / "mine.safetensors").write_bytes(b"no tensors")
    done = call("division", run, "--truth", tiny / "truth.csv")
    assert done.returncode == 0, done.stderr
    best = json.loads((run / "best" / "state.json").read_text())["best_epoch"]
    (run / "divisions" / f"{best:05d}.safetensors").unlink()
    failed(call("division", run, "--truth", tiny / "truth.csv"), "no division of the best epoch")


def test_division_draws_the_auroc_over_the_epochs(trained, tiny, tmp_path):
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        path = tmp_path / f"auroc{suffix}"
        done = call("division", trained, "--truth", tiny / "truth.csv", "--picture", path)
        assert done.returncode == 0, done.stderr
        assert path.read_bytes().startswith(start)
    for name in ("clean probability", "loss", "oscillation"):
        assert f"<!-- {name} -->" in path.read_text()


QUICK = [
    "model.embed_dim=8", "model.word_dim=8", "model.similarity_dim=8", "train.batch=12",
    "train.warmup_epochs=1", "train.epochs=1", "method.class_hidden=8", "train.device=cpu",
    "train.pictures=false", "train.tensorboard=false",
]  # fmt: skip
QUICKLY = ["--config", "pc2-paper", "--on", "demo",
           *(part for value in QUICK for part in ("--set", value))]  # fmt: skip


def test_resume_goes_on_with_a_run_and_never_starts_one(tiny, tmp_path):
    run = tmp_path / "run"
    failed(call("train", tiny, run, *QUICKLY, "--resume"), "run: no run to resume;")
    assert not run.exists()
    assert call("train", tiny, run, *QUICKLY).returncode == 0
    done = call("train", tiny, run, *QUICKLY, "--resume", "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert (found["run"], found["epochs"], found["fresh"]) == (str(run), 2, 0)
    state = json.loads((run / "best" / "state.json").read_text())
    assert found["best_epoch"] == state["best_epoch"]
    assert found["best_dev"] == state["history"][-1]["dev"]
    failed(call("train", tiny, run, *QUICKLY, "--resume", "--force"), "expected only one of them")


def test_mistakes_end_in_one_line_and_exit_code_1(tiny, tmp_path, trained):
    run = tmp_path / "run"
    failed(call("train", tmp_path / "no", run), "no such release folder")
    failed(
        call("train", tiny, run, "--config", "pc2-papr"),
        "a preset .did you mean pc2-paper..; `pc2-baseline train --presets` lists",
    )
    failed(call("train", tiny, run, "--config", "sgr", "--on", "coc"), "did you mean coco")
    failed(call("train", tiny, run, "--set", "train.lr=fast"), "train.lr")
    failed(call("train", tiny, run, "--set", "train.speed=9"), "train.speed")
    failed(call("train", tiny, run, "--set", "method.name=pc3"), "method")
    failed(
        call("train", tiny, trained, "--config", "pc2-paper", "--on", "demo"),
        "a run of other settings",
    )
    failed(call("predict", run, "-o", tmp_path / "x.zip"), "run.toml: file not found")
    failed(call("predict", trained, "-o", tmp_path / "x.npy"), r"expected the name of a \.zip")
    failed(call("predict", trained, "-o", tmp_path / "x.zip", "--split", "val"), "expected one of")
    twice = (trained, trained.parent / "." / trained.name)
    failed(call("predict", *twice, "-o", tmp_path / "x.zip"), "a run is repeated")
    failed(call("evaluate", *twice), "a run is repeated")
    divide = ("division", trained, "--truth", tiny / "truth.csv")
    failed(
        call(*divide, "--picture", tmp_path / "x.gif"), r"--picture .*expected .* \.png or \.svg"
    )
    assert not run.exists(), "a training that cannot start leaves nothing behind"
    assert call("train").returncode == 2


def test_a_release_is_planted(tmp_path):
    folder = tmp_path / "release"
    sizes = ("--train", 8, "--dev", 2, "--test", 2, "--mismatch", 0.5)
    assert call("plant", folder, *sizes).returncode == 0
    assert (~pd.read_csv(folder / "truth.csv").matched).sum() == 4
    failed(call("plant", folder, *sizes, "--seed", 1), "another plan")
    failed(call("plant", tmp_path / "other", "--tokens", 2), "tokens 2, expected 4 or more")


def test_presets_are_listed():
    done = call("train", "--presets")
    assert done.returncode == 0
    assert all(f"{name}: {about}" in done.stdout for name, about in presets().items())
    assert "--on coco     published rSum, 1K: 522.5, 518.5, 508.4 at 0, 20, 50 %" in done.stdout
