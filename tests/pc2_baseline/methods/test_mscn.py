"""MSCN: the meta set, the step of the meta net one step ahead, and what begins the mixture."""

import csv
import json
from copy import deepcopy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from now_builder.errors import ConfigError, TrainingError
from pc2_baseline.analysis.truth import read_division, report
from pc2_baseline.config import read_settings
from pc2_baseline.methods import mscn
from pc2_baseline.methods.mscn import MetaPairs, divide_by_known, draw_meta_pairs, meta_margins
from pc2_baseline.modules.learner import Step
from pc2_baseline.modules.seeds import stream
from pc2_baseline.runs.predict import method_title
from pc2_baseline.runs.train import train
from pc2_baseline.training.run_folder import read_run

STILL = ["model.dropout=0", "model.feature_dropout=0"]
QUARTER = "method.meta_share=0.25"
"""Six of 24 pairs."""
HEAD = "similarity.evaluate."


@pytest.fixture
def taught(divided):
    """MSCN after its warm-up: each peer calls two thirds of the pairs clean."""
    return lambda *overrides: divided("mscn", QUARTER, *overrides)


def test_margins_by_hand():
    found = meta_margins(torch.tensor([0.0, 0.2, 0.5, 0.8, 1.0]), 0.2)
    assert found.tolist() == pytest.approx([0, 0.2 * 0.04 / 0.68, 0.1, 0.2 * 0.64 / 0.68, 0.2])


@pytest.mark.parametrize("kind", ["sgr", "saf"])
def test_a_pairs_own_score_is_its_cell_of_the_block(on_tiny, kind):
    method, pairs = on_tiny("mscn", f"model.similarity={kind}")
    net, batch = method.nets[0].eval(), pairs.batch(np.arange(9))
    with torch.no_grad():
        block = net.score_batch(batch, logits=True)
        own = MetaPairs(pairs.image_of[:9], np.arange(9), np.ones(9))
        found = mscn.score_meta_pairs(net, pairs, own)
    assert torch.allclose(found, block.diagonal(), atol=1e-5)
    assert len(set(found.tolist())) > 1


def test_the_meta_set_is_of_matching_pairs_the_same_in_every_epoch(on_tiny):
    method, pairs = on_tiny("mscn", QUARTER)
    rows = method.meta_rows(pairs)
    assert len(rows) == 6
    assert pairs.matched[rows].all()
    assert np.array_equal(method.meta_rows(pairs), rows)
    assert not np.array_equal(on_tiny("mscn", QUARTER, "train.seed=5")[0].meta_rows(pairs), rows)
    few, _ = on_tiny("mscn", "method.meta_share=0.001")
    assert len(few.meta_rows(pairs)) == 2


