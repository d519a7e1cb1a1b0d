"""Every method goes on after a stop, predicts by its networks alone, learns and divides."""

import sys
from ast import literal_eval

import numpy as np
import pytest
import torch

from pc2_baseline.config import presets, read_settings
from pc2_baseline.method_section import METHODS, settings_class
from pc2_baseline.methods.pc2.peers import Pc2Peers
from pc2_baseline.modules import coteaching
from pc2_baseline.modules.learner import Learner
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
    ("in2r", []),
    ("in2r", ["method.rectify_by=prototypes", "model.similarity=sgr"]),
    ("l2rm", ["train.batch=12"]),
    ("mscn", ["train.batch=6"]),
    ("mscn", ["model.similarity=saf"]),
    ("ncr", []),
    ("ncr", ["method.steps=two"]),
    ("npc", []),
    ("pc2-paper", []),
    ("pc2-paper", ["method.search_in=clean_set"]),
    ("pc2-paper/demo", [POOLED]),
    ("pc2-crossfit", ["method.folds=2"]),
    ("pc2-released", [NOISY]),
    ("pcsr", [NOISY, "method.ambiguous_from_epoch=0"]),
    ("rcl", []),
    ("ridge", ["method.dim=8"]),
    ("sgr", [POOLED]),
    ("sps", ["method.clean_from_epoch=0", NOISY]),
    *(
        (network, [])
        for network in ("sgr", "saf", "scan-t2i", "scan-i2t", "imram", "maxsim", "vsrn")
    ),
]


def same(first, second):
    """Whether two states have the same tensors, bit for bit."""
    assert first.keys() == second.keys()
    for group, tensors in first.items():
        assert tensors.keys() == second[group].keys(), group
        assert all(torch.equal(value, second[group][name]) for name, value in tensors.items())


@pytest.mark.parametrize(("preset", "overrides"), VARIANTS)
def test_it_goes_on_bit_for_bit_after_a_stop_and_predicts_by_its_networks_alone(
    on_tiny, monkeypatch, preset, overrides
):
    """Stopped after each of its epochs in turn; networks learn in training mode.

    NPC's copy, which only tries a step, does so in evaluation mode.
    """
    step, modes = Learner.step, []

    def note_mode(self, loss, named):
        modes.append((self.net is getattr(whole, "ahead", None), self.net.training))
        return step(self, loss, named)

    monkeypatch.setattr(Learner, "step", note_mode)
    overrides = ["train.warmup_epochs=1", *overrides]
    whole, pairs = on_tiny(preset, "train.seed=3", *overrides)
    assert isinstance(whole, Method)
    for epoch in range(on_tiny.settings(preset, *overrides).train.total_epochs):
        again, _ = on_tiny(preset, "train.seed=3", *overrides)
        if epoch:
            again.load_state_dict(
                {
                    group: {name: value.clone() for name, value in tensors.items()}
                    for group, tensors in whole.state_dict().items()
                }
            )
        figures = again.fit_epoch(pairs, epoch)
        modes.clear()
        assert whole.fit_epoch(pairs, epoch) == figures
        assert all(is_training != is_copy for is_copy, is_training in modes)
        same(whole.state_dict(), again.state_dict())
        whole.similarity(pairs)  # as dev is scored after each epoch, in evaluation mode
    alone, _ = on_tiny(preset, *overrides)
    alone.load_state_dict({"networks": whole.state_dict()["networks"]})
    matrix = whole.similarity(pairs)
    assert np.isfinite(matrix).all()
    assert np.array_equal(alone.similarity(pairs), matrix)


@pytest.mark.parametrize("preset", ["pc2-paper", "pc2-crossfit", "cream"])
def test_the_similarity_is_the_logit_of_the_mean_of_all_its_networks(on_tiny, scored, preset):
    method, pairs = on_tiny(preset)
    each = [scored(net, pairs) for net in method.matching]
    assert len(each) == (4 if preset == "pc2-crossfit" else 2)
    mean = sum(matrix.double() for matrix in each) / len(each)
    found = torch.from_numpy(method.similarity(pairs)).double()[pairs.image_of]
    assert torch.allclose(found.sigmoid(), mean, atol=1e-5)
    assert not any(torch.allclose(found.sigmoid(), own.double(), atol=1e-3) for own in each)


