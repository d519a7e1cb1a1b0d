"""Every method goes on after a stop, predicts by its networks alone, learns and divides."""

import sys
from ast import literal_eval
from copy import deepcopy

import numpy as np
import pytest
import torch

from pc2_baseline.config import read_settings
from pc2_baseline.methods.pc2.peers import Pc2Peers
from pc2_baseline.modules import coteaching
from pc2_baseline.modules.learner import Learner
from pc2_baseline.training.method import Method

CHANCE = 2 * 100 * (1 + 5 + 10) / 40
"""rSum of a random matrix over 40 pairs; knowing the topic gives about 440."""
NOISY = "method.noisy_from_epoch=0"
VARIANTS = [
    ("crcl", ["train.epochs=4", "method.schedules=[1]"], 3),
    ("cream", ["method.hard_from_epoch=0", NOISY, "train.lr=5e-3", "train.seed=1"], 2),
    ("decl", [], 1),
    ("gsc", [], 2),
    ("in2r", [], 2),
    ("l2rm", ["train.batch=12"], 2),
    ("mscn", ["model.similarity=saf"], 2),
    ("npc", [], 2),
    ("pc2-paper", [], 2),
    ("pc2-crossfit", ["method.folds=2"], 2),
    ("pcsr", [NOISY, "method.ambiguous_from_epoch=0"], 2),
    ("ridge", ["method.dim=8"], 1),
]
"""A preset for each kind of state that is kept between epochs, and the epoch before its stop."""


def same(first, second):
    """Whether two states have the same tensors, bit for bit."""
    assert first.keys() == second.keys()
    for group, tensors in first.items():
        assert tensors.keys() == second[group].keys(), group
        assert all(torch.equal(value, second[group][name]) for name, value in tensors.items())


@pytest.mark.parametrize(("preset", "overrides", "stop"), VARIANTS)
def test_it_resumes_bit_for_bit_after_a_stop_and_predicts_by_its_networks_alone(
    on_tiny, monkeypatch, preset, overrides, stop
):
    """Networks learn in training mode; NPC's copy, which only tries a step, in evaluation mode."""
    step, modes = Learner.step, []

    def note_mode(self, loss, named):
        modes.append((self.net is getattr(whole, "ahead", None), self.net.training))
        return step(self, loss, named)

    monkeypatch.setattr(Learner, "step", note_mode)
    overrides = ["train.warmup_epochs=1", "train.seed=3", *overrides]
    whole, pairs = on_tiny(preset, *overrides)
    assert isinstance(whole, Method)
    for epoch in range(stop):
        whole.fit_epoch(pairs, epoch)
    whole.similarity(pairs)  # as dev is scored after each epoch, in evaluation mode
    again, _ = on_tiny(preset, *overrides)
    again.load_state_dict(deepcopy(whole.state_dict()))
    figures = again.fit_epoch(pairs, stop)
    modes.clear()
    assert whole.fit_epoch(pairs, stop) == figures
    assert all(is_training != is_copy for is_copy, is_training in modes)
    same(whole.state_dict(), again.state_dict())
    alone, _ = on_tiny(preset, *overrides)
    alone.load_state_dict({"networks": whole.state_dict()["networks"]})
    matrix = whole.similarity(pairs)
    assert np.isfinite(matrix).all()
    assert np.array_equal(alone.similarity(pairs), matrix)


@pytest.mark.parametrize(
    "preset", ["contrastive", "cream", "gsc", "ncr", "pc2-paper", "pc2-released", "sgr"]
)
def test_each_epoch_of_the_warm_up_takes_every_pair_once_in_another_order(on_tiny, steps, preset):
    method, pairs = on_tiny(preset, "train.warmup_epochs=2")
    if method.ensemble_size > 1:
        weights = [net.images.project.weight for net in getattr(method, "matching", method.nets)]
        assert not torch.equal(*weights), "peers start apart"
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


@pytest.mark.parametrize(
    ("preset", "overrides", "auroc"),
    [
        ("pc2-paper/demo", ["method.classes=16"], 0.9),
        ("pc2-crossfit-pooled/demo", ["method.classes=16", "method.folds=3"], 0.9),
        ("ncr/demo", [], 0.75),
        ("ridge", [], 0.9),
        ("sgr/demo", [], None),
    ],
)
def test_it_learns_and_its_division_finds_the_shuffled_pairs(learned, preset, overrides, auroc):
    done, found = learned(preset, *overrides)
    assert done.best_rsum > 4 * CHANCE
    assert (found is None) == (auroc is None)
    if found:
        assert found.best.auroc > auroc
        assert "loss" in found.best.auroc_by_statistic


