"""The block without padding is the chunked block and the loop over captions."""

import pytest
import torch

from pc2_baseline.networks import ragged
from pc2_baseline.networks.encoders import CaptionCodes, ImageCodes
from pc2_baseline.networks.fused import unit
from pc2_baseline.networks.sgr import SgrSimilarity
from tests.pc2_baseline.networks.test_similarity import loop_similarity

DIM, NODE = 24, 16


def drawn(lengths, images=5):
    """Codes whose padding is not zero."""
    torch.manual_seed(1)
    count, wide = len(lengths), {"dtype": torch.float64}
    shapes = (images, 36, DIM), (images, DIM), (count, max(lengths) + 2, DIM), (count, DIM)
    return [unit(torch.randn(shape, **wide)).requires_grad_() for shape in shapes]


def scored(net, leaves, lengths, way):
    if way == "loop":
        words = [own[:length] for own, length in zip(leaves[2], lengths, strict=True)]
        return loop_similarity(net, *leaves[:2], words, leaves[3])
    images, captions = ImageCodes(*leaves[:2]), CaptionCodes(*leaves[2:], torch.tensor(lengths))
    return net.score_block(images, captions, logits=False)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("lengths", [[1], [3, 9, 1, 6, 12], [2, 2]])
@pytest.mark.parametrize("images_at_once", [99, 2])
def test_scores_and_gradients_are_those_of_both_other_ways(
    monkeypatch, lengths, layers, images_at_once
):
    net = SgrSimilarity(DIM, NODE, layers).double()
    for own in net.parameters():
        torch.nn.init.normal_(own, std=0.3)
    monkeypatch.setattr(ragged, "PIECE_BYTES", 3 * sum(lengths) * DIM * 8)
    monkeypatch.setattr(ragged, "MOST_SEQUENCES", images_at_once * len(lengths))
    found = []
    for way in ("ragged", "chunks", "loop"):
        monkeypatch.setattr(ragged, "fits", lambda *_, way=way: way == "ragged")
        leaves = drawn(lengths)
        scores = scored(net, leaves, lengths, way)
        weights = torch.linspace(-1, 1, scores.numel(), dtype=torch.float64).view_as(scores)
        asked = [*leaves, *net.parameters()]
        gradients = torch.autograd.grad((scores * weights).sum(), asked, allow_unused=True)
        found.append((scores, gradients))
    (scores, gradients), *others = found
    for expected, wanted in others:
        assert (scores - expected).abs().max() < 1e-12
        for one, other in zip(gradients, wanted, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                assert (one - other).abs().max() <= 1e-8 * max(1.0, float(other.abs().max()))


def test_images_are_cut_into_parts_that_the_kernels_take():
    lengths = torch.full((256,), 54)
    parts = ragged.parts_of(256, lengths, 512)
    assert [part.stop - part.start for part in parts] == [128, 128]
    assert ragged.parts_of(128, lengths[:128], 512) == [slice(0, 128)]
    bf16, fp32 = torch.bfloat16, torch.float32
    assert ragged.fits(torch.device("meta"), bf16, 256)
    for device, kind, node in (("cpu", fp32, 256), ("meta", fp32, 10), ("meta", fp32, 512)):
        assert not ragged.fits(torch.device(device), kind, node)
