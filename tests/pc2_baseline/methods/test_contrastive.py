"""The contrastive baseline: which loss, which temperature, which pairs, and on which networks."""

import math

import numpy as np
import pytest
import torch

from leaderboard.metrics import recalls
from pc2_baseline.config import read_settings
from pc2_baseline.data.pairs import open_pairs, read_vocabulary
from pc2_baseline.methods.contrastive import Contrastive
from pc2_baseline.modules.learner import Learner
from pc2_baseline.training.method import Sizes

CPU = torch.device("cpu")
CHANCE = 2 * 100 * (1 + 5 + 10) / 40
"""rSum of a random matrix over 40 pairs; knowing the topic gives about 440."""

SMALL = [
    "data.tokenizer=jieba", "model.embed_dim=16", "model.word_dim=8", "model.dropout=0",
    "model.word_dropout=0", "model.feature_dropout=0", "train.warmup_epochs=1", "train.epochs=2",
    "train.device=cpu",
]  # fmt: skip


@pytest.fixture
def steps(monkeypatch):
    """Every step that is taken: its loss and its pairs."""
    taken = []
    own = Learner.step

    def spy(self, loss, step):
        taken.append((loss.item(), step.pair_index, self.optimiser.param_groups[0]["lr"]))
        return own(self, loss, step)

    monkeypatch.setattr(Learner, "step", spy)
    return taken


def slow_loss(similarity, kind, temperature, power):
    """The mean loss of a block, a pair and a direction at a time."""
    count, total = len(similarity), 0.0
    for row in range(count):
        for line in (similarity[row], similarity[:, row]):
            exps = [math.exp(value / temperature) for value in line.tolist()]
            shares = [value / sum(exps) for value in exps]
            others = [share for place, share in enumerate(shares) if place != row]
            total += {
                "info_nce": lambda own=shares[row]: -math.log(own),
                "complementary": lambda rest=others: -sum(math.log(1 - p) for p in rest),
                "gce": lambda own=shares[row]: (1 - own**power) / power,
            }[kind]()
    return total / (2 * count)


@pytest.mark.parametrize("loss", ["info_nce", "complementary", "gce"])
@pytest.mark.parametrize(("temperature", "power"), [(0.2, 0.7), (0.5, 0.3)])
def test_the_loss_is_the_one_that_is_set_at_its_temperature(tiny, steps, loss, temperature, power):
    own = [f"method.loss={loss}", f"method.temperature={temperature}", f"method.power={power}"]
    settings = read_settings("contrastive", [*SMALL, *own, "train.batch=24"], on="demo")
    with open_pairs(tiny, "train", settings.data, CPU) as pairs:
        method = Contrastive(settings, Sizes(len(pairs), pairs.features, 28), CPU)
        batch = pairs.batch(np.arange(len(pairs)))
        with torch.no_grad():
            images = method.net.encode_images(batch.regions).pooled
            captions = method.net.encode_captions(batch.tokens, batch.lengths).pooled
        method.fit_epoch(pairs, 0)
    expected = slow_loss(images @ captions.T, loss, temperature, power)
    assert steps[0][0] == pytest.approx(expected, rel=1e-4)


def test_a_batch_has_at_most_so_many_pairs_and_the_rate_drops(tiny, steps):
    settings = read_settings(
        "contrastive",
        [*SMALL, "train.batch=5", "train.lr=1e-3", "train.lr_drop_epoch=1"],
        on="demo",
    )
    with open_pairs(tiny, "train", settings.data, CPU) as pairs:
        method = Contrastive(settings, Sizes(len(pairs), pairs.features, 28), CPU)
        for epoch in range(3):
            steps.clear()
            method.fit_epoch(pairs, epoch)
            assert max(len(rows) for _, rows, _ in steps) == 5
            assert {rate for *_, rate in steps} == {1e-3 if epoch < 2 else 1e-4}


@pytest.mark.parametrize("loss", ["info_nce", "complementary", "gce"])
def test_it_learns_where_captions_are_shuffled(easy, loss):
    settings = read_settings(
        "contrastive",
        ["data.tokenizer=jieba", f"method.loss={loss}", "train.lr=5e-3", "train.device=cpu"],
        on="demo",
    )
    with (
        open_pairs(easy, "train", settings.data, CPU) as pairs,
        open_pairs(easy, "dev", settings.data, CPU) as dev,
    ):
        words = read_vocabulary(easy, settings.data).idx
        method = Contrastive(settings, Sizes(len(pairs), pairs.features, words), CPU)
        for epoch in range(8):
            method.fit_epoch(pairs, epoch)
        assert recalls(method.similarity(dev), dev.image_of).rsum > 4 * CHANCE
    assert method.ensemble_size == 1
    assert not method.epoch_outputs()


@pytest.mark.parametrize("loss", ["info_nce", "complementary", "gce"])
def test_steps_are_finite_where_all_scores_are_equal_and_in_batches_of_two(tiny, loss):
    settings = read_settings(
        "contrastive", [*SMALL, f"method.loss={loss}", "train.batch=2"], on="demo"
    )
    with open_pairs(tiny, "train", settings.data, CPU) as pairs:
        method = Contrastive(settings, Sizes(len(pairs), pairs.features, 28), CPU)
        torch.nn.init.zeros_(method.net.images.project.weight)
        found = method.fit_epoch(pairs, 0)
    assert np.isfinite(found["loss"])
