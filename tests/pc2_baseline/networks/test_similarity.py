"""The vectorised similarity against the plain loop over captions, and its parts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from pc2_baseline.networks.encoders import CaptionCodes, CaptionEncoder, ImageCodes, ImageEncoder
from pc2_baseline.networks.fused import unit
from pc2_baseline.networks.saf import SafSimilarity
from pc2_baseline.networks.sgr import SgrSimilarity
from pc2_baseline.networks.similarity import MatchingNetwork, MemoryBudget

DIM, NODE, FEATURES, VOCABULARY = 24, 10, 20, 50


def l2norm(x, dim=-1):
    return x / (x.pow(2).sum(dim, keepdim=True).sqrt() + 1e-8)


def loop_text(encoder, tokens, lengths):
    """Each caption alone: no padding anywhere."""
    words, pooled = [], []
    for row, length in zip(tokens, lengths.tolist(), strict=True):
        states, _ = encoder.read(encoder.embed(row[None, :length]))
        half = states.shape[-1] // 2
        word = l2norm((states[..., :half] + states[..., half:]) / 2)[0]
        pool = encoder.pool
        local = torch.tanh(word @ pool.local[0].weight.T + pool.local[0].bias)
        whole = torch.tanh(word.mean(0) @ pool.whole[0].weight.T + pool.whole[0].bias)
        weights = torch.softmax(pool.weigh(local * whole), 0)
        words.append(word)
        pooled.append(l2norm((weights * word).sum(0)))
    return words, pooled


def loop_similarity(sgr, regions, image, words, pooled):
    """One caption at a time against all images, as the papers' code does it, in plain steps."""
    columns = []
    for word, caption in zip(words, pooled, strict=True):
        affinity = functional.leaky_relu(regions @ word.T, 0.1)
        affinity = l2norm(affinity, 2)
        attention = torch.softmax(9.0 * affinity, 1)
        context = l2norm(attention.transpose(1, 2) @ regions)
        local = l2norm(sgr.local((context - word) ** 2))
        whole = l2norm(sgr.whole((image - caption) ** 2))
        nodes = torch.cat([whole[:, None], local], 1)
        for layer in sgr.layers:
            keys = layer.key(nodes) + 0.7  # the key's bias, which cancels
            edges = torch.softmax(layer.query(nodes) @ keys.transpose(1, 2), -1)
            nodes = torch.relu(layer.mix(edges @ nodes))
        columns.append(torch.sigmoid(sgr.evaluate(nodes[:, 0])))
    return torch.cat(columns, 1)


def network(chunk_mb=64, seed=0):
    torch.manual_seed(seed)
    net = MatchingNetwork(
        ImageEncoder(FEATURES, DIM, 0.4),
        CaptionEncoder(VOCABULARY, 12, DIM, 0.4),
        SgrSimilarity(DIM, NODE, 3, MemoryBudget(chunk_mb)),
    )
    for parameter in net.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return net.double().eval()


def inputs(lengths, images=5, seed=1):
    generator = torch.Generator().manual_seed(seed)
    regions = torch.randn(images, 36, FEATURES, generator=generator, dtype=torch.float64)
    lengths = torch.tensor(lengths)
    shape = (len(lengths), int(lengths.max()))
    tokens = torch.randint(1, VOCABULARY, shape, generator=generator)
    tokens[torch.arange(shape[1]) >= lengths[:, None]] = 0
    return regions, tokens, lengths


@settings(max_examples=15)
@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=7), seed=st.integers(0, 99))
def test_the_vectorised_similarity_is_the_loop_over_captions(lengths, seed):
    net = network(seed=seed)
    regions, tokens, lengths = inputs(lengths, seed=seed)
    images = net.encode_images(regions)
    captions = net.encode_captions(tokens, lengths)
    words, pooled = loop_text(net.captions, tokens, lengths)
    expected = loop_similarity(net.similarity, images.regions, images.pooled, words, pooled)
    assert (net.score(images, captions) - expected).abs().max() < 1e-12


def test_gradients_are_those_of_the_loop():
    net = network()
    regions, tokens, lengths = inputs([3, 17, 1, 9])
    weights = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    gradients = []
    for vectorised in (True, False):
        net.zero_grad()
        images = net.encode_images(regions)
        if vectorised:
            scores = net.score(images, net.encode_captions(tokens, lengths))
        else:
            words, pooled = loop_text(net.captions, tokens, lengths)
            scores = loop_similarity(net.similarity, images.regions, images.pooled, words, pooled)
        (scores * weights).sum().backward()
        gradients.append({n: p.grad.clone() for n, p in net.named_parameters()})
    for name, gradient in gradients[0].items():
        assert (gradient - gradients[1][name]).abs().max() < 1e-12, name


def test_small_chunks_with_recomputation_change_nothing():
    whole, cut = network(), network()
    cut.similarity._chunk_bytes = lambda *_: 8 * NODE * 36 * 5  # a caption or two at a time
    cut.similarity.budget = MemoryBudget(keep_mb=0)
    regions, tokens, lengths = inputs([5, 12, 40, 2, 2, 33])
    found = []
    for net in (whole, cut):
        scores = net.score(net.encode_images(regions), net.encode_captions(tokens, lengths))
        scores.square().sum().backward()
        found.append((scores, net.images.project.weight.grad))
    assert torch.allclose(found[0][0], found[1][0], atol=1e-13, rtol=0)
    assert torch.allclose(found[0][1], found[1][1], atol=1e-12, rtol=0)


