"""PC2 and its baseline learn, divide, and keep their books by pair_index."""

import numpy as np
import pytest
import torch

from pc2_baseline.analysis.truth import report
from pc2_baseline.config import read_settings
from pc2_baseline.data.pairs import open_pairs
from pc2_baseline.method_settings import method_fields
from pc2_baseline.methods import METHODS, sgr
from pc2_baseline.methods.pc2 import Pc2
from pc2_baseline.modules.coteaching import clean_and_noisy_batches
from pc2_baseline.modules.losses import triplet_hardest
from pc2_baseline.modules.pseudo_class import to_slots
from pc2_baseline.runs.train import train
from pc2_baseline.training.method import Sizes
from pc2_baseline.training.run_folder import read_run

CPU = torch.device("cpu")
SMALL = [
    "model.embed_dim=96", "model.word_dim=64", "model.similarity_dim=32", "train.batch=32",
    "train.lr=2e-3", "train.warmup_epochs=4", "train.device=cpu",
]  # fmt: skip
CHANCE = 2 * 100 * (1 + 5 + 10) / 40
"""rSum of a random matrix over 40 pairs; knowing the topic gives about 440."""


def test_pc2_learns_and_its_division_finds_the_shuffled_pairs(easy, tmp_path):
    overrides = [*SMALL, "train.epochs=1", "method.classes=16"]
    done = train(easy, tmp_path / "run", read_settings("pc2-demo", overrides))
    assert done.best_rsum > 4 * CHANCE
    record = read_run(tmp_path / "run")
    found = report(tmp_path / "run", record, easy, easy / "truth.csv")
    assert found.best.auroc > 0.9
    assert found.best.clean_matched > 0.8 * found.best.clean
    assert (found.known, found.matched) == (160, 96)


def test_sgr_learns(easy, tmp_path):
    done = train(
        easy,
        tmp_path / "run",
        read_settings("sgr", [*SMALL, "train.warmup_epochs=6", "train.epochs=0"]),
    )
    assert done.best_rsum > 3 * CHANCE


@pytest.fixture
def fitted(tiny, small_settings):
    """PC2 after a warm-up epoch and a co-taught one."""
    settings = read_settings("pc2-demo", [*small_settings, "train.warmup_epochs=1"])
    with open_pairs(tiny, "train", settings.data, CPU) as pairs:
        method = Pc2(settings, Sizes(len(pairs), pairs.features, 28), CPU)
        for epoch in range(2):
            method.fit_epoch(pairs, epoch)
        yield method, pairs


def test_after_an_epoch_the_bank_holds_each_pairs_own_prediction(fitted):
    method, pairs = fitted
    for net, bank in zip(method.nets, method.banks, strict=True):
        net.eval()
        for pair in range(len(pairs)):
            with torch.no_grad():
                codes = net.matching.encode_images(pairs.batch(np.array([pair])).regions)
                own = net.predict(codes)[0]
            assert torch.allclose(bank.predictions[pair], own, atol=1e-6)


def test_statistics_are_kept_by_pair_index(fitted):
    """The statistic of a pair stays its own, whatever batch it was looked at in."""
    method, pairs = fitted
    net = method.nets[0].eval()
    rows = np.arange(len(pairs))
    with torch.no_grad():
        batch = pairs.batch(rows)
        matrix = net.matching.score(
            net.matching.encode_images(batch.regions),
            net.matching.encode_captions(batch.tokens, batch.lengths),
        )
    whole = [_mean_loss(matrix, pair) for pair in rows]
    ranks = np.corrcoef(
        np.argsort(np.argsort(whole)), np.argsort(np.argsort(method.statistics[0].loss))
    )
    assert ranks[0, 1] > 0.7


def _mean_loss(matrix, pair):
    i2t = (0.2 + matrix[pair] - matrix[pair, pair]).clamp(min=0)
    t2i = (0.2 + matrix[:, pair] - matrix[pair, pair]).clamp(min=0)
    return float(i2t.mean() + t2i.mean())


