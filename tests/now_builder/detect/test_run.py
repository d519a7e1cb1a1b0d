"""The stage: one feature file from captures and weights, whatever interrupts it."""

import os
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest

from now_builder.detect.run import detect
from now_builder.detect.settings import DetectSettings, TrainDetectorSettings
from now_builder.detect.train import train_detector
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.atomic import sha256_of
from now_builder.formats.features import open_features, parts_folder, read_parts
from now_builder.formats.shard import members_path, read_rows


@pytest.fixture(scope="module")
def weights(drawn, tmp_path_factory):
    path = tmp_path_factory.mktemp("w") / "w.safetensors"
    settings = TrainDetectorSettings(steps=3, batch_size=2, threads=1, device="cpu")
    train_detector(drawn, path, settings)
    return path


@pytest.fixture(scope="module")
def settings(weights):
    return DetectSettings(weights=weights, batch_size=3, threads=1, device="cpu")


@pytest.fixture(scope="module")
def whole(drawn, settings, tmp_path_factory):
    """An undisturbed run."""
    features = tmp_path_factory.mktemp("f") / "features.h5"
    summary = detect(drawn, features, settings)
    assert (summary.pages, summary.fresh) == (24, 24)
    assert "24 pages" in str(summary)
    return features


def same(a, b):
    with h5py.File(a) as one, h5py.File(b) as two:
        assert set(one) == set(two)
        assert dict(one.attrs) == dict(two.attrs)
        for name in one:
            assert np.array_equal(one[name][:], two[name][:]), name
    return True


def test_every_ok_page_and_no_other_has_its_rows(drawn, whole, weights):
    ok = [row.key for row in read_rows(drawn) if row.status == "ok"]
    with open_features(whole) as features:
        assert features.keys == ok
        attributes = features.attributes
        batch = features.read(slice(None))
    assert attributes["weights_sha256"] == sha256_of(weights)
    assert attributes["detector"] == "apt-style"
    assert attributes["size"] == "tiny"
    assert attributes["text_encoder"] == "hash:0"
    assert attributes["input_size"] == "180x320"
    assert attributes["apt_mode"] == "shift"
    assert attributes["text_source"] == "dom"
    assert '"navigation bar"' in attributes["classes"]
    assert np.isfinite(batch.regions).all()
    assert (np.abs(batch.regions).sum(axis=2) > 0).all()
    assert not parts_folder(whole).exists()


def test_bare_detect_without_weights_is_refused(drawn, tmp_path):
    with pytest.raises(ConfigError, match="train-detector"):
        detect(drawn, tmp_path / "f.h5", DetectSettings())
    missing = DetectSettings(weights=tmp_path / "none.safetensors")
    with pytest.raises(ConfigError, match="no such weights"):
        detect(drawn, tmp_path / "f.h5", missing)


def test_a_complete_file_ends_the_stage_at_once(drawn, whole, settings):
    before = whole.stat().st_mtime_ns
    assert detect(drawn, whole, settings).fresh == 0
    assert whole.stat().st_mtime_ns == before


_PROGRAM = """
import sys
from pathlib import Path
from now_builder.detect.settings import DetectSettings
from now_builder.detect.run import detect
detect(Path(sys.argv[1]), Path(sys.argv[2]),
    DetectSettings(weights=Path(sys.argv[3]), batch_size=3, threads=1, device="cpu"))
"""


@pytest.mark.parametrize("parts", [1, 4])
def test_a_kill_in_the_middle_changes_nothing(drawn, whole, settings, tmp_path, parts):
    features = tmp_path / "features.h5"
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(drawn), str(features), str(settings.weights)],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 120
    while len(read_parts(features)) < parts and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not features.exists()
    left = 24 - 3 * len(read_parts(features))
    assert detect(drawn, features, settings).fresh == left < 24
    assert same(features, whole)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")
def test_workers_of_a_ray_cluster_write_what_one_process_does(drawn, whole, settings, tmp_path):
    features = tmp_path / "features.h5"
    on_ray = settings.model_copy(update={"engine": "ray", "workers": 2, "worker_cpus": 1.0})
    assert detect(drawn, features, on_ray).fresh == 24
    assert same(features, whole)
    assert not parts_folder(features).exists()


def test_pages_crawled_later_are_added(drawn, whole, settings, tmp_path):
    """The first shard alone, then both: the same rows as both at once, to rounding."""
    captures = tmp_path / "captures"
    captures.mkdir()
    for path in sorted(drawn.iterdir()):
        if not path.name.startswith("00001"):
            (captures / path.name).write_bytes(path.read_bytes())
    features = tmp_path / "features.h5"
    assert detect(captures, features, settings).pages == 12
    for path in sorted(drawn.glob("00001*")):
        (captures / path.name).write_bytes(path.read_bytes())
    summary = detect(captures, features, settings)
    assert (summary.pages, summary.fresh) == (24, 12)
    with open_features(features) as ours, open_features(whole) as theirs:
        assert ours.keys == theirs.keys
        np.testing.assert_allclose(ours.dataset[:], theirs.dataset[:], atol=1e-2)


def test_other_weights_or_settings_ask_for_force(drawn, whole, weights, settings, tmp_path):
    features = tmp_path / "features.h5"
    features.write_bytes(whole.read_bytes())
    other = tmp_path / "other.safetensors"
    training = TrainDetectorSettings(steps=1, batch_size=2, threads=1, device="cpu", seed=1)
    train_detector(drawn, other, training)
    changed = settings.model_copy(update={"weights": other})
    with pytest.raises(ConfigError, match=r"weights_sha256.*--force"):
        detect(drawn, features, changed)
    with pytest.raises(ConfigError, match=r"text_source.*--force"):
        detect(drawn, features, settings.model_copy(update={"text_source": "none"}))
    assert detect(drawn, features, changed, force=True).fresh == 24
    with open_features(features) as now:
        assert now.attributes["weights_sha256"] == sha256_of(other)


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
        with pytest.raises(FormatError, match=r"readable|members"):
            detect(captures, tmp_path / f"{name}.h5", settings)