@pytest.mark.parametrize(
    "preset", ["bicro", "contrastive", "cream", "decl", "gsc", "l2rm", "ncr", "npc",
               "pc2-paper", "pc2-released", "pcsr", "rcl", "sgr", "sps"],
)  # fmt: skip
def test_each_epoch_of_the_warm_up_takes_every_pair_once_in_another_order(on_tiny, steps, preset):
    method, pairs = on_tiny(preset, "train.warmup_epochs=2", "model.similarity_dim=8")
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


SCAN = ["train.lr=1e-2", "train.batch=16", "train.warmup_epochs=3", "train.epochs=0",
        "model.word_dim=24", "model.dropout=0", "train.weight_decay=0"]  # fmt: skip


@pytest.mark.parametrize(
    ("preset", "overrides", "auroc"),
    [
        ("pc2-paper/demo", ["method.classes=16"], 0.9),
        ("pc2-crossfit-pooled/demo", ["method.classes=16", "method.folds=3"], 0.9),
        ("ncr/demo", [], 0.75),
        ("bicro/demo", [], 0.75),
        ("npc/demo", [], 0.8),
        ("decl/demo", ["train.warmup_epochs=5"], 0.8),
        ("gsc/demo", ["train.epochs=3", "train.seed=1"], 0.85),
        ("cream/demo", [], 0.9),
        ("in2r/demo", ["train.epochs=3"], 0.8),
        ("l2rm/demo", ["train.batch=16", "train.warmup_epochs=3"], 0.8),
        ("mscn/demo", ["model.similarity=sgr", "model.similarity_dim=16", "train.epochs=2"], 0.8),
        ("sps/demo", ["method.clean_from_epoch=0", NOISY], 0.8),
        ("pcsr/demo", [NOISY, "method.ambiguous_from_epoch=1", "method.classes=16",
                       "train.epochs=2"], 0.9),
        ("crcl/demo", ["train.batch=16", "method.schedules=[2]", "train.warmup_epochs=2",
                       "train.epochs=8"], 0.7),
        ("ridge", [], 0.9),
        ("crossfit-pooled/demo", ["method.folds=3"], 0.8),
        ("sgr/demo", [], None),
        ("rcl/demo", [], None),
        *(("contrastive/demo", [f"method.loss={loss}", "train.epochs=4"], None)
          for loss in ("info_nce", "complementary", "gce")),
        *((f"{kind.replace('_', '-')}/demo", [f"model.similarity={kind}", *SCAN], None)
          for kind in ("scan_t2i", "scan_i2t", "imram", "maxsim", "vsrn")),
    ],
)  # fmt: skip
def test_it_learns_and_its_division_finds_the_shuffled_pairs(learned, preset, overrides, auroc):
    done, found = learned(preset, *overrides)
    assert done.best_rsum > (3 if SCAN[0] in overrides else 4) * CHANCE
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
          for name in ("rcl", "sgr", "contrastive", "decl", "l2rm", "ncr", "npc", "bicro",
                       "pc2-paper", "pc2-crossfit", "pcsr", "crossfit")),
        ("pc2-released", ["train.lr_drop_epoch=1"], [1, 1, 1, 0.1, 0.01]),
        ("crcl", ["train.lr_drop_epoch=1", "method.schedules=[2]", "train.epochs=6"],
         [1, 1, 1, 0.1] * 2),
        *((name, ["train.lr_drop_epoch=2"], [1, 1, 1, 1, 0.1, 0.1, 0.01])
          for name in ("in2r", "mscn", "sps")),
        ("cream", ["train.lr_drop_epoch=2", "method.lr_decay=0.5"], [1, 1, 1, 1, 0.5, 0.5, 0.25]),
        ("gsc", ["train.lr_drop_epoch=2", "method.lr_decay=0.5"], [1, 1, 0.5, 0.5, 0.25]),
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
        ("pc2-released", [], "mean mean hardest"),
        ("ncr", [], "mean mean hardest"),
        ("bicro", [], "mean mean hardest"),
        ("in2r", [], " mean hardest"),
        ("l2rm", [], " mean hardest"),
        ("mscn", [], "mean mean hardest"),
        ("crossfit", ["method.folds=2", "train.seed=1"], "mean mean hardest"),
        ("pc2-crossfit", ["method.folds=2", "train.seed=1"], "mean mean hardest"),
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