def test_divisions_are_crossed(fitted):
    method, pairs = fitted
    for peer in (0, 1):
        other = method.statistics[1 - peer]
        own = method.peer_epoch(pairs, peer, triplet_hardest)
        assert own.division is other.division
        assert own.net is method.nets[peer]


def test_a_captions_class_does_not_depend_on_its_batch(fitted):
    method, pairs = fitted
    net = method.nets[0].eval()
    by_length = np.argsort([len(caption) for caption in pairs.captions])
    short, long = by_length[0], by_length[-1]
    with torch.no_grad():
        alone = net.classify(net.matching.encode_captions(*pairs.caption_batch(by_length[:1])))
        among = net.classify(
            net.matching.encode_captions(*pairs.caption_batch(np.array([short, long])))
        )
    assert torch.allclose(alone[0], among[0], atol=1e-6)


def test_a_long_caption_is_interpolated_as_images_are_resized():
    words = torch.randn(1, 50, 4)
    expected = torch.nn.functional.interpolate(
        words.transpose(1, 2), size=36, mode="linear", align_corners=False
    ).transpose(1, 2)
    assert torch.allclose(to_slots(words, torch.tensor([50])), expected, atol=1e-5)
    short = to_slots(torch.cat([words[:, :5], torch.zeros(1, 45, 4)], 1), torch.tensor([5]))
    assert torch.equal(short[0, 15:20], words[0, :5])
    assert not short[0, :15].any()
    assert not short[0, 20:].any()


def test_without_noisy_pairs_or_pseudo_captions_only_the_clean_are_taught(fitted):
    method, _ = fitted
    division = method.statistics[0].division
    batches = clean_and_noisy_batches(division, method.train.batch, 0, 2, 0, with_noisy=True)
    assert sorted(np.concatenate([clean for clean, _ in batches])) == division.clean.tolist()
    for clean, noisy in batches:
        assert len(noisy) <= method.train.batch
        assert set(noisy) <= set(division.noisy)
        assert not set(clean) & set(noisy)


def test_the_first_epoch_has_no_oscillation_and_rectifies_nothing(tiny, small_settings):
    settings = read_settings("pc2-demo", small_settings)
    with open_pairs(tiny, "train", settings.data, CPU) as pairs:
        method = Pc2(settings, Sizes(len(pairs), pairs.features, 28), CPU)
        method.fit_epoch(pairs, 0)
        assert not method.statistics[0].oscillation.any()
        assert not method.statistics[0].stable_prob.any()
        method.fit_epoch(pairs, 1)
        assert method.statistics[0].oscillation.any()


def test_peers_start_apart_and_methods_are_a_plain_table(tiny, small_settings):
    assert METHODS.keys() == method_fields().keys()
    settings = read_settings("pc2-demo", small_settings)
    method = Pc2(settings, Sizes(24, 768, 28), CPU)
    weights = [net.matching.images.project.weight for net in method.nets]
    assert not torch.equal(*weights)


def test_sgr_turns_to_hardest_negatives_as_late_as_it_is_set_to(tiny, small_settings, monkeypatch):
    asked = []
    for name in ("triplet_mean", "triplet_hardest"):
        own = getattr(sgr, name)
        monkeypatch.setattr(sgr, name, lambda *a, own=own, n=name: (asked.append(n), own(*a))[1])
    settings = read_settings(
        "sgr", [*(s for s in small_settings if "classes" not in s and "hidden" not in s),
                "train.warmup_epochs=1", "method.mean_epochs=1", "train.batch=24"],
    )  # fmt: skip
    with open_pairs(tiny, "train", settings.data, CPU) as pairs:
        method = sgr.Sgr(settings, Sizes(len(pairs), pairs.features, 28), CPU)
        for epoch in range(3):
            method.fit_epoch(pairs, epoch)
    assert asked == ["triplet_mean", "triplet_mean", "triplet_hardest"]