class Asked(BaseException):
    """The rate is known; nothing needs to be learned."""


@pytest.mark.parametrize(
    ("preset", "overrides", "expected"),
    [
        *((name, ["train.lr_drop_epoch=1"], [1, 1, 1, 0.1, 0.1])
          for name in ("rcl", "decl", "l2rm", "ncr", "npc", "pc2-paper", "crossfit")),
        ("pc2-released", ["train.lr_drop_epoch=1"], [1, 1, 1, 0.1, 0.01]),
        ("crcl", ["train.lr_drop_epoch=1", "method.schedules=[2]", "train.epochs=6"],
         [1, 1, 1, 0.1] * 2),
        *((name, ["train.lr_drop_epoch=2"], [1, 1, 1, 1, 0.1, 0.1, 0.01])
          for name in ("in2r", "mscn", "sps")),
        ("cream", ["train.lr_drop_epoch=2"], [1, 1, 1, 1, 0.1, 0.1, 0.01]),
        ("gsc", ["train.lr_drop_epoch=2"], [1, 1, 0.2, 0.2, 0.04]),
    ],
)  # fmt: skip
def test_the_rate_drops_when_its_epochs_are_over(on_tiny, monkeypatch, preset, overrides, expected):
    method, pairs = on_tiny(preset, *overrides)
    asked = []

    def set_rate(self, factor):
        self.optimiser.param_groups[0]["lr"] = 1
        asked.append(factor)
        raise Asked

    monkeypatch.setattr(Learner, "set_rate", set_rate)
    for epoch in range(len(expected)):
        with pytest.raises(Asked):
            method.fit_epoch(pairs, epoch)
    assert asked == pytest.approx(expected)


@pytest.mark.parametrize(
    ("preset", "overrides", "expected"),
    [
        ("sgr", [], "mean mean hardest"),
        ("sgr-hardest", ["method.mean_epochs=0"], "hardest hardest hardest"),
        ("pc2-paper", [], "mean mean hardest"),
        ("ncr", [], "mean mean hardest"),
        ("in2r", [], " mean hardest"),
        ("mscn", [], "mean mean hardest"),
        ("crossfit", ["method.folds=2", "train.seed=1"], "mean mean hardest"),
    ],
)
def test_negatives_harden_after_the_warm_up_and_the_mean_epochs(
    on_tiny, monkeypatch, preset, overrides, expected
):
    method, pairs = on_tiny(
        preset, "train.warmup_epochs=1", "method.mean_epochs=1", "train.batch=24", *overrides
    )
    asked = []
    bases = [sys.modules[base.__module__] for base in type(method).__mro__[:-1]]
    for module in {*bases, coteaching}:
        for kind in ("mean", "hardest"):
            if own := getattr(module, f"triplet_{kind}", None):

                def call(similarity, *more, own=own, kind=kind):
                    if similarity.requires_grad:
                        asked.append(kind)
                    return own(similarity, *more)

                monkeypatch.setattr(module, f"triplet_{kind}", call)
    found = []
    for epoch in range(3):
        asked.clear()
        method.fit_epoch(pairs, epoch)
        found.append(" ".join(sorted(set(asked))))
    assert " ".join(found) == expected


@pytest.mark.parametrize("preset", ["pc2-paper", "pc2-released", "ncr"])
def test_a_peer_learns_what_the_other_calls_clean_and_noisy_pairs_from_their_epoch_on(
    divided, steps, preset
):
    method, pairs = divided(preset, "method.noisy_from_epoch=1")
    counts = []
    for epoch in (1, 2):
        divided.divide(method, *(own.division.is_clean for own in method.statistics))
        clean = method.statistics[1].division.clean.tolist()
        steps.clear()
        loss = method._learn(pairs, epoch, 0)["loss_noisy"]
        rows = sorted({row for _, step in steps for row in step.pair_index})
        assert rows == (clean if epoch == 1 else list(range(24)))
        counts.append(loss > 0)
    assert counts == [False, True]