def test_as_many_random_mismatches_stand_beside_the_matches(on_tiny):
    """With images as a noise file assigns them, some captions sharing one."""
    _, opened = on_tiny("mscn")
    pairs = replace(opened, image_of=np.roll(np.arange(24), 1) // 2)
    rows, images = np.array([3, 8, 20]), set()
    for draw in range(300):
        found = draw_meta_pairs(pairs, rows, stream(draw))
        assert found.labels.tolist() == [1, 1, 1, 0, 0, 0]
        assert found.captions[:3].tolist() == rows.tolist()
        own = pairs.image_of[found.captions]
        assert (found.images == own).tolist() == [True] * 3 + [False] * 3
        images |= set(found.images[3:])
    assert images == set(range(24))


def test_all_but_the_meta_set_is_learned_first_then_what_the_other_calls_clean(taught, steps):
    method, pairs = taught("train.batch=5")
    rest = np.setdiff1d(np.arange(24), method.meta_rows(pairs))
    for peer, name in enumerate("ab"):
        steps.clear()
        method._warm_up(pairs, 0, peer)
        rows = [step.pair_index for _, step in steps]
        assert [len(own) for own in rows] == [9, 9], "twice a batch"
        assert sorted(np.concatenate(rows)) == rest.tolist()
        steps.clear()
        method._learn(pairs, 1, peer)
        both = [step.pair_index for _, step in steps]
        assert all(np.array_equal(*both[at : at + 2]) for at in range(0, len(both), 2))
        clean = method.statistics[1 - peer].division.clean
        assert sorted(np.concatenate(both[1::2])) == np.intersect1d(clean, rest).tolist()
        assert {step.peer for _, step in steps} == {name}


def test_the_warm_up_has_mean_negatives_and_full_margins(warm, steps, scored, mean_losses):
    method, pairs = warm("mscn", QUARTER, *STILL)
    steps.clear()
    rest = np.setdiff1d(np.arange(24), method.meta_rows(pairs))
    expected = mean_losses(scored(method.nets[0], pairs, rest, training=True)).sum()
    method._warm_up(pairs, 0, 0)
    assert steps[0][0] == pytest.approx(expected.item(), rel=1e-4)


def slow_loss(net, batch, margins=None):
    """Hardest negatives, the margin the query's, straight from the equations."""
    matrix = net.score_batch(batch)
    own = matrix.diagonal()
    if margins is None:
        p = own.detach()
        margins = 0.2 / (1 + (p / (1 - p)) ** -2)
    total = 0
    for i in range(len(matrix)):
        others = [j for j in range(len(matrix)) if j != i]
        for line in (matrix[i], matrix[:, i]):
            total = total + (margins[i] + line[others] - own[i]).clamp(min=0).max()
    return total, margins


def test_the_loss_has_hardest_negatives_and_margins_by_similarity(taught):
    method, pairs = taught(*STILL)
    net, batch = method.nets[0].train(), pairs.batch(np.arange(12))
    expected, margins = slow_loss(net, batch)
    assert torch.allclose(method._loss(net.score_batch(batch), 0), expected, atol=1e-5)
    assert not margins.requires_grad


def encoded(net, batch):
    return net.encode_images(batch.regions), net.encode_captions(batch.tokens, batch.lengths)


def precise(method, pairs, kind=torch.float64):
    """A network with its copy ahead, a batch, and the meta loss from the equation."""
    net, ahead = (own[0].to(kind).train() for own in (method.nets, method.aheads))
    batch = pairs.batch(np.array([1, 4, 7, 10, 13, 16]))
    batch = replace(batch, regions=batch.regions.to(kind))
    asked = draw_meta_pairs(pairs, method.meta_rows(pairs), stream(3))
    regions = pairs.image_batch(asked.images).to(kind)
    tokens, lengths = pairs.caption_batch(asked.captions)
    labels = torch.from_numpy(asked.labels).to(kind)

    def meta_loss(own):
        images, captions = own.encode_images(regions), own.encode_captions(tokens, lengths)
        p = own.similarity.score_own(images, captions).sigmoid()
        return -(labels * p.log() + (1 - labels) * (1 - p).log()).mean()

    return net, ahead, batch, meta_loss


@pytest.mark.parametrize("kind", ["sgr", "saf"])
def test_the_gradient_of_the_meta_net_is_that_of_the_meta_loss_a_step_ahead(
    taught, monkeypatch, kind
):
    """Against the definition: the meta net moved a little, the step taken, the loss read."""
    monkeypatch.setattr(mscn, "_SHIFT", 1e-5)
    method, pairs = taught(*STILL, f"model.similarity={kind}")
    net, ahead, batch, meta_loss = precise(method, pairs)
    state, rate = deepcopy(net.state_dict()), 0.5
    _, margins = slow_loss(deepcopy(net), batch)

    def one_step_ahead(name, place, move):
        copy = deepcopy(net)
        copy.similarity.few_active = False
        parameters = dict(copy.named_parameters())
        with torch.no_grad():
            parameters[name].view(-1)[place] += move
        body = [own for own in parameters if not own.startswith(HEAD)]
        loss, _ = slow_loss(copy, batch, margins)
        gradients = torch.autograd.grad(
            loss, [parameters[own] for own in body], materialize_grads=True
        )
        with torch.no_grad():
            for own, gradient in zip(body, gradients, strict=True):
                parameters[own] -= rate * gradient
        return meta_loss(copy).item()

    value, gradients = mscn.meta_gradients(
        (net, ahead),
        rate,
        partial(encoded, ahead, batch),
        partial(method._loss, since=0),
        partial(meta_loss, ahead),
    )
    direct = torch.autograd.grad(meta_loss(ahead), list(ahead.similarity.evaluate.parameters()))
    assert value == pytest.approx(one_step_ahead(f"{HEAD}0.bias", 0, 0.0), abs=1e-9)
    places, far = 0, 0
    for (name, own), gradient, alone in zip(
        net.similarity.evaluate.named_parameters(), gradients, direct, strict=True
    ):
        for place in np.unique(np.linspace(0, own.numel() - 1, 5, dtype=int)):
            ends = [one_step_ahead(f"{HEAD}{name}", place, move) for move in (1e-6, -1e-6)]
            slope, found = (ends[0] - ends[1]) / 2e-6, gradient.view(-1)[place].item()
            assert found == pytest.approx(slope, rel=1e-3, abs=1e-7)
            places += 1
            far += abs(alone.view(-1)[place].item() - found) > 0.05 * abs(found)
    assert far > places / 3, "the step counts, not the meta loss alone"
    assert all(torch.equal(own, state[name]) for name, own in net.state_dict().items())


def test_the_shift_that_is_used_finds_the_same_gradient_in_float32(taught, monkeypatch):
    found = []
    for kind, shift in ((torch.float32, mscn._SHIFT), (torch.float64, 1e-5)):
        monkeypatch.setattr(mscn, "_SHIFT", shift)
        method, pairs = taught(*STILL, "train.seed=2")
        net, ahead, batch, meta_loss = precise(method, pairs, kind)
        given = (partial(encoded, ahead, batch), partial(method._loss, since=0))
        gradients = mscn.meta_gradients((net, ahead), 0.5, *given, partial(meta_loss, ahead))[1]
        found.append(torch.cat([own.flatten().double() for own in gradients]))
    assert torch.cosine_similarity(*found, dim=0) > 0.99


def parts_of(net):
    state = {name: own.clone() for name, own in net.named_parameters()}
    return [{name: own for name, own in state.items() if name.startswith(HEAD) == head}
            for head in (True, False)]  # fmt: skip


def moved(before, after):
    return any(not torch.equal(own, after[name]) for name, own in before.items())


def test_the_meta_net_moves_in_its_own_step_alone_and_the_network_in_the_other(taught, monkeypatch):
    method, pairs = taught("method.meta_lr=1e-3", "train.weight_decay=0.5")
    own, seen = mscn.Learner.step, []

    def step(learner, loss, at):
        before = parts_of(method.nets[0])
        value = own(learner, loss, at)
        after = parts_of(method.nets[0])
        seen.append([moved(*both) for both in zip(before, after, strict=True)])
        return value

    monkeypatch.setattr(mscn.Learner, "step", step)
    method._learn(pairs, 1, 0)
    assert seen == [[True, False], [False, True]]


def test_the_correction_is_adams_step_down_the_gradient_which_is_reported_with_its_loss(
    taught, monkeypatch
):
    method, pairs = taught("method.meta_lr=1e-3")
    head = method.nets[0].similarity.evaluate
    given = [torch.randn_like(own) for own in head.parameters()]
    monkeypatch.setattr(mscn, "meta_gradients", lambda *_: (torch.tensor(0.7), given))
    before = [own.clone() for own in head.parameters()]
    asked = draw_meta_pairs(pairs, method.meta_rows(pairs), stream(0))
    assert method._correct(pairs, Step(1, 0, "a", np.arange(8)), 0, asked) == pytest.approx(0.7)
    for own, old, gradient in zip(head.parameters(), before, given, strict=True):
        assert torch.allclose(own, old - 1e-3 * gradient.sign(), atol=1e-6)


def test_a_step_ahead_has_the_rate_of_the_epoch_and_one_dropout(taught, monkeypatch):
    method, pairs = taught("train.lr=1e-2", "train.lr_drop_epoch=1", "train.epochs=2")
    rates, same = [], []

    def meta_gradients(nets, lr, encode, *more, own=mscn.meta_gradients):
        rates.append(lr)
        found = own(nets, lr, encode, *more)
        first, second = (encode()[1].words for _ in range(2))
        assert torch.equal(first, second)
        same.append(first.sum())
        return found

    monkeypatch.setattr(mscn, "meta_gradients", meta_gradients)
    for epoch, rate in ((1, 1.0), (2, 0.1)):
        method._learn(pairs, epoch, 0)
        assert rates[-1] == pytest.approx(1e-2 * rate)
        optimiser = method.meta_learners[0].optimiser
        assert optimiser.param_groups[0]["lr"] == pytest.approx(17e-6 * rate)
    assert len(set(same)) == len(same), "another in each step"


def test_the_networks_optimiser_begins_anew_after_the_warm_up(taught):
    method, pairs = taught()
    restarts = []
    method.learners[0].restart = lambda: restarts.append(True)
    for epoch in (0, 1, 2):
        (method._learn if epoch else method._warm_up)(pairs, epoch, 0)
    assert restarts == [True]


def test_the_meta_set_is_asked_in_batches_its_mismatches_drawn_anew_each_epoch(taught, monkeypatch):
    method, pairs = taught("train.batch=4")
    meta, mismatches, own = method.meta_rows(pairs), [], method._correct
    for epoch in (1, 2):
        asked = []
        monkeypatch.setattr(
            method, "_correct",
            lambda *args, asked=asked: (asked.append(args[3]), own(*args))[1],
        )  # fmt: skip
        method._learn(pairs, epoch, 0)
        assert [len(part.labels) for part in asked[:3]] == [4, 4, 4]
        first = [np.concatenate([getattr(part, name) for part in asked[:3]])
                 for name in ("captions", "labels", "images")]  # fmt: skip
        assert sorted(first[0][first[1] == 1]) == meta.tolist()
        mismatches.append(sorted(zip(*(part[first[1] == 0] for part in first), strict=True)))
    assert len(mismatches[0]) == 6
    assert mismatches[0] != mismatches[1]


def test_pairs_are_divided_by_their_similarity_from_what_is_known_of_the_meta_set(
    taught, scored, spy
):
    method, pairs = taught()
    calls = spy(mscn, "divide_by_known")
    found = method._divide(pairs, 1, 0)
    own = 1 - scored(method.nets[0], pairs).diagonal()
    assert np.allclose(found.loss, own, atol=1e-5)
    ((_, (losses, known, labels), division),) = calls
    assert np.array_equal(losses, found.loss)
    assert division is found.division
    assert labels.tolist() == [1] * 6 + [0] * 6
    assert np.allclose(known[:6], own[method.meta_rows(pairs)], atol=1e-5)


def test_the_mixture_begins_as_the_betas_of_matches_and_mismatches(spy):
    """Shapes of the same mean and variance, by the equations of the beta distribution."""
    draw = np.random.default_rng(0)
    known = np.append(draw.beta(2, 8, 40), draw.beta(8, 2, 40)).astype(np.float32)
    labels = np.repeat([1.0, 0.0], 40)
    losses = np.append(draw.beta(2, 8, 300), draw.beta(8, 2, 100)).astype(np.float32)
    calls = spy(mscn, "posterior_from")
    division = divide_by_known(losses, known, labels)
    ((_, (values, shapes), _),) = calls
    assert np.allclose(values, losses.clip(1e-3, 1 - 1e-3))
    for label, (a, b) in zip((1, 0), shapes, strict=True):
        own = known[labels == label].astype(np.float64)
        assert a / (a + b) == pytest.approx(own.mean())
        assert a * b / ((a + b) ** 2 * (a + b + 1)) == pytest.approx(own.var())
    truth = np.arange(400) < 300
    assert (division.is_clean == truth).mean() > 0.97


@pytest.mark.parametrize("known", [[0, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0], [0.5, 0.5, 0.5, 0.5]])
def test_known_pairs_that_are_all_alike_divide_into_finite_probabilities(known):
    losses = np.linspace(0, 1, 50, dtype=np.float32)
    division = divide_by_known(losses, np.array(known, np.float32), np.array([1.0, 1, 0, 0]))
    assert np.isfinite(division.clean_prob).all()
    assert 0 < division.is_clean.sum() < 50


def test_similarities_that_are_not_finite_or_all_the_same_are_refused():
    for value, problem in ((np.nan, "pair 0 is nan"), (0.5, "tells none apart")):
        with pytest.raises(TrainingError, match=problem):
            divide_by_known(np.full(9, value, np.float32), np.ones(4), np.array([1.0, 1, 0, 0]))


@pytest.mark.parametrize("bias", [-1e4, 1e4])
def test_it_learns_on_where_the_meta_net_is_sure_of_everything(taught, bias):
    method, pairs = taught("method.meta_lr=1e-3")
    torch.nn.init.constant_(method.nets[0].similarity.evaluate[2].bias, bias)
    figures = method._learn(pairs, 1, 0)
    assert all(np.isfinite(value) for value in figures.values())
    assert all(own.isfinite().all() for own in method.nets[0].parameters())


def test_a_peer_without_two_clean_pairs_that_are_not_known_stops(taught):
    method, pairs = taught()
    is_clean = method.statistics[1].division.is_clean
    is_clean[:] = False
    is_clean[method.meta_rows(pairs)] = True
    with pytest.raises(TrainingError, match="0 of 24 pairs are clean"):
        method._learn(pairs, 1, 0)


def test_another_network_than_sgr_and_saf_is_refused():
    with pytest.raises(ConfigError, match=r'similarity is "pooled", expected "sgr" or "saf"'):
        read_settings("mscn", ["model.similarity=pooled"])


def test_what_is_known_is_asked_for_and_told(tiny, small, tmp_path, capsys):
    with pytest.raises(ConfigError, match=r"method mscn .* expected data.truth or data.noise"):
        train(tiny, tmp_path / "run", read_settings("mscn", small))
    assert not (tmp_path / "run").exists()
    settings = read_settings("mscn", [*small, f"data.truth={tiny / 'truth.csv'}"])
    train(tiny, tmp_path / "run", settings)
    said = " ".join(capsys.readouterr().err.split())
    assert "mscn: takes its meta set from the 15 of 24 pairs that the truth calls matched" in said
    assert method_title(settings) == "MSCN (taught by pairs known to match)"


def test_the_division_is_not_judged_by_the_pairs_that_taught_it(tiny, small, tmp_path):
    """Of 15 matching pairs two teach."""
    run, truth = tmp_path / "run", tiny / "truth.csv"
    train(tiny, run, read_settings("mscn", [*small, f"data.truth={truth}"]))
    found = report(run, read_run(run), tiny, None)
    last = read_division(run / f"divisions/{found.best.epoch:05d}.safetensors", 24)
    judged = ~last["taught"]
    matched = np.array(
        [row["matched"] == "True" for row in csv.DictReader(truth.read_text().splitlines())][:24]
    )
    assert (found.known, found.matched, matched[last["taught"]].sum()) == (22, 13, 2)
    area = roc_auc_score(matched[judged], last["clean_prob"][judged])
    assert found.best.auroc == pytest.approx(area)
    logged = json.loads((run / "log.jsonl").read_text().splitlines()[found.best.epoch])
    assert logged["figures"]["auroc"] == pytest.approx(area)


def test_where_all_matching_pairs_teach_the_division_has_no_auroc(tiny, small, tmp_path):
    run, truth = tmp_path / "run", tmp_path / "few.csv"
    lines = (tiny / "truth.csv").read_text().splitlines()
    spare = [line for line in lines if ",True," in line][5:]
    truth.write_text("\n".join(line for line in lines if line not in spare))
    settings = read_settings("mscn", [*small, f"data.truth={truth}", "method.meta_share=0.5"])
    train(tiny, run, settings)
    assert "auroc" not in (run / "log.jsonl").read_text()
    with pytest.raises(
        TrainingError, match="of the 9 known pairs that the method was not told of, 0"
    ):
        report(run, read_run(run), tiny, None)
