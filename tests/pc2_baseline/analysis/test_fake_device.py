"""What runs on a GPU mixes no devices, waits for it only where it must, and fits its memory."""

import gc

import numpy as np
import pytest
import torch

from now_builder.detect.base import Page
from now_builder.detect.model.apt import TINY, AptDetector
from now_builder.detect.model.text_encoder import HashedNgrams
from now_builder.detect.regions.extraction import AptExtractor
from pc2_baseline.analysis.fake_device import FAKE, MixedDevicesError, fake_gpu
from pc2_baseline.config import read_settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.method_section import METHODS
from pc2_baseline.methods import make_method
from pc2_baseline.runs.plan import Data
from pc2_baseline.training.method import Sizes

# To a network on the fake device nothing can be loaded, and PyTorch says so.
pytestmark = pytest.mark.filterwarnings("ignore:for .* copying from a non-meta parameter")

GIB = 2**30
WAITS = {
    "copy in learner.step": "the loss and the gradient's norm of a step: a broken one is not taken",
    "copy in pseudo_caption.distinct": "how many captions there are to score",
    "nonzero in active_cells.backward": "which cells have a gradient",
    "copy in active_cells.backward": "the lengths of their captions",
    "item in active_cells.active_share": "whether the next block scores its active cells alone",
    "copy in sps._proxies": "whose captions are read for noisy images",
    "item in l2rm.sinkhorn": "iterations that stop by what they reach",
}
"""Where the host may wait in a step, and what for."""

ONCE = {
    "peers.evaluate_pairs", "coteaching.pair_losses", "cream._divide", "decl.<dictcomp>",
    "retrieval.similarity_matrix", "learner._stored", "crcl.fit_epoch", "gsc.fit_epoch",
    "in2r.<listcomp>", "learner.<listcomp>", "bank.write_rows", "mscn._losses", "npc.fit_epoch",
    "npc.nearest",
}  # fmt: skip
"""Where it waits after an epoch, a division or a block of scores; released code in each step."""

STEPS = ["train.warmup_epochs=1", "train.epochs=2"]
NOISY = "method.noisy_from_epoch=1"
VARIANTS = [
    ("bicro", [NOISY]), ("contrastive", []), ("crcl", ["train.epochs=4", "method.schedules=[1]"]),
    ("contrastive/demo", ["model.image_pooling=gpo", "model.caption_encoder=gru"]),
    ("cream", ["method.hard_from_epoch=0", NOISY]), ("crossfit", ["method.folds=2"]),
    ("decl", []), ("gsc", []), ("in2r", ["method.neighbours=1"]), ("l2rm", []),
    ("sps", ["method.clean_from_epoch=0", NOISY]), ("mscn", []), ("ncr", [NOISY]), ("npc", []),
    ("ncr", [NOISY, "method.steps=two"]), ("pc2-paper", [NOISY]),
    ("pc2-paper", [NOISY, "method.search_in=clean_set"]), ("pc2-paper", ["model.precision=bf16"]),
    ("pc2-crossfit", [NOISY, "method.folds=2"]),
    ("pc2-paper/demo", ["model.similarity=pooled", NOISY]), ("pc2-released", [NOISY]),
    ("pcsr", [NOISY, "method.ambiguous_from_epoch=1"]), ("rcl", []),
    *((network, [])
      for network in ("sgr", "saf", "scan-t2i", "scan-i2t", "imram", "maxsim", "vsrn")),
]  # fmt: skip


def pairs_of(count, longest):
    draw = np.random.default_rng(0)
    captions = [draw.integers(4, 28, length) for length in draw.integers(3, longest, count)]
    regions = torch.empty(count, 36, 768, device=FAKE)
    matched = np.ones(count, dtype=bool)
    return PairSet(regions, captions, "made up", FAKE, np.arange(count), matched)


@pytest.fixture
def device():
    """A fake GPU."""
    with fake_gpu() as found:
        yield found


def waits_in(device):
    """Where the host has waited in steps."""
    return {name for name in device.synchronisations if name.split(" in ")[1] not in ONCE}


@pytest.mark.parametrize(("preset", "overrides"), VARIANTS)
def test_a_method_mixes_no_devices_and_waits_only_where_it_must(
    device, small_settings, preset, overrides
):
    config, _, on = preset.partition("/")
    has_classes = hasattr(read_settings(config, []).method, "classes")
    small = [value for value in small_settings if has_classes or "method.class" not in value]
    settings = read_settings(config, [*small, *STEPS, "train.batch=16", *overrides], on or None)
    pairs = pairs_of(16, 9)
    method = make_method(settings, Sizes(len(pairs), 768, 28), FAKE)
    for epoch in range(settings.train.total_epochs):
        method.fit_epoch(pairs, epoch)
    assert method.similarity(pairs).shape == (16, 16)
    assert waits_in(device) <= WAITS.keys()
    assert device.peak < 64 * 2**20


