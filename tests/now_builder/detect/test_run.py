"""The stage: one feature file from captures and weights, whatever interrupts it."""

import hashlib
import io
import multiprocessing
import os
import shutil
import time
from dataclasses import replace

import h5py
import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from now_builder.detect.model import weights as weights_module
from now_builder.detect.model.weights import read_card, write_weights
from now_builder.detect.run import detect, detect_shards
from now_builder.detect.settings import DetectSettings
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.feature_parts import parts_folder, read_parts
from now_builder.formats.features import open_features
from now_builder.formats.io import sha256_of
from now_builder.formats.shard import (
    HEIGHT,
    WIDTH,
    complete_shards,
    members_path,
    read_captures,
    read_rows,
    write_shard,
)
from tests.now_builder.detect.conftest import check_rows

_FILE = io.BytesIO()
Image.new("RGB", (WIDTH, HEIGHT), "teal").save(_FILE, "PNG")
OTHER_PICTURE = _FILE.getvalue()


@pytest.fixture(scope="module")
def drawn(draw, tmp_path_factory):
    """Four drawn pages of four sites in two shards, each a batch."""
    captures = tmp_path_factory.mktemp("drawn") / "captures"
    draw(captures, pages=4, sites=4)
    return captures


@pytest.fixture(scope="module")
def settings(weights):
    """Without words, which take half of the time; test_machines_of_two_kinds reads them."""
    return DetectSettings(weights=weights, batch_size=1, threads=1, device="cpu", words=False)


@pytest.fixture(scope="module")
def whole(drawn, settings, tmp_path_factory):
    """An undisturbed run."""
    features = tmp_path_factory.mktemp("f") / "features.h5"
    summary = detect(drawn, features, settings)
    assert (summary.pages, summary.fresh) == (4, 4)
    assert "4 pages" in str(summary)
    return features


def test_every_ok_page_and_no_other_has_its_rows(drawn, whole, weights):
    ok = [row.key for row in read_rows(drawn) if row.status == "ok"]
    with open_features(whole) as features:
        assert features.keys == ok
        attributes = features.attributes
        batch = features.read(slice(None))
    assert attributes["weights_sha256"] == sha256_of(weights)
    assert attributes["input_size"] == "360x640"
    assert '"navigation bar"' in attributes["classes"]
    check_rows(batch, 4)
    assert not parts_folder(whole).exists()


def start(*work, **environment):
    """Start a `detect` in a process of its own, forked from this one, which has torch."""

    def run():
        os.environ.update(environment)
        detect(*work)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    return process


def test_a_kill_changes_nothing(drawn, whole, settings, tmp_path):
    features = tmp_path / "features.h5"
    process = start(drawn, features, settings)
    deadline = time.monotonic() + 120
    while len(read_parts(features)) < 2 and time.monotonic() < deadline:
        time.sleep(0.0005)
    process.kill()
    process.join()
    (tmp_path / ".features.h5.1.tmp").write_bytes(b"as if killed while parts were merged")
    left = 0 if features.exists() else 4 - len(read_parts(features))
    summary = detect(drawn, features, settings)
    assert (summary.pages, summary.fresh) == (4, left)
    assert features.read_bytes() == whole.read_bytes()
    assert not list(tmp_path.glob(".*"))
    assert detect(drawn, features, settings).fresh == 0


