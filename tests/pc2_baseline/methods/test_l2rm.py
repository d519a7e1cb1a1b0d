"""L2RM: who is clean, what the cost function learns, and how noisy pairs are rematched."""

import numpy as np
import pytest
import torch

from now_builder.errors import TrainingError
from pc2_baseline.config import read_settings
from pc2_baseline.data.pairs import open_pairs
from pc2_baseline.methods import l2rm, make_method
from pc2_baseline.methods.l2rm import CostFunction, partial_plan, rematching
from pc2_baseline.modules.beta_mixture import divide_by_beta
from pc2_baseline.modules.division import Division
from pc2_baseline.modules.learner import Learner
from pc2_baseline.training.method import Sizes

CPU = torch.device("cpu")
CHANCE = 2 * 100 * (1 + 5 + 10) / 40
"""rSum of a random matrix over 40 pairs; knowing the topic gives about 440."""
SMALL = [
    "data.tokenizer=jieba", "model.embed_dim=32", "model.word_dim=24", "model.similarity_dim=16",
    "model.graph_layers=1", "train.batch=12", "train.lr=2e-3", "train.device=cpu",
    "train.warmup_epochs=1",
]  # fmt: skip
CLEAN_PROB = np.linspace(0.95, 0.05, 24)
"""Of so few pairs: the first half is clean."""


def make(settings, pairs, words=40):
    return make_method(settings, Sizes(len(pairs), pairs.features, words), CPU)


@pytest.fixture
def halves(monkeypatch):
    """The mixture calls the first half of the pairs clean, whatever their losses."""
    division = Division(CLEAN_PROB, CLEAN_PROB > 0.5)
    monkeypatch.setattr(l2rm, "divide_by_beta", lambda _: division)
    return division


@pytest.fixture
def warm(tiny, halves):
    """A small method after its warm-up, and its pairs."""
    settings = read_settings("l2rm", SMALL)
    with open_pairs(tiny, "train", settings.data, CPU) as pairs:
        method = make(settings, pairs)
        method.fit_epoch(pairs, 0)
        yield method, pairs


def weights(method):
    return {name: value.clone() for name, value in method.net.state_dict().items()}


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


def test_the_warm_up_learns_all_pairs_by_the_symmetric_cross_entropy(tiny, monkeypatch):
    asked = []
    for name in ("symmetric_cross_entropy", "rematching", "triplet_hardest"):
        own = getattr(l2rm, name)
        monkeypatch.setattr(l2rm, name, lambda *a, o=own, n=name: (asked.append((n, *a)), o(*a))[1])
    taken = []
    own = Learner.step
    monkeypatch.setattr(
        Learner, "step", lambda self, loss, at: (taken.append(at), own(self, loss, at))[1]
    )
    settings = read_settings("l2rm", SMALL)
    with open_pairs(tiny, "train", settings.data, CPU) as pairs:
        method = make(settings, pairs)
        method.fit_epoch(pairs, 0)
    assert [name for name, *_ in asked] == ["symmetric_cross_entropy"] * 2
    assert [tau for *_, tau in asked] == [0.05] * 2
    assert sorted(np.concatenate([step.pair_index for step in taken])) == list(range(24))


def test_the_pairs_are_divided_by_the_beta_mixture_of_mean_negative_losses(tiny):
    settings = read_settings("l2rm", [*SMALL, "method.division_batch=24"])
    with open_pairs(tiny, "train", settings.data, CPU) as pairs:
        method = make(settings, pairs)
        method.fit_epoch(pairs, 0)
        with torch.no_grad():
            method.net.eval()
            matrix = method.net.score_batch(pairs.batch(np.arange(24)))
    own = matrix.diagonal()
    i2t = (0.2 + matrix - own[:, None]).clamp(min=0).fill_diagonal_(0).mean(1)
    t2i = (0.2 + matrix - own[None]).clamp(min=0).fill_diagonal_(0).mean(0)
    kept = method.statistics
    assert torch.allclose(kept["loss"], i2t + t2i, atol=1e-5)
    expected = divide_by_beta(kept["loss"].numpy())
    assert np.array_equal(kept["clean_prob"].numpy(), expected.clean_prob)
    assert np.array_equal(kept["is_clean"].numpy(), expected.is_clean)
    assert method.epoch_outputs()["divisions"] is kept


def spy(method, monkeypatch):
    """Record each scored batch with its triplets and plan, and each step."""
    seen = {"scored": [], "triplet": [], "plan": [], "rematched": [], "steps": []}
    own = method.net.score_batch

    def score(batch):
        found = own(batch)
        if method.net.training:
            seen["scored"].append((batch.pair_index, found))
        return found

    def record(name, key):
        function = getattr(l2rm, name)

        def call(*args):
            found = function(*args)
            seen[key].append((args, found))
            return found

        monkeypatch.setattr(l2rm, name, call)

    monkeypatch.setattr(method.net, "score_batch", score)
    record("triplet_hardest", "triplet")
    record("partial_plan", "plan")
    record("rematching", "rematched")
    step = Learner.step

    def take(self, loss, at):
        seen["steps"].append((self, loss.item(), at.pair_index))
        return step(self, loss, at)

    monkeypatch.setattr(Learner, "step", take)
    return seen


