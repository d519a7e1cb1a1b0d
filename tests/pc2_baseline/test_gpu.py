"""What the baseline computes on a GPU is what it computes on the CPU; NOW_TEST_DEVICE names it."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from now_builder.formats.captions import make_vocabulary, write_vocabulary
from pc2_baseline.config import read_settings
from pc2_baseline.method_section import METHODS as KNOWN
from pc2_baseline.networks.attention import ImramSimilarity, MaxSimilarity, ScanSimilarity
from pc2_baseline.networks.encoders import CaptionCodes, CaptionEncoder, ImageCodes, ImageEncoder
from pc2_baseline.networks.fused import unit
from pc2_baseline.networks.saf import SafSimilarity
from pc2_baseline.networks.sgr import SgrSimilarity
from pc2_baseline.networks.similarity import MatchingNetwork, MemoryBudget
from pc2_baseline.runs.train import train
from pc2_baseline.training.run_folder import pick_device

pytestmark = pytest.mark.gpu

DIM, NODE, WIDTH, WORDS = 64, 32, 20, 50
LENGTHS = torch.tensor([7, 2, 30, 1, 12, 19, 5, 40])
HAS_MIXTURES = importlib.util.find_spec("sklearn") is not None
KINDS = {
    "sgr": lambda budget: SgrSimilarity(DIM, NODE, 3, budget),
    "saf": lambda budget: SafSimilarity(DIM, NODE, budget),
    "scan_t2i": lambda budget: ScanSimilarity("t2i", 9.0, 6.0, budget),
    "scan_i2t": lambda budget: ScanSimilarity("i2t", 4.0, 5.0, budget),
    "imram": lambda budget: ImramSimilarity(DIM, 3, 9.0, budget),
    "maxsim": MaxSimilarity,
}


def apart(found, expected):
    """Relative distance, in the norm; a NaN is infinitely far."""
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    distance = float((found - expected).norm() / expected.norm())
    return distance if np.isfinite(distance) else np.inf


def scored(kind, budget, device, number=torch.float32):
    """Scores of a block and all gradients, on weights and inputs that are always the same."""
    torch.manual_seed(0)
    similarity = KINDS[kind](budget).double()
    there = torch.arange(40)[None, :, None] < LENGTHS[:, None, None]
    regions, words = unit(torch.randn(6, 36, DIM).double()), unit(torch.randn(8, 40, DIM).double())
    given = [regions, words * there, unit(torch.randn(6, DIM).double()),
             unit(torch.randn(8, DIM).double())]  # fmt: skip
    regions, words, image, caption = (value.to(device, number).requires_grad_() for value in given)
    similarity = similarity.to(device, number)
    scores = similarity(ImageCodes(regions, image), CaptionCodes(words, caption, LENGTHS))
    weights = torch.randn(6, 8, generator=torch.Generator().manual_seed(1)).to(device)
    (scores * weights).sum().backward()
    parameters = [p.grad for p in similarity.parameters() if p.grad is not None]
    gradients = [regions.grad, words.grad, image.grad, caption.grad, *parameters]
    return scores, torch.cat([gradient.flatten() for gradient in gradients])


@pytest.mark.parametrize("keep_mb", [0, 4096], ids=["recomputed", "kept"])
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_in_float32_are_those_of_the_cpu_in_float64(device, kind, keep_mb):
    expected = scored(kind, MemoryBudget(), "cpu", torch.float64)
    found = scored(kind, MemoryBudget(keep_mb=keep_mb), device)
    assert apart(found[0], expected[0]) < 1e-5
    assert apart(found[1], expected[1]) < 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_in_bfloat16_stay_near_and_learn_in_the_same_direction(device, kind):
    expected = scored(kind, MemoryBudget(), "cpu", torch.float64)
    scores, gradient = scored(kind, MemoryBudget(precision="bf16"), device)
    assert scores.dtype == torch.float32
    assert apart(scores, expected[0]) < 0.02
    assert torch.cosine_similarity(gradient.double().cpu(), expected[1], dim=0) > 0.98


def test_the_whole_network_gives_the_scores_and_gradients_of_the_cpu(device, full_float32):
    torch.manual_seed(0)
    net = MatchingNetwork(
        ImageEncoder(WIDTH, DIM, 0.0),
        CaptionEncoder(WORDS, 12, DIM, 0.0),
        KINDS["sgr"](MemoryBudget()),
    )
    regions = torch.randn(6, 36, WIDTH)
    tokens = torch.randint(1, WORDS, (8, 40))
    tokens[torch.arange(40) >= LENGTHS[:, None]] = 0
    found = []
    for where in ("cpu", device):
        net.zero_grad()
        net.to(where)
        codes = net.encode_captions(tokens.to(where), LENGTHS)
        scores = net.score(net.encode_images(regions.to(where)), codes)
        scores.square().sum().backward()
        gradients = torch.cat([p.grad.flatten().cpu() for p in net.parameters()])
        found.append((scores.detach().cpu(), gradients))
    assert apart(found[1][0], found[0][0]) < 1e-4
    assert apart(found[1][1], found[0][1]) < 1e-3


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A release as the authors laid theirs out: arrays and lines, no Parquet."""
    release = tmp_path_factory.mktemp("published")
    folder, draw = release / "now100k_precomp", np.random.default_rng(0)
    folder.mkdir()
    for split, pairs in (("train", 24), ("dev", 8), ("test", 8)):
        topics = draw.integers(0, 4, pairs)
        regions = draw.normal(size=(pairs, 36, 8)) + 3 * np.eye(8)[topics][:, None]
        np.save(folder / f"{split}_ims.npy", regions.astype(np.float32))
        lines = [",".join(map(str, 4 + topic * 5 + draw.integers(0, 5, draw.integers(2, 9))))
                 for topic in topics]  # fmt: skip
        (folder / f"{split}_caps_jieba.txt").write_text("\n".join(lines) + "\n")
    vocabulary = make_vocabulary((f"w{word}" for word in range(20)), "jieba", "drawn", "train")
    write_vocabulary(release / "vocab" / "now100k_precomp_vocab_jieba.json", vocabulary)
    return release


