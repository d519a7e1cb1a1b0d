"""CRCL: how a pair's confidence arises, what it does to the loss, and what a schedule begins."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from leaderboard.metrics import recalls
from now_builder.errors import ConfigError
from pc2_baseline.analysis.truth import read_truth, report
from pc2_baseline.config import read_settings
from pc2_baseline.data.pairs import open_pairs, pair_names, read_vocabulary
from pc2_baseline.methods import crcl, make_method
from pc2_baseline.methods.crcl import active_complementary, matching_probability, refined
from pc2_baseline.modules.learner import Learner
from pc2_baseline.runs.train import train
from pc2_baseline.training.method import Sizes
from pc2_baseline.training.run_folder import read_run

CPU = torch.device("cpu")
CHANCE = 2 * 100 * (1 + 5 + 10) / 40
"""rSum of a random matrix over 40 pairs; knowing the topic gives about 440."""
SMALL = [
    "data.tokenizer=jieba", "model.embed_dim=32", "model.word_dim=24", "model.similarity_dim=16",
    "model.graph_layers=1", "train.batch=8", "train.lr=2e-3", "train.device=cpu",
]  # fmt: skip
SCHEDULES = ["train.warmup_epochs=2", "train.epochs=4", "method.schedules=[1]"]
"""Epochs 0 to 2, of which 0 and 1 leave the confidences; then 3 to 5, of which 3 and 4 do."""

SIMILARITY = torch.tensor([[0.0, math.log(3)], [0.0, 0.0]], dtype=torch.float64)
"""Rows: probabilities 1/4, 3/4 and 1/2, 1/2; columns: 1/2, 1/2 and 3/4, 1/4."""


def make(settings, pairs, words=40):
    return make_method(settings, Sizes(len(pairs), pairs.features, words), CPU)


def slow_costs(similarity, confidence, tau, weight):
    """The loss of each pair straight from the equation."""
    costs = []
    for i, y in enumerate(confidence.tolist()):
        cost = 0.0
        for scores in (similarity, similarity.T):
            own = (scores[i] / tau).softmax(0).tolist()
            tangents = [math.tan(p) for p in own]
            others = sum(tangents) - tangents[i]
            cost += -y * math.log(own[i]) + weight * others / sum(tangents) ** (1 - y)
        costs.append(cost)
    return torch.tensor(costs, dtype=similarity.dtype)


def test_it_learns_and_its_confidences_find_the_shuffled_pairs(easy):
    settings = read_settings(
        "crcl",
        [*SMALL, "train.batch=16", "train.lr=5e-3", "method.schedules=[2]", "train.epochs=8"],
        on="demo",
    )
    with (
        open_pairs(easy, "train", settings.data, CPU) as pairs,
        open_pairs(easy, "dev", settings.data, CPU) as dev,
    ):
        method = make(settings, pairs, read_vocabulary(easy, settings.data).idx)
        for epoch in range(settings.train.total_epochs):
            method.fit_epoch(pairs, epoch)
        rsum = recalls(method.similarity(dev), dev.image_of).rsum
        names = pair_names(easy, settings.data, len(pairs))
    matched = read_truth(easy / "truth.csv", names).matched
    assert roc_auc_score(~matched, method.statistics["loss"]) > 0.7
    assert rsum > 4 * CHANCE
    assert roc_auc_score(matched, method.statistics["clean_prob"]) > 0.7


def test_the_loss_by_hand():
    """Pair 0: of its image 1/4 and 3/4, of its caption 1/2 and 1/2; confidence 0.3, weight 5."""
    tan = math.tan
    active = 0.3 * (math.log(4) + math.log(2))
    image = tan(0.75) / (tan(0.25) + tan(0.75)) ** 0.7
    caption = tan(0.5) / (2 * tan(0.5)) ** 0.7
    found = active_complementary(SIMILARITY, torch.tensor([0.3, 1.0]).double(), 1.0, 5.0)
    assert float(found[0]) == pytest.approx(active + 5 * (image + caption), abs=1e-7)


@pytest.mark.parametrize("weight", [0.0, 5.0])
def test_the_loss_is_that_of_the_equation_done_slowly(weight):
    similarity = torch.rand(7, 7, dtype=torch.float64)
    confidence = torch.linspace(0, 1, 7, dtype=torch.float64)
    found = active_complementary(similarity, confidence, 0.05, weight)
    assert torch.allclose(found, slow_costs(similarity, confidence, 0.05, weight))


def test_a_pair_of_no_confidence_is_not_drawn_together_and_costs_at_most_the_weight_both_ways():
    similarity = 1e3 * torch.eye(6).roll(1, 0)
    costs = active_complementary(similarity, torch.zeros(6), 0.05, 5.0)
    assert torch.allclose(costs, torch.full((6,), 10.0))
    assert float(active_complementary(similarity, torch.ones(6), 0.05, 5.0).min()) > 1e4


def test_the_loss_has_the_right_gradient_and_is_finite_at_the_extremes():
    similarity = torch.rand(4, 4, dtype=torch.float64, requires_grad=True)
    confidence = torch.tensor([0.0, 0.2, 0.9, 1.0]).double()
    assert torch.autograd.gradcheck(
        lambda s: active_complementary(s, confidence, 0.3, 5.0), similarity
    )
    for scores in (torch.zeros(2, 2), torch.zeros(9, 9), torch.randn(9, 9) * 1e3):
        for belief in (0.0, 1.0):
            asked = scores.clone().requires_grad_()
            value = active_complementary(asked, torch.full((len(asked),), belief), 0.05, 5.0).sum()
            (gradient,) = torch.autograd.grad(value, asked)
            assert torch.isfinite(value)
            assert torch.isfinite(gradient).all()


def test_confidences_keep_eight_tenths_take_two_and_are_cut_below_a_tenth():
    old, matching = torch.tensor([1.0, 0.5, 0.1, 0.1]), torch.tensor([0.5, 1.0, 0.1, 0.09])
    found = refined(old, matching, 0.8, 0.1 - 1e-6)
    assert torch.allclose(found, torch.tensor([0.9, 0.6, 0.1, 0.0]))
    assert refined(torch.zeros(1), torch.ones(1), 0.8, 0.1) == pytest.approx(0.2)


def test_the_matching_probability_is_the_mean_of_both_directions():
    found = matching_probability(SIMILARITY, 1.0)
    assert torch.allclose(found, torch.tensor([(1 / 4 + 1 / 2) / 2, (1 / 2 + 1 / 4) / 2]).double())


@pytest.fixture
def spied(monkeypatch):
    """What each step of an epoch asked: its rows, similarities and confidences."""
    asked = []
    own, step = crcl.active_complementary, Learner.step

    def costs(similarity, confidence, tau, weight):
        asked.append({
            "similarity": similarity.detach(), "confidence": confidence, "tau": tau,
            "weight": weight, "gradient": confidence.requires_grad,
        })  # fmt: skip
        return own(similarity, confidence, tau, weight)

    def take(self, loss, at):
        asked[-1] |= {"rows": at.pair_index, "loss": loss.item()}
        return step(self, loss, at)

    monkeypatch.setattr(crcl, "active_complementary", costs)
    monkeypatch.setattr(Learner, "step", take)
    return asked


def test_confidences_through_two_schedules_are_those_of_the_rules(tiny, spied):
    """Epoch by epoch: what the loss is given, and what is kept of it for the next."""
    settings = read_settings("crcl", [*SMALL, *SCHEDULES])
    with open_pairs(tiny, "train", settings.data, CPU) as pairs:
        method = make(settings, pairs)
        kept = np.ones(24)
        for epoch in range(6):
            spied.clear()
            method.fit_epoch(pairs, epoch)
            new = np.full(24, np.nan)
            for step in spied:
                rows, similarity = step["rows"], step["similarity"]
                matching = matching_probability(similarity, 0.05).numpy()
                believed = kept[rows]
                if epoch in (2, 5):
                    believed = 0.8 * believed + 0.2 * matching
                    believed[believed < 0.1] = 0
                assert np.allclose(step["confidence"], believed, atol=1e-6), epoch
                new[rows] = matching if epoch == 1 else believed
                expected = slow_costs(similarity.double(), step["confidence"], 0.05, 5.0).mean()
                assert step["loss"] == pytest.approx(float(expected), rel=1e-4)
                assert not step["gradient"]
            kept = new
            assert np.allclose(method.statistics["clean_prob"], kept, atol=1e-6), epoch
            assert np.array_equal(method.statistics["is_clean"].numpy(), kept >= 0.1)


def test_each_schedule_draws_the_network_anew_and_keeps_the_confidences(tiny):
    settings = read_settings("crcl", [*SMALL, *SCHEDULES])
    drawn = []
    with open_pairs(tiny, "train", settings.data, CPU) as pairs:
        method = make(settings, pairs)
        own = method.draw

        def draw(number):
            before = method.learner.network_state()
            own(number)
            drawn.append((epoch, number, before, method.learner.network_state()))
            assert not method.learner.optimiser.state, "the optimiser begins anew too"

        method.draw = draw
        first = make(settings, pairs).learner.network_state()
        for epoch in range(6):
            belief = method.statistics["clean_prob"]
            method.fit_epoch(pairs, epoch)
            if epoch in (0, 3, 4):
                assert torch.equal(method.statistics["clean_prob"], belief)
    ((epoch, number, before, after),) = drawn
    assert (epoch, number) == (3, 1)
    name = "images.project.weight"
    assert not torch.equal(before[name], after[name])
    assert not torch.equal(first[name], after[name]), "not the weights of the first schedule"


def test_the_rate_drops_within_each_schedule(tiny):
    settings = read_settings("crcl", [*SMALL, *SCHEDULES, "train.lr_drop_epoch=1",
                                      "method.schedules=[2]", "train.epochs=6"])  # fmt: skip
    rates = []
    with open_pairs(tiny, "train", settings.data, CPU) as pairs:
        method = make(settings, pairs)
        for epoch in range(8):
            method.fit_epoch(pairs, epoch)
            rates.append(method.learner.optimiser.param_groups[0]["lr"])
    assert rates == pytest.approx([2e-3, 2e-3, 2e-3, 2e-4] * 2)


def test_a_run_keeps_its_confidences_and_they_are_judged(tiny, tmp_path):
    settings = read_settings(
        "crcl", [*SMALL, *SCHEDULES, "train.tensorboard=false", "train.pictures=true"]
    )
    train(tiny, tmp_path / "run", settings)
    found = report(tmp_path / "run", read_run(tmp_path / "run"), tiny, tiny / "truth.csv")
    assert len(found.epochs) == 6
    assert len(list((tmp_path / "run" / "pictures").glob("*.png"))) == 6


def test_too_few_epochs_for_the_schedules_are_refused_in_one_line(tiny):
    settings = read_settings("crcl", [*SMALL, "train.epochs=19"])
    with (
        open_pairs(tiny, "train", settings.data, CPU) as pairs,
        pytest.raises(ConfigError, match=r"train\.epochs = 19, expected 22 or more"),
    ):
        make(settings, pairs)


@pytest.mark.parametrize(
    ("on", "schedules", "full"),
    [(None, [5, 5, 5, 30], 15), ("f30k", [5, 5, 5, 30], 15),
     ("cc152k", [5, 5, 5, 40], 15), ("coco", [2, 2, 2, 20], 10)],
)  # fmt: skip
def test_presets_have_the_schedules_of_the_authors_script(on, schedules, full):
    settings = read_settings("crcl", [], on)
    method, train = settings.method, settings.train
    assert [*method.schedules, schedules[-1]] == schedules
    assert train.total_epochs == sum(schedules) + 2 * len(schedules)
    assert train.warmup_epochs == 2
    assert train.warmup_epochs + train.lr_drop_epoch == full
    last = sum(schedules[:-1]) + 2 * len(schedules[:-1])
    assert train.warmup_epochs + train.select_from_epoch == last, "of the last schedule alone"
    assert (train.lr, train.weight_decay, train.clip) == (5e-4, 0.01, 2.0)
    assert (method.temperature, method.momentum, method.threshold) == (0.05, 0.8, 0.1)
    assert method.complementary_weight == 5
