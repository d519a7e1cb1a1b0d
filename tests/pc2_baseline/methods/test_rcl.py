"""RCL: learns among mismatched pairs by what does not match, and by nothing else."""

import pytest
import torch

from leaderboard.metrics import recalls
from pc2_baseline.config import read_settings
from pc2_baseline.data.pairs import open_pairs, read_vocabulary
from pc2_baseline.methods import make_method, rcl
from pc2_baseline.modules.learner import Learner
from pc2_baseline.training.method import Sizes

CPU = torch.device("cpu")
CHANCE = 2 * 100 * (1 + 5 + 10) / 40
"""rSum of a random matrix over 40 pairs; knowing the topic gives about 440."""
SMALL = [
    "data.tokenizer=jieba", "model.embed_dim=32", "model.word_dim=24", "model.similarity_dim=16",
    "model.graph_layers=1", "train.batch=8", "train.lr=2e-3", "train.device=cpu",
]  # fmt: skip


def make(settings, pairs, words=40):
    return make_method(settings, Sizes(len(pairs), pairs.features, words), CPU)


def test_it_learns_where_four_in_ten_captions_are_shuffled(easy):
    settings = read_settings("rcl", [*SMALL, "train.batch=16"], on="demo")
    with (
        open_pairs(easy, "train", settings.data, CPU) as pairs,
        open_pairs(easy, "dev", settings.data, CPU) as dev,
    ):
        method = make(settings, pairs, read_vocabulary(easy, settings.data).idx)
        for epoch in range(7):
            method.fit_epoch(pairs, epoch)
        assert recalls(method.similarity(dev), dev.image_of).rsum > 4 * CHANCE


def test_its_loss_sums_the_other_pairs_of_both_directions_alone(tiny, monkeypatch):
    """The slow form, straight from the equation, of the very similarities that it learned from."""
    seen, losses = [], []
    own = rcl.complementary
    monkeypatch.setattr(
        rcl, "complementary", lambda s, tau: (seen.append((s.detach(), tau)), own(s, tau))[1]
    )
    step = Learner.step
    monkeypatch.setattr(
        Learner,
        "step",
        lambda self, loss, at: (losses.append(loss.item()), step(self, loss, at))[1],
    )
    settings = read_settings("rcl", SMALL)
    with open_pairs(tiny, "train", settings.data, CPU) as pairs:
        make(settings, pairs).fit_epoch(pairs, 0)
    assert len(seen) == len(losses) == 3
    for (similarity, tau), loss in zip(seen, losses, strict=True):
        assert tau == 0.05
        expected = 0.0
        for scores in (similarity, similarity.T):
            for i, row in enumerate((scores / 0.05).softmax(1)):
                expected -= sum(float((1 - p).log()) for j, p in enumerate(row) if j != i)
        assert loss == pytest.approx(expected / len(similarity), rel=1e-4)


def test_the_rate_drops_when_the_epochs_of_the_setting_are_over(tiny):
    settings = read_settings("rcl", [*SMALL, "train.lr_drop_epoch=1"])
    rates = []
    with open_pairs(tiny, "train", settings.data, CPU) as pairs:
        method = make(settings, pairs)
        for epoch in range(3):
            method.fit_epoch(pairs, epoch)
            rates.append(method.learner.optimiser.param_groups[0]["lr"])
    assert rates == pytest.approx([2e-3, 2e-3, 2e-4])


@pytest.mark.parametrize(
    ("on", "total", "full", "lr"),
    [(None, 30, 15, 2e-4), ("f30k", 30, 15, 2e-4), ("cc152k", 30, 15, 2e-4),
     ("coco", 20, 10, 5e-4)],
)  # fmt: skip
def test_presets_have_the_schedules_of_the_authors_scripts(on, total, full, lr):
    settings = read_settings("rcl", [], on)
    train = settings.train
    assert (train.total_epochs, train.warmup_epochs + train.lr_drop_epoch) == (total, full)
    assert (train.lr, train.batch, train.clip) == (lr, 128, 2.0)
    assert (settings.method.temperature, settings.model.embed_dim) == (0.05, 1024)
