"""Operations and memory are counted on shapes alone, on a GPU that is not there."""

import gc

import pytest
import torch

from benchmarks.gpu.count import (
    FAKE,
    count_steps,
    fake_gpu,
    flops_of,
    hours_of,
    operations_of,
    pairs_of,
    seconds_of,
)
from now_builder.errors import ConfigError
from pc2_baseline.config import read_settings

# To a network on the fake device nothing can be loaded, and PyTorch says so.
pytestmark = pytest.mark.filterwarnings("ignore:for .* copying from a non-meta parameter")

SMALL = ["model.embed_dim=16", "model.word_dim=8", "train.batch=16",
         "train.warmup_epochs=10", "train.epochs=50"]  # fmt: skip


@pytest.fixture
def device():
    """A fake GPU."""
    with fake_gpu() as found:
        yield found


def test_a_training_of_three_networks_is_counted_by_phase(device):
    """Two peers of four batches each, of which half the pairs are clean; one network of four."""
    noisy = ["method.noisy_from_epoch=10", "method.classes=8", "method.class_hidden=8"]
    for config, overrides, steps in (
        ("pc2-paper", [*noisy, "model.similarity_dim=8"], {"warm-up": 8, "clean": 4, "noisy": 4}),
        ("pc2-pooled", noisy, {"warm-up": 8, "clean": 4, "noisy": 4}),
        ("scan-t2i", [], {"warm-up": 4, "clean": 4}),
    ):
        settings = read_settings(config, [*SMALL, *overrides])
        found = count_steps(settings, device)
        assert {name: len(own[0]) for name, own in found.items() if name in steps} == steps
        assert found["warm-up"][2] == 10
        assert all(0 < peak < 2**33 for _, peak, _ in found.values())
        assert all(flops_of(work) > 0 for work in found["warm-up"][0])
        hours = [hours_of(found, settings, "h100", 1600, share) for share in (0.5, 1.0)]
        assert hours[1]["warm-up"] == hours[0]["warm-up"] > 0
        if "noisy" in steps:
            assert hours[1]["noisy"] == pytest.approx(2 * hours[0]["noisy"])
    with pytest.raises(ConfigError, match="method ridge: it trains on the CPU"):
        count_steps(read_settings("ridge", []), device)
    assert len(pairs_of(32, settings)) == 32


def test_each_operation_takes_what_it_is_short_of():
    for kind, rate in ((torch.float32, 67), ("tf32", 495)):
        product = {(kind, 10**12, 1): 2.0}
        assert seconds_of(product, "h100") == pytest.approx(2 / (0.7 * rate) + 90e-6)
    copy = {(None, 0, 10**12): 1.0}
    assert seconds_of(copy, "h100") == pytest.approx(1 / (0.8 * 3.35) + 45e-6)


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


def test_a_step_of_pc2_at_nows_size_is_few_operations_and_fits(device):
    """Of the warm-up and with noisy images; a batch of the division; beside the features."""
    settings = read_settings("pc2-paper", ["model.precision=bf16"])
    found = count_steps(settings, device)
    assert operations_of(found["warm-up"][0]) <= 900
    assert operations_of(found["noisy"][0]) <= 900
    batches = 2 * 4  # of both peers
    assert operations_of(found["division"][0]) / batches <= 220
    features = pairs_of(512, settings).regions.nbytes
    assert max(peak for _, peak, _ in found.values()) - features <= 12 * 2**30