TAUGHT = pytest.mark.parametrize("preset", ["pc2-paper", "pc2-released", "ncr", "bicro"])


@TAUGHT
@pytest.mark.parametrize("peer", [0, 1])
def test_a_peer_learns_the_pairs_that_the_other_calls_clean(divided, steps, preset, peer):
    method, pairs = divided(preset, "method.noisy_from_epoch=9")
    method._learn(pairs, 1, peer)
    _, step = steps[-1]
    assert sorted(step.pair_index) == method.statistics[1 - peer].division.clean.tolist()


@TAUGHT
def test_noisy_pairs_act_from_their_epoch_on(divided, steps, preset):
    method, pairs = divided(preset, "method.noisy_from_epoch=1")
    counts = []
    for epoch in (1, 2):
        divided.divide(method, *(own.division.is_clean for own in method.statistics))
        steps.clear()
        loss = method._learn(pairs, epoch, 0)["loss_noisy"]
        counts.append((len({row for _, step in steps for row in step.pair_index}), loss > 0))
    assert counts == [(16, False), (24, True)]


@pytest.mark.parametrize("preset", ["pc2-paper", "pc2-released", "pcsr", "ncr", "bicro"])
@pytest.mark.parametrize("noisy", [0, 1, 2, 22])
@pytest.mark.parametrize("batch", [2, 24])
def test_it_trains_with_any_number_of_noisy_pairs(on_tiny, divided, preset, noisy, batch):
    stages = [NOISY, *(["method.ambiguous_from_epoch=0"] if preset == "pcsr" else [])]
    method, pairs = on_tiny(preset, "train.warmup_epochs=1", f"train.batch={batch}", *stages)
    divided.divide(method, *[np.arange(24) >= noisy] * 2)
    figures = method._learn(pairs, 1, 0)
    assert all(np.isfinite(value) for value in figures.values())
    if preset in {"ncr", "bicro"}:
        assert (figures["loss_noisy"] > 0) == (noisy > 1)


