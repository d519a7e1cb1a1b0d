"""Gradients from the active cells of a block alone are those of the whole block."""

import pytest
import torch
from torch import Tensor

from pc2_baseline.methods.decl import triplet_top
from pc2_baseline.modules.losses import triplet_hardest, triplet_mean
from pc2_baseline.networks import similarity
from pc2_baseline.networks.attention import ImramSimilarity, MaxSimilarity, ScanSimilarity
from pc2_baseline.networks.encoders import CaptionCodes, ImageCodes
from pc2_baseline.networks.fused import unit
from pc2_baseline.networks.sgr import SgrSimilarity
from pc2_baseline.networks.similarity import ChunkedSimilarity, MemoryBudget

SMALL = MemoryBudget(chunk_mb=1)
NETWORKS = {
    "sgr": lambda: SgrSimilarity(12, 8, 2, SMALL),
    "scan-t2i": lambda: ScanSimilarity("t2i", 9.0, 6.0, SMALL),
    "scan-i2t": lambda: ScanSimilarity("i2t", 4.0, 5.0, SMALL),
    "imram": lambda: ImramSimilarity(12, 3, 9.0, SMALL),
    "maxsim": lambda: MaxSimilarity(SMALL),
}
LOSSES = {
    "hardest": lambda s, m: triplet_hardest(s, m).sum(),
    "mean": lambda s, m: triplet_mean(s, m).sum(),
    "top": lambda s, m: triplet_top(s, m, 2).sum(),
    "all": lambda s, m: s.logsumexp(1).sum() - s.diagonal().sum() + 0 * m.sum(),
}


def codes(pairs: int = 14, dim: int = 12) -> list[Tensor]:
    torch.manual_seed(1)
    lengths = torch.randint(1, 9, (pairs,))
    there = torch.arange(8) < lengths[:, None]
    words = unit(torch.randn(pairs, 8, dim, dtype=torch.float64)) * there[..., None]
    shapes = ((pairs, 36, dim), (pairs, dim), (pairs, dim))
    regions, image, caption = (unit(torch.randn(s, dtype=torch.float64)) for s in shapes)
    return [regions, image, words, caption, lengths]


def gradients(net: ChunkedSimilarity, loss: str) -> tuple[Tensor, list[Tensor]]:
    *leaves, lengths = codes()
    leaves = [leaf.requires_grad_() for leaf in leaves]
    scores = net(ImageCodes(*leaves[:2]), CaptionCodes(*leaves[2:], lengths))
    margins = torch.linspace(0, 0.2, len(scores), dtype=torch.float64)
    value = LOSSES[loss](scores, margins)
    return value, list(torch.autograd.grad(value, (*leaves, *net.parameters())))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_the_whole_block(monkeypatch, name, loss):
    torch.manual_seed(0)
    net = NETWORKS[name]().double().train()
    net.few_active = False
    value, expected = gradients(net, loss)
    net.few_active = True
    if loss == "hardest":  # as a GPU does, which need not wait to learn where the cells are
        monkeypatch.setattr(similarity, "AT_ONCE", set())
        net.most_active = 3
    again, found = gradients(net, loss)
    assert torch.equal(value, again)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_a_block_with_many_active_cells_keeps_the_graph_of_the_next_until_they_are_few():
    net = NETWORKS["sgr"]().double().train()
    gradients(net, "all")
    assert not net.few_active
    gradients(net, "all")
    assert not net.few_active
    gradients(net, "hardest")
    assert net.few_active