def test_clean_pairs_are_learned_by_triplets_and_noisy_ones_by_the_plan_in_one_step(
    warm, halves, monkeypatch
):
    method, pairs = warm
    seen = spy(method, monkeypatch)
    method.fit_epoch(pairs, 1)
    (clean, clean_scores), (noisy, noisy_scores) = seen["scored"]
    assert sorted(clean) == halves.clean.tolist()
    assert sorted(noisy) == halves.noisy.tolist()
    (((scores, margins), triplets),) = seen["triplet"]
    assert scores is clean_scores
    assert torch.allclose(margins, torch.full((12,), 0.2))
    (((cost, mass, regularisation, allowed), plan),) = seen["plan"]
    assert (mass, regularisation) == (0.1, 0.07)
    assert torch.equal(allowed, ~torch.eye(12, dtype=torch.bool))
    assert not plan.diagonal().any()
    assert float(plan.sum()) == pytest.approx(0.1, abs=1e-3)
    assert not plan.requires_grad
    assert torch.allclose(cost, 1 - noisy_scores, atol=1e-3), "the cost function has hardly moved"
    (((scores, used, tau), gaps),) = seen["rematched"]
    assert (scores is noisy_scores, used is plan, tau) == (True, True, 0.05)
    (cost_step, (learner, loss, rows)) = seen["steps"]
    assert cost_step[0] is method.cost_learner
    assert learner is method.learner
    assert loss == pytest.approx(float((triplets.sum() + gaps.mean()).detach()), rel=1e-5)
    assert sorted(rows) == list(range(24))


def test_on_cc152k_an_image_may_be_rematched_with_its_own_caption(warm, monkeypatch):
    method, pairs = warm
    method.method = read_settings("l2rm", [], on="cc152k").method
    seen = spy(method, monkeypatch)
    method.fit_epoch(pairs, 1)
    (((*_, allowed), plan),) = seen["plan"]
    assert allowed is None
    assert plan.diagonal().all()


def test_the_costs_are_those_of_the_cost_function(warm, monkeypatch):
    method, pairs = warm
    with torch.no_grad():
        method.cost.weight += 0.3 * torch.randn(12, 12)
    seen = spy(method, monkeypatch)
    method.method = method.method.model_copy(update={"cost_lr": 0.0})
    method.cost_learner.lr = 0.0
    method.fit_epoch(pairs, 1)
    (_, similarity) = seen["scored"][1]
    (((cost, *_), _),) = seen["plan"]
    weight, bias = method.cost.weight.detach(), method.cost.bias.detach()
    expected = (similarity.detach() @ weight.T + bias).clamp(min=0)
    assert torch.allclose(cost, expected, atol=1e-5)


def test_a_step_of_the_cost_function_leaves_the_network_as_it_is(warm):
    method, pairs = warm
    before, cost = weights(method), method.cost.weight.detach().clone()
    method.net.train()
    method._learn_cost(pairs, np.arange(12), 1, np.random.default_rng(0))
    assert same(before, weights(method)), "running means of batch normalisation too"
    assert not torch.equal(cost, method.cost.weight)
    assert method.net.training


def test_a_step_of_the_network_leaves_the_cost_function_as_it_is(warm):
    method, pairs = warm
    method.net.train()
    for parameter in method.cost.parameters():
        parameter.grad = None
    method._noisy_loss(pairs, np.arange(12, 24)).backward()
    assert all(parameter.grad is None for parameter in method.cost.parameters())
    assert any(parameter.grad is not None for parameter in method.net.parameters())


def test_the_cost_function_lowers_the_costs_of_clean_pairs_as_among_noisy_images(warm, monkeypatch):
    """The authors' way, slowly: clean images in random places among noisy ones, in float64."""
    method, pairs = warm
    method.method = method.method.model_copy(update={"cost_share": 0.5})
    taken = []
    own = Learner.step
    monkeypatch.setattr(
        Learner,
        "step",
        lambda self, loss, at: (taken.append((loss.item(), at)), own(self, loss, at)),
    )
    clean = np.arange(3, 12)
    method._learn_cost(pairs, clean, 1, np.random.default_rng(5))
    ((loss, step),) = taken
    chosen = step.pair_index
    assert 1 <= len(chosen) <= 4
    assert set(chosen) <= set(clean)
    places = np.random.default_rng(1).permutation(12)[: len(chosen)]
    images = np.arange(12, 24)
    images[places] = chosen
    with torch.no_grad():
        similarity = method.net.eval().score(
            method.net.encode_images(pairs.image_batch(pairs.image_of[images])),
            method.net.encode_captions(*pairs.caption_batch(clean)),
        )
    slow = CostFunction(12)
    costs = slow(similarity)
    total = sum(
        costs[place, np.flatnonzero(clean == row)[0]]
        for place, row in zip(places, chosen, strict=True)
    )
    assert loss == pytest.approx(float(total.detach()), rel=1e-5)
    total.backward()
    found = dict(method.cost.named_parameters())
    for name, parameter in slow.named_parameters():
        assert torch.allclose(found[name].grad, parameter.grad, atol=1e-6)


