"""Every method goes on after a stop, predicts by its networks alone, learns and divides."""

import numpy as np
import pytest
import torch

from pc2_baseline.method_section import METHODS, settings_class
from pc2_baseline.training.method import Method, Sizes

CHANCE = 2 * 100 * (1 + 5 + 10) / 40
"""rSum of a random matrix over 40 pairs; knowing the topic gives about 440."""
NOISY = "method.noisy_from_epoch=0"
POOLED = "model.similarity=pooled"
VARIANTS = [
    ("bicro", []),
    ("bicro", ["method.steps=two"]),
    ("contrastive", []),
    ("contrastive/demo", ["model.image_pooling=gpo", "model.caption_encoder=gru"]),
    ("crcl", ["train.warmup_epochs=1", "train.epochs=4", "method.schedules=[1]"]),
    ("cream", ["method.hard_from_epoch=0", NOISY, "train.lr=5e-3", "train.seed=1"]),
    ("crossfit", ["method.folds=2"]),
    ("crossfit-pooled/demo", ["method.folds=2", "method.loss=gce"]),
    ("decl", []),
    ("gsc", []),
    ("l2rm", ["train.batch=12"]),
    ("ncr", []),
    ("ncr", ["method.steps=two"]),
    ("pc2-paper", []),
    ("pc2-paper", ["method.search_in=clean_set"]),
    ("pc2-paper/demo", [POOLED]),
    ("pc2-released", [NOISY]),
    ("pcsr", [NOISY, "method.ambiguous_from_epoch=0"]),
    ("rcl", []),
    ("ridge", ["method.dim=8"]),
    ("sgr", [POOLED]),
    *((network, []) for network in ("sgr", "saf", "scan-t2i", "scan-i2t", "imram", "vsrn")),
]


def same(first, second):
    """Whether two states have the same tensors, bit for bit."""
    assert first.keys() == second.keys()
    for group, tensors in first.items():
        assert tensors.keys() == second[group].keys(), group
        assert all(torch.equal(value, second[group][name]) for name, value in tensors.items())


@pytest.mark.parametrize(("preset", "overrides"), VARIANTS)
def test_it_goes_on_bit_for_bit_after_a_stop_and_predicts_by_its_networks_alone(
    on_tiny, preset, overrides
):
    """Stopped after each of its epochs in turn."""
    whole, pairs = on_tiny(preset, "train.seed=3", "train.warmup_epochs=1", *overrides)
    assert isinstance(whole, Method)
    for epoch in range(on_tiny.settings(preset, "train.warmup_epochs=1", *overrides)
                       .train.total_epochs):  # fmt: skip
        again, _ = on_tiny(preset, "train.seed=3", "train.warmup_epochs=1", *overrides)
        if epoch:
            again.load_state_dict(
                {
                    group: {name: value.clone() for name, value in tensors.items()}
                    for group, tensors in whole.state_dict().items()
                }
            )
        assert again.fit_epoch(pairs, epoch) == whole.fit_epoch(pairs, epoch)
        same(whole.state_dict(), again.state_dict())
    alone, _ = on_tiny(preset, "train.warmup_epochs=1", *overrides)
    alone.load_state_dict({"networks": whole.state_dict()["networks"]})
    matrix = whole.similarity(pairs)
    assert np.isfinite(matrix).all()
    assert np.array_equal(alone.similarity(pairs), matrix)


@pytest.mark.parametrize(
    "preset", ["bicro", "contrastive", "cream", "decl", "gsc", "l2rm", "ncr", "pc2-paper",
               "pc2-released", "pcsr", "rcl", "sgr"],
)  # fmt: skip
def test_each_epoch_of_the_warm_up_takes_every_pair_once_in_another_order(on_tiny, steps, preset):
    method, pairs = on_tiny(preset, "train.warmup_epochs=2", "model.similarity_dim=8")
    orders = []
    for epoch in range(2):
        steps.clear()
        method.fit_epoch(pairs, epoch)
        peers = {step.peer for _, step in steps}
        assert len(peers) == method.ensemble_size
        for peer in peers:
            rows = [step.pair_index for _, step in steps if step.peer == peer]
            orders.append(np.concatenate(rows).tolist())
            assert sorted(orders[-1]) == list(range(24))
    assert len({tuple(order) for order in orders}) == len(orders)


def test_every_method_is_in_the_table_above_and_has_settings_of_its_name(on_tiny):
    names = {on_tiny(preset, *overrides)[0].section.model_fields["name"].default
             for preset, overrides in VARIANTS}  # fmt: skip
    assert names == METHODS.keys()
    assert all(settings_class(name).model_fields["name"].default == name for name in METHODS)


@pytest.mark.parametrize("preset", ["bicro", "pc2-paper", "rcl"])
def test_settings_of_another_method_are_refused(on_tiny, preset):
    method, _ = on_tiny(preset)
    with pytest.raises(TypeError, match=r"settings of ridge, expected \w+Settings"):
        type(method)(on_tiny.settings("ridge"), Sizes(24, 768, 28), torch.device("cpu"))


@pytest.mark.parametrize(
    ("preset", "overrides", "auroc"),
    [
        ("ncr/demo", [], 0.75),
        ("bicro/demo", [], 0.75),
        ("decl/demo", ["train.warmup_epochs=5"], 0.8),
        ("gsc/demo", ["train.epochs=3", "train.seed=1"], 0.85),
        ("cream/demo", [], 0.9),
        ("l2rm/demo", ["train.batch=16", "train.warmup_epochs=3"], 0.8),
        ("pcsr/demo", [NOISY, "method.ambiguous_from_epoch=1", "method.classes=16",
                       "train.epochs=2"], 0.9),
    ],
)  # fmt: skip
def test_it_learns_and_its_division_finds_the_shuffled_pairs(learned, preset, overrides, auroc):
    done, found = learned(preset, *overrides)
    assert done.best_rsum > 4 * CHANCE
    assert found.epochs[-1].auroc > auroc
    assert "loss" in found.best.auroc_by_statistic