@pytest.fixture
def deterministic():
    """Leave the process as it was: a training asks for algorithms that repeat."""
    yield
    torch.use_deterministic_algorithms(mode=False)


def run(release, folder, device, method, *more):
    config = {"pc2": "pc2-paper", "triplet": "sgr"}.get(method, method)
    own = ["method.classes=8", "method.class_hidden=16"] if method.startswith("pc2") else []
    settings = [
        "model.embed_dim=32", "model.word_dim=24", "model.similarity_dim=16", "train.batch=8",
        "train.warmup_epochs=1", "train.epochs=2", "train.lr=1e-3", "train.tensorboard=false",
        "train.pictures=false", "data.tokenizer=jieba", f"train.device={json.dumps(str(device))}",
    ]  # fmt: skip
    train(release, folder, read_settings(config, [*settings, *own, *more]))
    return {
        f"{file.name.partition('.')[0]}/{name}": value
        for file in (folder / "last").glob("*.safetensors")
        for name, value in load_file(file).items()
    }


def same(one, two):
    assert one.keys() == two.keys()
    assert one
    for name, value in one.items():
        assert torch.equal(value, two[name]), name


_MIXTURES = pytest.mark.skipif(not HAS_MIXTURES, reason="no scikit-learn")
METHODS = ["triplet", *(pytest.param(name, marks=_MIXTURES) for name in ("pc2", "pc2-released"))]


@pytest.mark.parametrize("method", METHODS)
def test_a_training_repeats_bit_for_bit(published, tmp_path, device, deterministic, method):
    kind = f"model.precision={'bf16' if method == 'pc2' else 'fp32'}"
    one, two = (run(published, tmp_path / name, device, method, kind) for name in ("one", "two"))
    same(one, two)


@pytest.mark.parametrize("method", METHODS)
def test_resume_equals_never_stopped(
    published, tmp_path, device, deterministic, monkeypatch, method
):
    whole = run(published, tmp_path / "whole", device, method)
    # A first epoch that is followed by a failure, as a kill would leave it.
    kind = resolve_name(f"pc2_baseline.methods.{KNOWN[method]}")
    fit = kind.fit_epoch

    def stop_late(self, pairs, epoch):
        if epoch == 2:
            raise KeyboardInterrupt
        return fit(self, pairs, epoch)

    monkeypatch.setattr(kind, "fit_epoch", stop_late)
    with pytest.raises(KeyboardInterrupt):
        run(published, tmp_path / "stopped", device, method)
    monkeypatch.setattr(kind, "fit_epoch", fit)
    same(whole, run(published, tmp_path / "stopped", device, method))


def test_local_rank_picks_the_device(device, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    expected = torch.device("cuda", 0) if device.type == "cuda" else device
    assert pick_device(device.type) == expected


def test_messages_of_one_process_come_back_as_they_were(device, tmp_path):
    """NCCL on a GPU, Gloo on the CPU: sums, gathered shares, a control group beside it."""
    script = Path(__file__).with_name("one_rank.py")
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    alone |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}  # there may be no other
    done = subprocess.run(
        [sys.executable, script, device.type, tmp_path / "store"], capture_output=True, text=True,
        timeout=120, check=False, env={**os.environ, **alone},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "agrees" in done.stdout


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_dual_encoder_gives_the_vectors_of_the_cpu(
    device, full_float32, encoders, tmp_path, precision
):
    from PIL import Image

    from now_builder.dual_encoder import PictureEncoder

    folder = encoders.save(encoders.siglip, tmp_path / "model", ["cats", "and", "dogs"])
    pixels = np.random.default_rng(0).integers(0, 256, (3, 128, 72, 3), dtype=np.uint8)
    pictures = [Image.fromarray(each) for each in pixels]
    expected = PictureEncoder(str(folder), torch.device("cpu"))
    found = PictureEncoder(str(folder), device, precision)
    limit = 1e-4 if precision == "fp32" else 0.05
    assert apart(found.images(pictures), expected.images(pictures)) < limit