@pytest.mark.parametrize("preset", ["pc2-paper", "pc2-released", "pcsr"])
def test_a_warm_up_that_is_not_judged_learns_the_same(on_tiny, monkeypatch, preset):
    """Divisions that no later epoch needs are left out: for pc2 all but two, for pcsr none."""
    found, counts = [], []
    for judged in ("true", "false"):
        taken = []
        count = lambda self, peer, taken=taken: taken.append(peer) or {}  # noqa: E731
        monkeypatch.setattr(Pc2Peers, "summary", count)
        method, pairs = on_tiny(preset, "train.warmup_epochs=4", f"train.judge_warmup={judged}")
        for epoch in range(6):
            method.fit_epoch(pairs, epoch)
        found.append(method.state_dict())
        counts.append(len(taken) // 2)
    assert counts == [6, {"pc2-paper": 4, "pc2-released": 3, "pcsr": 6}[preset]]
    same(*found)


@pytest.mark.parametrize(
    ("preset", "last"),
    [("decl", 1), ("l2rm", 1), ("cream", 1), ("crossfit", 1), ("pc2-crossfit", 2)],
)
def test_a_warm_up_whose_division_no_epoch_reads_is_not_divided(on_tiny, preset, last):
    """The weights are the same, also of a run that goes on from an epoch without a division."""
    states = []
    for judged in ("true", "false"):
        asked = preset, "train.warmup_epochs=4", f"train.judge_warmup={judged}"
        method, pairs = on_tiny(*asked)
        divided = []
        for epoch in range(5):
            method.fit_epoch(pairs, epoch)
            divided.append(bool(method.epoch_outputs()))
            if epoch == 0:
                saved, (method, _) = method.state_dict(), on_tiny(*asked)
                method.load_state_dict(saved)
        states.append(method.state_dict())
    assert divided == [epoch >= 4 - last for epoch in range(5)]
    same(*states)


@pytest.mark.parametrize("preset", sorted(name for name in presets() if name.startswith("pc2")))
def test_every_preset_of_pc2_runs_through_warm_up_and_noisy_steps(on_tiny, preset):
    method, pairs = on_tiny(preset, "data.name=now100k_precomp", "train.warmup_epochs=1",
                            "method.noisy_from_epoch=1")  # fmt: skip
    for epoch in range(3):
        method.fit_epoch(pairs, epoch)
    (kept,) = method.epoch_outputs().values()
    assert all(value.isfinite().all() for value in kept.values())


ONE = "batch=128 clip=2 name='triplet' margin=0.2 dropout=0"
RCL = "lr=2e-4 batch=128 clip=2 temperature=0.05 embed_dim=1024"
L2RM = "lr=2e-4 batch=128 clip=2 mass=0.1 temperature=0.05 cost_lr=2e-6"
CRCL = "lr=5e-4 weight_decay=0.01 clip=2 warmup_epochs=2 momentum=0.8 threshold=0.1"
PCSR = "noisy_from_epoch=25 ambiguous_from_epoch=40 classes=256 temperature=0.05 gce_power=0.7"
CREAM = "temperature=0.07 hard_from_epoch=10 noisy_from_epoch=15 warmup_epochs=5 lr_drop_epoch=10"
IN2R = "neighbours=5 intra_weight=0.5 lr=5e-4 warmup_epochs=5 epochs=40 lr_drop_epoch=15 clip=2"
SPS = "temperature=0.07 strict_above=0.6 stability_weight=25 warmup_epochs=5 lr_drop_epoch=10"
MSCN = "meta_share=0.02 meta_lr=17e-6 margin=0.2 lr=2e-4 batch=64 clip=2 similarity='sgr'"
GSC = "temperature=0.07 newest_weight=0.7 structure_weight=0.01 total=60 lr_decay=0.2"
SCANS = ("scan_t2i", "scan_i2t", "imram")
PUBLISHED = [
    ("pcsr", "f30k", f"{PCSR} warmup_epochs=5 epochs=50 lr_drop_epoch=30"),
    ("cream", "f30k", f"{CREAM} epochs=40 lr_decay=0.1"),
    ("cream", "coco", "epochs=20"),
    *(("in2r", on, f"{IN2R} memory={memory} image_pooling='gpo' caption_encoder='gru'")
      for on, memory in (("", 65_536), ("f30k", 65_536), ("coco", 448_000), ("cc152k", 448_000))),
    *(("sps", on, f"{SPS} epochs=40 clean_from_epoch=10 noisy_from_epoch=15")
      for on in ("f30k", "cc152k")),
    ("sps", "coco", f"{SPS} epochs=20 clean_from_epoch=5 noisy_from_epoch=10"),
    *(("mscn", on, f"{MSCN} warmup_epochs=5 epochs=50 lr_drop_epoch=30")
      for on in ("", "f30k", "coco", "cc152k")),
    ("gsc", "f30k", f"{GSC} lr_drop_epoch=15"),
    ("gsc", "coco", "lr_drop_epoch=20"),
    *(("rcl", on, f"{RCL} total=30 full=15") for on in ("", "f30k", "cc152k")),
    ("rcl", "coco", f"{RCL} total=20 full=10 lr=5e-4"),
    ("l2rm", "", f"{L2RM} warmup_epochs=10 epochs=40 full=30 regularisation=0.07"),
    ("l2rm", "cc152k", f"{L2RM} warmup_epochs=10 epochs=40 full=30 mask_diagonal=False"),
    ("l2rm", "f30k", f"{L2RM} warmup_epochs=5 epochs=35 full=20 regularisation=0.01"),
    ("l2rm", "coco", f"{L2RM} warmup_epochs=10 epochs=20 full=20 mask_diagonal=True"),
    *(("crcl", on, f"{CRCL} schedules=(5,5,5) total={total} full=15 select_from_epoch=19")
      for on, total in (("", 53), ("f30k", 53), ("cc152k", 63))),
    ("crcl", "coco", f"{CRCL} schedules=(2,2,2) total=34 full=10 select_from_epoch=10"),
    *((kind.replace("_", "-"), on, f"{ONE} similarity={kind!r} embed_dim=1024 {schedule}")
      for kind in SCANS for on, schedule in (
          ("", "lr=2e-4 total=40 full=25"), ("f30k", "lr=2e-4 total=30 full=15"),
          ("coco", "lr=5e-4 total=20 full=10"))),
    *(("vsrn", on, f"{ONE} similarity='vsrn' embed_dim=2048 lr=2e-4 {schedule}")
      for on, schedule in (("", "total=40 full=25"), ("coco", "total=30 full=15"),
                           ("f30k", "total=30 full=10"))),
]  # fmt: skip
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