def test_what_is_kept_for_the_backward_pass_is_bounded_by_the_estimate():
    """Bytes of all tensors saved by autograd, beside those given in."""
    net = network().float()
    regions, tokens, lengths = inputs([30, 12, 40, 22, 33], images=8)
    images = net.encode_images(regions.float())
    captions = net.encode_captions(tokens, lengths)
    net.similarity.few_active = False
    seen = {}

    def note(tensor):
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        net.score(images, captions)
    given = sum(x.untyped_storage().nbytes() for x in (images.regions, captions.words))
    estimate = net.similarity._kept(captions, images, torch.float32)
    assert sum(seen.values()) - given < 1.6 * estimate


def test_queries_are_kept_only_where_they_fit_and_change_no_gradient():
    net = network()
    regions, tokens, lengths = inputs([30, 12, 40, 22, 33], images=8)
    images, captions = net.encode_images(regions), net.encode_captions(tokens, lengths)
    kept = net.similarity._kept(captions, images, torch.float64)
    gradients = []
    for limit, keeps in ((kept, False), (2 * kept, True), (kept - 1, True)):  # the last in chunks
        net.similarity.budget = MemoryBudget(keep_mb=limit / 2**20)
        net.similarity.few_active = False
        score = net.score(images, captions).square().sum()
        assert net.similarity._keeps_queries == keeps
        weights = list(net.similarity.parameters())
        gradients.append(torch.autograd.grad(score, weights, retain_graph=True))
    for others in gradients[1:]:
        assert all(map(torch.equal, gradients[0], others))


def test_a_division_has_a_precision_of_its_own():
    regions, tokens, lengths = inputs([5, 12, 2, 33])
    scores = {}
    for precision, division in (("fp32", None), ("fp32", "bf16"), ("bf16", None), ("bf16", "fp32")):
        net = network().float()
        net.similarity.budget = MemoryBudget(precision=precision, division_precision=division)
        images = net.encode_images(regions.float())
        captions = net.encode_captions(tokens, lengths)
        outside = net.score(images, captions)
        with net.dividing():
            inside = net.score(images, captions)
            assert not inside.requires_grad
        assert torch.equal(outside, net.score(images, captions))
        scores[precision, division] = outside, inside
    exact, rounded = scores["fp32", None], scores["bf16", None]
    assert torch.equal(*exact)
    assert torch.equal(*rounded)
    assert torch.equal(torch.stack(scores["fp32", "bf16"]), torch.stack([exact[0], rounded[0]]))
    assert torch.equal(torch.stack(scores["bf16", "fp32"]), torch.stack([rounded[0], exact[0]]))
    assert 0 < (exact[0] - rounded[0]).abs().max() < 0.01


def loop_filtration(saf, norm, images, captions):
    """SAF one caption at a time, with a batch normalisation that moves at every caption."""
    columns = []
    for row, length in enumerate(captions.lengths.tolist()):
        word = captions.words[row, :length]
        affinity = l2norm(functional.leaky_relu(images.regions @ word.T, 0.1), 2)
        context = l2norm(torch.softmax(9.0 * affinity, 1).transpose(1, 2) @ images.regions)
        local = l2norm(saf.local((context - word) ** 2))
        whole = l2norm(saf.whole((images.pooled - captions.pooled[row]) ** 2))
        nodes = torch.cat([whole[:, None], local], 1)
        gates = torch.sigmoid(norm(saf.weigh(nodes).transpose(1, 2)))
        weights = gates / (gates.abs().sum(2, keepdim=True) + 1e-8)
        columns.append(torch.sigmoid(saf.evaluate(l2norm((weights @ nodes)[:, 0]))))
    return torch.cat(columns, 1)


@pytest.mark.parametrize(("training", "keep_mb"), [(False, 4096), (True, 0)])
def test_filtration_is_the_loop_with_its_statistics(training, keep_mb):
    torch.manual_seed(4)
    saf = SafSimilarity(DIM, NODE, MemoryBudget(keep_mb=keep_mb)).double().train(training)
    saf._chunk_bytes = lambda *_: 8 * NODE * 36 * 5
    saf.norm.running_mean.fill_(0.3)
    saf.norm.running_var.fill_(0.2)
    norm = torch.nn.BatchNorm1d(1).double().train(training)
    norm.load_state_dict(saf.norm.state_dict())
    generator = torch.Generator().manual_seed(5)
    lengths = torch.tensor([7, 2, 30, 1, 12])
    there = torch.arange(30)[None, :, None] < lengths[:, None, None]
    codes = [unit(torch.randn(*shape, generator=generator).double())
             for shape in ((6, 36, DIM), (6, DIM), (5, 30, DIM), (5, DIM))]  # fmt: skip
    gradients = []
    for own in (True, False):
        saf.zero_grad(), norm.zero_grad()
        images = ImageCodes(codes[0].clone().requires_grad_(), codes[1])
        captions = CaptionCodes(codes[2] * there, codes[3], lengths)
        found = saf(images, captions) if own else loop_filtration(saf, norm, images, captions)
        (found * torch.arange(30.0).view(6, 5)).sum().backward()
        gradients.append((found.detach(), images.regions.grad, saf.weigh.weight.grad.clone()))
    assert (gradients[0][0] - gradients[1][0]).abs().max() < 1e-12
    for ours, plain in zip(*gradients, strict=True):
        assert torch.allclose(ours, plain, rtol=1e-10, atol=1e-11)
    assert torch.allclose(saf.norm.running_mean, norm.running_mean, atol=1e-14)
    assert torch.allclose(saf.norm.running_var, norm.running_var, atol=1e-14)