@pytest.mark.parametrize("preset", ["pc2-paper", "pc2-released", "pcsr", "ncr"])
def test_it_trains_with_any_number_of_noisy_pairs(on_tiny, divided, preset):
    stages = [NOISY, *(["method.ambiguous_from_epoch=0"] if preset == "pcsr" else [])]
    for noisy, batch in ((0, 24), (1, 2), (1, 24), (22, 24)):
        method, pairs = on_tiny(preset, "train.warmup_epochs=1", f"train.batch={batch}", *stages)
        divided.divide(method, *[np.arange(24) >= noisy] * 2)
        figures = method._learn(pairs, 1, 0)
        assert all(np.isfinite(value) for value in figures.values()), noisy
        if preset == "ncr":
            assert (figures["loss_noisy"] > 0) == (noisy > 1)


def test_a_warm_up_that_is_not_judged_learns_the_same(on_tiny, monkeypatch):
    """Divisions that no later epoch needs are left out: for pc2 all but two."""
    found, counts = [], []
    for judged in ("true", "false"):
        taken = []
        count = lambda self, peer, taken=taken: taken.append(peer) or {}  # noqa: E731
        monkeypatch.setattr(Pc2Peers, "summary", count)
        sets = "train.warmup_epochs=3", "train.batch=24", f"train.judge_warmup={judged}"
        method, pairs = on_tiny("pc2-paper", *sets)
        for epoch in range(4):
            method.fit_epoch(pairs, epoch)
        found.append(method.state_dict())
        counts.append(len(taken) // 2)
    assert counts == [4, 3]
    same(*found)


@pytest.mark.parametrize(("preset", "last"), [("decl", 1), ("crossfit", 1)])
def test_a_warm_up_whose_division_no_epoch_reads_is_not_divided(on_tiny, preset, last):
    """The weights are the same, also of a run that resumes from an epoch without a division."""
    states = []
    for judged in ("true", "false"):
        asked = preset, "train.warmup_epochs=2", "train.batch=12", f"train.judge_warmup={judged}"
        method, pairs = on_tiny(*asked)
        divided = []
        for epoch in range(3):
            method.fit_epoch(pairs, epoch)
            divided.append(bool(method.epoch_outputs()))
            if epoch == 0:
                saved, (method, _) = method.state_dict(), on_tiny(*asked)
                method.load_state_dict(saved)
        states.append(method.state_dict())
    assert divided == [epoch >= 2 - last for epoch in range(3)]
    same(*states)


PUBLISHED = [
    ("pc2-paper", "f30k", "classes=128 margin_base=10 oscillation_threshold=0.5 warmup_epochs=5"),
    ("pc2-paper", "", "batch=128 warmup_epochs=10 epochs=50 lambda_entropy=10 embed_dim=2048"),
    ("pcsr", "f30k", "noisy_from_epoch=25 ambiguous_from_epoch=40 classes=256 epochs=50"),
    ("cream", "f30k", "temperature=0.07 hard_from_epoch=10 noisy_from_epoch=15 epochs=40"),
    ("in2r", "coco", "neighbours=5 memory=448_000 lr=5e-4 image_pooling='gpo' epochs=40"),
    ("sps", "coco", "temperature=0.07 epochs=20 clean_from_epoch=5 noisy_from_epoch=10"),
    ("mscn", "f30k", "meta_share=0.02 meta_lr=17e-6 batch=64 warmup_epochs=5 lr_drop_epoch=30"),
    ("gsc", "f30k", "temperature=0.07 total=60 lr_drop_epoch=15"),
    ("rcl", "coco", "batch=128 temperature=0.05 embed_dim=1024 total=20 full=10 lr=5e-4"),
    ("l2rm", "f30k", "lr=2e-4 warmup_epochs=5 epochs=35 full=20 regularisation=0.01"),
    ("crcl", "coco", "lr=5e-4 schedules=(2,2,2) total=34 full=10 select_from_epoch=10"),
    ("scan-t2i", "f30k", "margin=0.2 dropout=0 embed_dim=1024 lr=2e-4 total=30 full=15"),
    ("vsrn", "coco", "similarity='vsrn' embed_dim=2048 lr=2e-4 total=30 full=15"),
]
"""Settings of the papers and of their authors' scripts; ``full``: epochs at the full rate."""


@pytest.mark.parametrize(("preset", "on", "expected"), PUBLISHED)
def test_presets_have_the_published_settings(preset, on, expected):
    settings = read_settings(preset, [], on or None)
    train = settings.train
    found = {"total": train.total_epochs, "full": train.warmup_epochs + train.lr_drop_epoch}
    for section in (settings.model, train, settings.method):
        found |= dict(section)
    pairs = dict(value.split("=") for value in expected.split())
    wanted = {name: literal_eval(value) for name, value in pairs.items()}
    assert {name: found[name] for name in wanted} == wanted
