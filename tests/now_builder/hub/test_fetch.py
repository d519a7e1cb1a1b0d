"""The authors' archive from a hub: cut, torn, moved, refused; and trained on."""

import io
import json
import shutil
import signal
import time
import zipfile

import numpy as np
import pytest

from now_builder.formats.captions import to_line
from now_builder.hub import fetch
from tests.pc2_baseline.commands import call

NAME = "NJUyued/NoW"
SIZES = {"train": 24, "dev": 8, "test": 8}
RANDOM = np.random.default_rng(0)


def archive(folder="h5100k_precomp", above="NoW/", extra=(), splits=tuple(SIZES), padding=0):
    """The authors' layout as a zip of their kind."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("padding", bytes(padding))
        for split in splits:
            size = SIZES[split]
            regions = io.BytesIO()
            np.save(regions, RANDOM.standard_normal((size, 36, 768)).astype(np.float16))
            file.writestr(f"{above}{folder}/{split}_ims.npy", regions.getvalue())
            captions = [[4 + row % 5, 5 + row % 3, 4] for row in range(size)]
            lines = "".join(f"{to_line(ids)}\n" for ids in captions)
            file.writestr(f"{above}{folder}/{split}_caps_jieba.txt", lines)
            file.writestr(f"{above}{folder}/{split}_ids.txt", "".join("7\n" for _ in captions))
        words = ["<pad>", "<start>", "<end>", "<unk>", *(f"word{n}" for n in range(5))]
        tree = {"word2idx": {word: n for n, word in enumerate(words)}, "idx": len(words)}
        tree["idx2word"] = {str(n): word for n, word in enumerate(words)}
        file.writestr(f"{above}vocab/now100k_precomp_vocab_jieba.json", json.dumps(tree))
        file.writestr("__MACOSX/vocab/._now", b"junk")
        for name in extra:
            file.writestr(name, b"x")
    return packed.getvalue()


@pytest.fixture(scope="module")
def whole():
    """An archive of some of the chunks of 10 MiB that the hub's client writes."""
    return archive(padding=24 << 20)


def test_a_download_cut_in_the_middle_goes_on_there_and_trains(hub, command, run, tmp_path, whole):
    hub.files[NAME] = {"NoW.zip": whole}
    folder, half = tmp_path / "NoW", len(whole) // 2
    hub.cut = half
    with command("fetch-now", folder) as process:
        deadline = time.monotonic() + 60
        while sum(path.stat().st_size for path in folder.glob(".NoW.zip.*")) < 10 << 20:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped: downloaded bytes are kept; run the same command again to resume" in err
    hub.waiting.set()
    (part,) = folder.glob(".NoW.zip.*")
    kept = part.stat().st_size
    assert 0 < kept <= half
    code, out, err = run("fetch-now", folder)
    assert code == 0, err
    assert out == f"{folder}: train 24, dev 8, test 8 pairs; jieba\n"
    assert hub.asked[-1][2] == f"bytes={kept}-", "only the rest is asked for"
    assert json.loads((folder / "fetched.json").read_text())["repository"] == NAME
    assert not list(folder.glob(".*")), "the archive is gone"
    asked = len(hub.asked)
    assert "downloaded already" in run("fetch-now", folder)[1]
    assert len(hub.asked) == asked, "what stands is not asked for again"
    done = call(
        "train", folder, tmp_path / "run", "--config", "sgr", "--set", "train.epochs=1",
        "--set", "model.embed_dim=16", "--set", "model.word_dim=8",
        "--set", "model.similarity_dim=8",
    )  # fmt: skip
    assert not done.returncode, done.stderr


@pytest.mark.parametrize(("folder", "above"), [("now100k_precomp", ""), ("h5100k_precomp", "a/b/")])
def test_both_folder_names_are_unpacked_wherever_they_stand(hub, run, tmp_path, folder, above):
    hub.files[NAME] = {"NoW.zip": archive(folder, above, extra=["../vocab/evil", "/etc/x"])}
    out, nowhere = tmp_path / "out" / "NoW", "http://127.0.0.1:9"
    code, _, err = run("fetch-now", out, "--endpoint", hub.address, HF_ENDPOINT=nowhere)
    assert code == 0, err
    assert (out / folder / "train_ims.npy").exists()
    assert {path.name for path in out.parent.iterdir()} == {"NoW"}, "nothing leads out"


@pytest.mark.parametrize(
    ("words", "more", "line"),
    [([], {}, "the hub answered 404: data set, revision or file not found"),
     (["--endpoint", "http://127.0.0.1:9"], {}, "the hub cannot be reached"),
     (["--endpoint", "http://[::1"], {}, "the hub cannot be reached (Invalid port"),
     ([], {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set")],
)  # fmt: skip
def test_what_cannot_be_had_is_said_in_one_line(run, tmp_path, words, more, line):
    (tmp_path / "fetched.json").touch()
    code, out, err = run("fetch-now", tmp_path, "--force", *words, **more)
    assert (code, out, err.count("\n")) == (1, "", 1), err
    assert line in err
    assert (tmp_path / "fetched.json").exists(), "what is there stays"


def test_a_body_of_another_size_than_was_named_is_told_in_a_line(hub, tmp_path, whole):
    hub.files[NAME] = {"NoW.zip": whole}
    remote = fetch._find(hub.address)
    hub.files[NAME] = {"NoW.zip": b"<html>"}
    with pytest.raises(
        fetch.NowError, match=rf"size {len(whole)} but has size 6 .*\. Run the same"
    ):
        fetch._download(remote, tmp_path / "part")


def test_other_bytes_than_the_hubs_are_refused_and_removed(hub, run, tmp_path, whole, monkeypatch):
    hub.files[NAME] = {"NoW.zip": whole}
    folder = tmp_path / "NoW"
    remote = fetch._find(hub.address)
    folder.mkdir()
    part = folder / f".NoW.zip.{remote.fetched.sha256[:12]}.part"
    part.write_bytes(b"x" * 1000)
    code, _, err = run("fetch-now", folder)
    assert code == 1
    assert "SHA-256 differs from the hub's. It was removed" in err.splitlines()[-1]
    assert run("fetch-now", folder)[0] == 0


def test_an_archive_of_something_else_is_refused(hub, run, tmp_path, whole):
    with zipfile.ZipFile(io.BytesIO(whole)) as file:
        member = next(one for one in file.infolist() if one.filename.endswith(".json"))
    start = member.header_offset + 30 + len(member.filename)
    damaged = whole[:start] + b"\xff" * member.compress_size + whole[start + member.compress_size :]
    for content, line in [
        (b"no zip", "not a complete zip"),
        (archive(splits=["train"]), "dev_caps"),
        (damaged, "not a complete zip"),
    ]:
        hub.files[NAME] = {"NoW.zip": content}
        code, _, err = run("fetch-now", tmp_path / "NoW")
        assert code == 1
        assert line in err.splitlines()[-1]
        assert not (tmp_path / "NoW" / "fetched.json").exists()
    assert not list((tmp_path / "NoW").glob(".*")), "neither that archive is kept nor those before"


def test_a_disk_too_small_is_told_before_the_download(hub, tmp_path, whole, monkeypatch):
    hub.files[NAME] = {"NoW.zip": whole}
    usage = shutil.disk_usage(tmp_path)._replace(free=len(whole) * 2)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(fetch.NowError, match=r"MB free, expected .* for the archive"):
        fetch.fetch_now(tmp_path / "NoW", hub.address)
    assert not [path for method, path, _ in hub.asked if method == "GET"]