def test_of_a_hundred_clean_pairs_up_to_a_tenth_teach_the_cost_function(warm, monkeypatch):
    method, pairs = warm
    counts = []
    monkeypatch.setattr(Learner, "step", lambda self, loss, at: counts.append(len(at.pair_index)))
    generator = np.random.default_rng(0)
    method.method = method.method.model_copy(update={"cost_share": 0.25})
    for _ in range(30):
        method._learn_cost(pairs, np.arange(12), 1, generator)
    assert set(counts) == {1, 2, 3}


def test_both_learning_rates_drop_together_and_mean_epochs_put_the_hardest_off(tiny, monkeypatch):
    asked = []
    for name in ("triplet_mean", "triplet_hardest"):
        own = getattr(l2rm, name)

        def call(similarity, margins, own=own, name=name):
            if similarity.requires_grad:
                asked.append(name)
            return own(similarity, margins)

        monkeypatch.setattr(l2rm, name, call)
    division = Division(CLEAN_PROB, CLEAN_PROB > 0.5)
    monkeypatch.setattr(l2rm, "divide_by_beta", lambda _: division)
    settings = read_settings("l2rm", [*SMALL, "train.lr_drop_epoch=1", "method.mean_epochs=1"])
    rates = []
    with open_pairs(tiny, "train", settings.data, CPU) as pairs:
        method = make(settings, pairs)
        for epoch in range(3):
            method.fit_epoch(pairs, epoch)
            rates.append([
                learner.optimiser.param_groups[0]["lr"]
                for learner in (method.learner, method.cost_learner)
            ])  # fmt: skip
    assert asked == ["triplet_mean", "triplet_hardest"]
    assert np.allclose(rates, [[2e-3, 2e-6], [2e-3, 2e-6], [2e-4, 2e-7]], rtol=1e-6)


@pytest.mark.parametrize("noisy", [0, 1, 22])
def test_it_goes_on_with_hardly_any_noisy_or_clean_pair(warm, monkeypatch, noisy):
    method, pairs = warm
    clean_prob = np.where(np.arange(24) < 24 - noisy, 0.9, 0.1)
    method.statistics["clean_prob"] = torch.from_numpy(clean_prob)
    method.statistics["is_clean"] = torch.from_numpy(clean_prob > 0.5)
    seen = spy(method, monkeypatch)
    figures = method.fit_epoch(pairs, 1)
    assert np.isfinite(figures["loss"])
    assert bool(seen["rematched"]) == (noisy > 1)


def test_without_a_clean_pair_it_stops_in_one_line(warm):
    method, pairs = warm
    method.statistics["is_clean"][:] = False
    with pytest.raises(TrainingError, match="0 of 24 pairs are clean"):
        method.fit_epoch(pairs, 1)


@pytest.mark.parametrize("count", [2, 5])
def test_equal_scores_give_a_finite_loss_and_gradient(count):
    similarity = torch.full((count, count), 0.5, requires_grad=True)
    cost = CostFunction(count)(similarity.detach())
    plan = partial_plan(cost, 0.1, 0.07, ~torch.eye(count, dtype=torch.bool))
    value = rematching(similarity, plan, 0.05).mean()
    (gradient,) = torch.autograd.grad(value, similarity)
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()
    assert gradient.diagonal().min() > 0, "off the own captions, towards the others"


@pytest.mark.parametrize(
    ("on", "warm_up", "epochs", "drop", "regularisation", "mask"),
    [(None, 10, 40, 20, 0.07, True), ("cc152k", 10, 40, 20, 0.07, False),
     ("f30k", 5, 35, 15, 0.01, True), ("coco", 10, 20, 10, 0.07, True)],
)  # fmt: skip
def test_presets_have_the_schedules_of_the_authors_scripts(
    on, warm_up, epochs, drop, regularisation, mask
):
    settings = read_settings("l2rm", [], on)
    method, found = settings.method, settings.train
    assert (found.warmup_epochs, found.epochs, found.lr_drop_epoch) == (warm_up, epochs, drop)
    assert (found.lr, found.batch, found.clip) == (2e-4, 128, 2.0)
    assert (method.regularisation, method.mask_diagonal) == (regularisation, mask)
    assert (method.mass, method.temperature, method.cost_lr) == (0.1, 0.05, 2e-6)
