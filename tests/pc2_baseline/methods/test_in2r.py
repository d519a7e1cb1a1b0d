"""IN2R: what is remembered, whose memory is asked, what a prototype is made of, and its loss."""

import math

import numpy as np
import pytest
import torch

from pc2_baseline.methods import in2r
from pc2_baseline.methods.in2r import GraphRefiner, counterparts, elite, newest, soft_target_costs
from pc2_baseline.modules.contrastive import symmetric_cross_entropy
from pc2_baseline.modules.division import Division, divide

PLAIN = ["model.dropout=0", "model.feature_dropout=0"]
SIDES = ("images", "captions")


def remember(method, peer, count=6, seed=0):
    """Fill the memory of a peer with random unit vectors."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(2, count, 8, generator=generator)
    unit = torch.nn.functional.normalize(vectors, dim=2)
    method.memories[peer] = dict(zip(SIDES, unit, strict=True))
    return method.memories[peer]


def slow_hinges(matrix):
    """The sum of the losses against the hardest negatives of both directions, margin 0.2."""
    found = 0.0
    for i in range(len(matrix)):
        others = [j for j in range(len(matrix)) if j != i]
        found += max(max(0.0, 0.2 + matrix[i][j] - matrix[i][i]) for j in others)
        found += max(max(0.0, 0.2 + matrix[j][i] - matrix[i][i]) for j in others)
    return found


def encoded(method, peer, pairs, rows):
    """The pooled vectors of some pairs in training mode, which changes nothing without dropout."""
    net, batch = method.matching[peer].train(), pairs.batch(rows)
    images = net.encode_images(batch.regions).pooled
    return images, net.encode_captions(batch.tokens, batch.lengths).pooled


def test_peers_start_alike_and_learn_all_pairs_by_the_symmetric_cross_entropy(on_tiny, spy, steps):
    method, pairs = on_tiny("in2r", "train.batch=12")
    first, second = (net.state_dict() for net in method.nets)
    assert all(torch.equal(first[name], second[name]) for name in first)
    calls = spy(in2r, "symmetric_cross_entropy")
    method.fit_epoch(pairs, 0)
    assert [tau for _, (_, tau), _ in calls] == [0.05] * 4
    expected = [costs.mean().item() for *_, costs in calls]
    assert [loss for loss, _ in steps] == pytest.approx(expected)
    for peer in "ab":
        rows = [step.pair_index for _, step in steps if step.peer == peer]
        assert sorted(np.concatenate(rows)) == list(range(24))
    assert not torch.equal(first["matching.images.project.weight"],
                           second["matching.images.project.weight"])  # fmt: skip


def test_pairs_are_divided_by_their_mean_negative_losses(warm, scored, mean_losses):
    method, pairs = warm("in2r", "method.division_batch=24")
    for net, found in zip(method.matching, method.statistics, strict=True):
        assert np.allclose(found.loss, mean_losses(scored(net, pairs)), atol=1e-5)
        assert np.array_equal(found.division.clean_prob, divide(found.loss, 0).clean_prob)


def test_clean_pairs_are_learned_by_triplets_between_and_within_the_modalities(divided, steps):
    method, pairs = divided("in2r", *PLAIN)
    rows = method.statistics[1].division.clean
    with torch.no_grad():
        images, captions = encoded(method, 0, pairs, rows)
    across, *within = (
        slow_hinges((first @ second.T).tolist())
        for first, second in ((images, captions), (images, images), (captions, captions))
    )
    method._rectify(pairs, 1, 0)
    loss, step = steps[-1]
    assert sorted(step.pair_index) == rows.tolist()
    assert loss == pytest.approx(across + 0.5 * sum(within), rel=1e-4)


def test_pairs_as_sure_as_the_clean_ones_on_average_are_remembered():
    """The mean of the clean ones is 0.75; a noisy pair is never remembered, however sure."""
    clean_prob = np.array([0.9, 0.6, 0.75, 0.2, 0.95])
    is_clean = np.array([True, True, True, False, False])
    assert elite(Division(clean_prob, is_clean)).tolist() == [True, False, True, False, False]
    alike = elite(Division(np.full(7, 0.7), np.ones(7, dtype=bool)))
    assert alike.all(), "not one of them is surer than the mean"


def test_a_memory_keeps_the_newest_and_forgets_the_oldest():
    old, new = ({side: start + torch.arange(3.0)[:, None] for side in SIDES} for start in (0, 10))
    assert newest([{}, old, new], 4)["images"].flatten().tolist() == [2, 10, 11, 12]
    assert newest([old], 4)["captions"].flatten().tolist() == [0, 1, 2]
    assert newest([{}, {side: own[:0] for side, own in old.items()}], 4)["images"].shape == (0, 1)


@pytest.mark.parametrize("peer", [1])
def test_a_peer_remembers_the_surest_of_the_pairs_that_the_other_calls_clean(divided, peer):
    """Behind what it remembered before, as it has encoded them in the step, in one batch."""
    method, pairs = divided("in2r", *PLAIN)
    before = remember(method, peer, 3)
    sure = elite(method.statistics[1 - peer].division)
    with torch.no_grad():
        vectors = encoded(method, peer, pairs, np.flatnonzero(sure))
    _, kept = method._rectify(pairs, 1, peer)
    for side, expected in zip(SIDES, vectors, strict=True):
        assert torch.equal(kept[side][:3], before[side])
        cosines = kept[side][3:] @ expected.T
        assert cosines.shape == (sure.sum(), sure.sum())
        assert torch.allclose(cosines.amax(1), torch.ones(sure.sum()), atol=1e-5)
        assert torch.allclose(cosines.amax(0), torch.ones(sure.sum()), atol=1e-5)


def test_each_peer_asks_what_the_other_remembered_at_the_end_of_the_last_epoch(divided, spy):
    """A noisy image among the images, for their captions; a noisy caption the other way round."""
    method, pairs = divided("in2r")
    known = [remember(method, peer, seed=peer) for peer in (0, 1)]
    calls = spy(in2r, "counterparts")
    method.fit_epoch(pairs, 1)
    assert all(len(memory["images"]) > 6 for memory in method.memories), "they have grown since"
    for peer, other in ((0, known[1]), (1, known[0])):
        (_, (_, *first), _), (_, (_, *second), _) = calls[2 * peer : 2 * peer + 2]
        for given, sides in ((first, SIDES), (second, SIDES[::-1])):
            assert all(torch.equal(a, other[b]) for a, b in zip(given, sides, strict=True))


def test_a_step_takes_the_sum_of_both_losses(divided, steps, spy):
    method, pairs = divided("in2r")
    remember(method, 1)
    calls = spy(method, "_clean_loss", "_rectification_loss")
    figures, _ = method._rectify(pairs, 1, 0)
    (_, _, (clean, _)), (_, _, noisy) = calls
    assert steps[-1][0] == pytest.approx(float((clean + noisy).detach()), rel=1e-5)
    assert figures["loss_noisy"] == pytest.approx(noisy.item())


def test_counterparts_are_the_other_halves_of_the_nearest_pairs():
    queries, keys, values = torch.randn(4, 3), torch.randn(7, 3), torch.randn(7, 2)
    found = counterparts(queries, keys, values, 3)
    for own, query in zip(found, queries, strict=True):
        order = sorted(range(7), key=lambda row: -float(query @ keys[row]))[:3]
        assert torch.equal(own, values[order])


@torch.no_grad()
def test_the_refiner_is_the_mean_of_nodes_that_attend_to_all():
    """Straight from eq. 7 to 9, a head and a node at a time."""
    torch.manual_seed(0)
    refiner = GraphRefiner(8).double().eval()
    nodes = torch.randn(2, 5, 8, dtype=torch.float64)
    attend, norm = refiner.attend, refiner.norm
    weights = attend.in_proj_weight.chunk(3)
    for batch, found in zip(nodes, refiner(nodes), strict=True):
        query, key, value = (batch @ weight.T for weight in weights)
        context = torch.zeros(5, 8, dtype=torch.float64)
        for head in range(0, 8, 2):
            part = slice(head, head + 2)
            for node in range(5):
                scores = [float(query[node, part] @ key[j, part]) / math.sqrt(2) for j in range(5)]
                shares = torch.tensor(scores, dtype=torch.float64).softmax(0)
                context[node, part] = sum(shares[j] * value[j, part] for j in range(5))
        refined = batch + context @ attend.out_proj.weight.T + attend.out_proj.bias
        centred = refined - refined.mean(1, keepdim=True)
        refined = centred / (refined.var(1, correction=0, keepdim=True) + norm.eps).sqrt()
        mean = refined.mean(0)
        assert torch.allclose(found, mean / mean.norm(), atol=1e-7)


def slow_costs(found, wanted, tau):
    """The cost of each half straight from eq. 1."""
    costs = []
    for row, target in zip(found, wanted, strict=True):
        p, q = ([math.exp(v / tau) for v in values.tolist()] for values in (row, target))
        p, q = ([v / sum(values) for v in values] for values in (p, q))
        terms = zip(p, q, strict=True)
        costs.append(-sum(b * math.log(a) + a * math.log(b) for a, b in terms))
    return costs


def test_the_costs_of_targets_agree_with_the_formula():
    found, wanted = torch.rand(2, 5, 5, dtype=torch.float64)
    costs = soft_target_costs(found, wanted, 0.3)
    assert costs.tolist() == pytest.approx(slow_costs(found, wanted, 0.3))


@pytest.mark.parametrize("way", ["targets", "prototypes"])
def test_noisy_halves_learn_from_their_prototypes_both_ways(divided, spy, way):
    """Slowly, in one batch: what each half should find is what its prototype is."""
    method, pairs = divided("in2r", *PLAIN, f"method.rectify_by={way}")
    known, rows = remember(method, 1), np.arange(5, 14)
    method.nets[0].refiner.eval()
    images, captions = encoded(method, 0, pairs, rows)
    costs = []
    for queries, others, key, value in (
        (images, captions, "images", "captions"),
        (captions, images, "captions", "images"),
    ):
        nodes = counterparts(queries, known[key], known[value], 5)
        prototypes = method.nets[0].refiner(nodes)
        if way == "targets":
            costs += slow_costs(queries @ others.T, prototypes @ others.T, 0.05)
        else:
            costs += symmetric_cross_entropy(queries @ prototypes.T, 0.05).tolist()
    weights = [own for own in method.matching[0].parameters() if own.requires_grad]
    calls = spy(in2r, "soft_target_costs")
    found = method._rectification_loss(pairs.batch(rows), 0, known)
    for _, (_, targets, _), _ in calls:
        gradients = torch.autograd.grad(
            targets.sum(), weights, retain_graph=True, allow_unused=True
        )
        assert gradients == (None,) * len(weights), "targets teach the refiner alone"
    assert found.item() == pytest.approx(sum(costs) / len(costs), rel=1e-4)
    found.backward()
    for parameters in (method.nets[0].refiner, method.matching[0].images):
        assert all(own.grad is not None and own.grad.any() for own in parameters.parameters()
                   if own.requires_grad and own.dim() > 1)  # fmt: skip