def test_every_method_is_among_these():
    names = {read_settings(preset.partition("/")[0], []).method.name for preset, _ in VARIANTS}
    assert names | {"ridge"} == METHODS.keys(), "ridge does all on the CPU, whatever the device"


def test_the_detector_mixes_no_devices_in_a_batch(device):
    model = AptDetector(TINY, torch.randn(18, 768)).to(FAKE)
    extractor = AptExtractor(model, HashedNgrams(), {"size": "tiny"})
    width, height = extractor.input_size
    pages = [Page(f"00000_{number:04d}", (), []) for number in range(2)]
    screenshots = torch.zeros(2, 3, height, width, dtype=torch.uint8)
    found = extractor.extract(pages, screenshots)
    assert found.regions.shape == (2, 36, 768)
    places = {name.split(" in ")[1].partition(".")[0] for name in device.synchronisations}
    assert places <= {"boxes", "extraction", "patch_features", "proposals", "rows"}


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (lambda x: x + torch.ones(4), MixedDevicesError),
        (lambda x: x @ torch.ones(4, 4), MixedDevicesError),
        (lambda x: x[torch.tensor([0, 1])], MixedDevicesError),
        (lambda x: x.sum().item(), "item"),
        (lambda x: bool((x > 0).all()), "item"),
        (lambda x: float(x.max()), "item"),
        (lambda x: x[x > 0], "mask"),
        (lambda x: x.masked_fill_(x > 0, 0)[x[:, 0] > 0], "mask"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: x.argmax(1).unique(), "unique"),
        (lambda x: x.tolist(), "copy"),
        (lambda x: x.cpu(), "copy"),
        (lambda x: torch.zeros(4, 4).copy_(x), "copy"),
        (lambda x: torch.equal(x, x), NotImplementedError),
        (lambda x: x.masked_fill(x > 0, 0.0).sum() + torch.tensor(1.0), None),
        (lambda x: x[torch.tensor([0, 1]).to(FAKE)], None),
    ],
)
def test_planted_faults_are_found(device, plant, found):
    x = torch.ones(4, 4, device=FAKE)
    if found is None or isinstance(found, str):
        plant(x)
        assert {name.split()[0] for name in device.synchronisations} == (
            {found} if found else set()
        )
    else:
        with pytest.raises(found):
            plant(x)


def test_what_the_host_knows_is_computed_for_real(device):
    lengths = torch.tensor([3, 1, 2]).to(FAKE)
    there = torch.arange(3, device=FAKE) < lengths[:, None]
    assert there.nonzero()[:, 0].tolist() == [0, 0, 0, 1, 2, 2]
    words = torch.ones(3, 3, 5, device=FAKE)[there]
    assert words.shape == (6, 5)
    lengths.add_(words[:, 0].argmax())  # from here on nobody knows
    assert lengths.tolist() != [3, 1, 2]


def test_it_counts_products_and_the_storages_that_are_held_at_once(device):
    x = torch.ones(256, 256, device=FAKE, dtype=torch.bfloat16)
    product = x @ x
    assert [kind[:2] for kind in device.work if kind[0]] == [(torch.bfloat16, 2 * 256**3)]
    view = product[:2]
    del product
    gc.collect()
    assert (device.live, device.peak) == (2 * 2**17, 2 * 2**17)
    del view, x
    gc.collect()
    assert (device.live, device.peak) == (0, 2 * 2**17)


def test_a_step_of_pc2_at_the_size_of_now_fits_into_12_gib_beside_features_and_weights(device):
    sizes = Sizes(256, 768, 30_000)
    draw = np.random.default_rng(1)
    lengths = Data.like_now(256).lengths[:256]
    captions = [draw.integers(4, 30_000, length) for length in lengths]
    regions = torch.empty(256, 36, 768, device=FAKE)
    pairs = PairSet(regions, captions, "made up", FAKE, np.arange(256))
    steps = ["train.warmup_epochs=1", "train.epochs=1", "method.noisy_from_epoch=0"]
    settings = read_settings("pc2-paper", [*steps, "model.precision=bf16"])
    method, peaks = make_method(settings, sizes, FAKE), []

    def note(*_):
        peaks.append(device.peak / GIB)
        device.restart()

    for learner in method.learners:
        learner.optimiser.register_step_post_hook(note)
    for epoch in range(2):
        method.fit_epoch(pairs, epoch)
        assert waits_in(device) <= WAITS.keys()
        assert device.peak < 6 * GIB, "a division"
    assert max(peaks) < 12
    assert len(peaks) == 4 + 2