def test_torn_batches_are_named_and_done_again(drawn, whole, settings, tmp_path, caplog):
    """As after a power cut: empty, half there, of the right length with nothing in it."""
    features = tmp_path / "features.h5"
    detect_shards(drawn, features, settings, 0, 1)
    torn = [read_parts(features)[number] for number in (0, 2, 3)]
    content = torn[1].read_bytes()
    torn[0].write_bytes(b"")
    torn[1].write_bytes(content[: len(content) // 2])
    torn[2].write_bytes(bytes(len(content)))
    assert detect(drawn, features, settings).fresh == 3
    assert all(f"{part}: torn" in caplog.text for part in torn)
    assert features.read_bytes() == whole.read_bytes()


def test_two_processes_of_torchrun_write_one_file_together(
    drawn, whole, settings, tmp_path, monkeypatch
):
    features = tmp_path / "features.h5"
    other = start(drawn, features, settings, RANK="1", WORLD_SIZE="2", LOCAL_RANK="1")
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert detect(drawn, features, settings).fresh == 2
    other.join(300)
    assert other.exitcode == 0
    assert features.read_bytes() == whole.read_bytes()
    assert not parts_folder(features).exists()


def test_shares_wait_for_nobody_and_the_last_writes_the_file(drawn, whole, settings, tmp_path):
    features = tmp_path / "features.h5"
    last = settings.model_copy(update={"shards_from": "1/2"})
    summary = detect(drawn, features, last)
    assert (summary.fresh, summary.missing) == (2, 2)
    assert "2 pages are left to other shares" in str(summary)
    assert not features.exists()
    again = detect(drawn, features, last)
    assert (again.fresh, again.missing) == (0, 2)
    first = settings.model_copy(update={"shards_from": "0/2"})
    assert detect(drawn, features, first).pages == 4
    assert features.read_bytes() == whole.read_bytes()
    assert detect(drawn, features, last).fresh == 0
    with pytest.raises(ConfigError, match="--force"):
        detect(drawn, features, first, force=True)
    for text in ("2/2", "x", "-1/2"):
        with pytest.raises(ConfigError, match=f"--shards-from {text}"):
            detect(drawn, features, settings.model_copy(update={"shards_from": text}))


@pytest.mark.usefixtures("no_locks")
def test_without_locks_shares_are_refused_and_one_process_detects(drawn, whole, settings, tmp_path):
    with pytest.raises(ConfigError, match=r"f\.h5: cannot be locked \(No locks .*in one process"):
        detect(drawn, tmp_path / "f.h5", settings.model_copy(update={"shards_from": "0/2"}))
    detect(drawn, tmp_path / "f.h5", settings)
    assert (tmp_path / "f.h5").read_bytes() == whole.read_bytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")
def test_workers_of_a_ray_cluster_write_what_one_process_does(drawn, whole, settings, tmp_path):
    features = tmp_path / "features.h5"
    on_ray = settings.model_copy(update={"engine": "ray", "worker_cpus": 0.5})
    assert detect(drawn, features, on_ray).fresh == 4
    with h5py.File(features) as one, h5py.File(whole) as other:
        assert all(np.array_equal(one[name][:], other[name][:]) for name in other)
    assert not parts_folder(features).exists()


def captured_again(captures, folder, changed=()):
    """Copy captures; the screenshots of some keys are others then, as after `crawl --force`."""
    shutil.copytree(captures, folder)
    for shard in complete_shards(folder):
        pages = [
            replace(page, screenshot=OTHER_PICTURE) if page.key in changed else page
            for page in read_captures(folder, shards=[shard])
        ]
        hashes = {page.key: hashlib.sha256(page.screenshot).hexdigest() for page in pages}
        rows = [replace(row, sha256=hashes.get(row.key)) for row in read_rows(folder, shard)]
        write_shard(folder, shard, rows, pages)
    return folder


def test_another_crawl_under_the_same_keys_asks_for_force(drawn, settings, tmp_path):
    """Of a whole file, of parts, and of one share: nothing of the old pages is taken over."""
    old = captured_again(drawn, tmp_path / "old")
    new = captured_again(drawn, tmp_path / "new", ["00000_0000", "00001_0001"])
    features = tmp_path / "f.h5"
    detect(old, features, settings)
    before = features.read_bytes()
    refused = r"f\.h5: not made from the screenshots.*captures_sha256 is '.*--force"
    with pytest.raises(FormatError, match=refused):
        detect(new, features, settings)
    with pytest.raises(FormatError, match="no such captures"):
        detect(tmp_path / "none", features, settings, force=True)
    assert features.read_bytes() == before
    assert detect(new, features, settings, force=True).fresh == 4
    detect_shards(old, tmp_path / "g.h5", settings, 0)
    refused = r"00000_0000\.npz: not made from the screenshots"
    for one in (settings, settings.model_copy(update={"shards_from": "1/2"})):
        with pytest.raises(FormatError, match=refused):
            detect(new, tmp_path / "g.h5", one)
    with pytest.raises(FormatError, match=refused):
        detect_shards(new, tmp_path / "g.h5", settings, 0)


def test_a_crawl_that_goes_on_does_not_ask_for_force(drawn, settings, tmp_path):
    """Shards are added, and a page that had failed is there: no page is done again."""
    whole, captures = captured_again(drawn, tmp_path / "whole"), tmp_path / "captures"
    shutil.copytree(whole, captures)
    for path in captures.glob("00001*"):
        path.unlink()
    rows, pages = read_rows(whole, 0), list(read_captures(whole, shards=[0]))
    failed = replace(rows[-2], status="failed", sha256=None)
    write_shard(captures, 0, [*rows[:-2], failed, rows[-1]], pages[:-1])
    features = tmp_path / "f.h5"
    assert detect(captures, features, settings).pages == 1
    for path in whole.glob("0000*"):
        shutil.copy(path, captures)
    assert detect(captures, features, settings).fresh == 3
    detect(whole, tmp_path / "expected.h5", settings)
    with open_features(features) as one, open_features(tmp_path / "expected.h5") as other:
        assert one.attributes == other.attributes
        assert set(one.keys) == set(other.keys)


def test_other_weights_or_settings_ask_for_force(drawn, whole, weights, settings, tmp_path):
    features = tmp_path / "features.h5"
    features.write_bytes(whole.read_bytes())
    other = tmp_path / "other.safetensors"
    state = load_file(weights)
    state["projection.bias"] += 1
    write_weights(other, state, read_card(weights))
    for name, changed in {
        "weights_sha256": {"weights": other},
        "text_source": {"text_source": "none"},
        "precision": {"precision": "bf16"},
        "regions": {"regions": "dom"},
    }.items():
        with pytest.raises(ConfigError, match=rf"made with {name} .*--force"):
            detect(drawn, features, settings.model_copy(update=changed))
    detect_shards(drawn, tmp_path / "parts.h5", settings.model_copy(update=changed), 0)
    with pytest.raises(ConfigError, match=r"parts\.h5: made with regions 'dom', now 'proposals'"):
        detect(drawn, tmp_path / "parts.h5", settings)
    new = settings.model_copy(update={"weights": other})
    assert detect(drawn, features, new, force=True).fresh == 4
    with open_features(features) as now:
        assert now.attributes["weights_sha256"] == sha256_of(other)
    with pytest.raises(ConfigError, match="file not found"):
        detect(drawn, features, DetectSettings(weights=tmp_path / "none.safetensors"))


def test_machines_of_two_kinds_make_one_file(draw, settings, tmp_path, monkeypatch):
    """The kind on which a file is begun decides what ``auto`` means for its shares and resumes."""
    drawn, settings = (
        tmp_path / "captures",
        settings.model_copy(update={"words": True, "batch_size": 4}),
    )
    draw(drawn, pages=2, sites=2)
    (tmp_path / "cpu").write_text("flags : fpu avx512_bf16")
    monkeypatch.setattr(weights_module, "_CPU_INFO", tmp_path / "cpu")
    shares = [settings.model_copy(update={"shards_from": f"{number}/2"}) for number in (0, 1)]
    assert detect(drawn, tmp_path / "f.h5", shares[0]).missing == 1
    (tmp_path / "cpu").write_text("flags : fpu avx2")
    for changed, problem in (
        ({"words": False}, "with words '.*', now without"),
        ({"precision": "bf16"}, "with precision 'mixed', now 'bf16'"),
    ):
        with pytest.raises(ConfigError, match=rf"/f\.h5: made {problem}. Give --force"):
            detect(drawn, tmp_path / "f.h5", shares[1].model_copy(update=changed))
    assert detect(drawn, tmp_path / "f.h5", shares[1]).pages == 2
    assert detect(drawn, tmp_path / "f.h5", settings).fresh == 0
    (tmp_path / "asked").mkdir()
    detect(drawn, tmp_path / "asked/f.h5", settings.model_copy(update={"precision": "mixed"}))
    assert (tmp_path / "asked/f.h5").read_bytes() == (tmp_path / "f.h5").read_bytes()


def test_half_precision_halves_the_regions_only(drawn, whole, settings, tmp_path):
    features = tmp_path / "half.h5"
    detect(drawn, features, settings.model_copy(update={"half": True}))
    with h5py.File(features) as half, h5py.File(whole) as full:
        assert half["regions"].dtype == np.float16
        assert half["boxes"].dtype == np.float32
        np.testing.assert_allclose(half["regions"][:], full["regions"][:], atol=0.02, rtol=2e-3)


def test_a_torn_tar_and_a_torn_screenshot_name_the_file(drawn, settings, tmp_path):
    for name, spoil in (
        ("torn", lambda b: b[: len(b) // 2]),
        ("png", lambda b: b.replace(b"IDAT", b"XDAT")),
    ):
        captures = tmp_path / name
        captures.mkdir()
        for path in drawn.iterdir():
            (captures / path.name).write_bytes(path.read_bytes())
        tar = members_path(captures, 0)
        tar.write_bytes(spoil(tar.read_bytes()))
        with pytest.raises(FormatError, match=r"readable|members|not a picture"):
            detect(captures, tmp_path / f"{name}.h5", settings)
