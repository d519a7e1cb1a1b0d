"""Similarities of whole splits: logits, which rank as the similarities do and never saturate."""

import numpy as np
import pytest
import torch

from pc2_baseline.modules.retrieval import ensemble
from pc2_baseline.networks.encoders import CaptionCodes, ImageCodes
from pc2_baseline.networks.saf import SafSimilarity
from pc2_baseline.networks.sgr import SgrSimilarity


def sigmoid(x):
    return 1 / (1 + np.exp(-x.astype(np.float64)))


def test_an_ensemble_is_the_logit_of_the_mean_similarity():
    generator = np.random.default_rng(0)
    matrices = [generator.normal(0, 3, (20, 25)).astype(np.float32) for _ in range(3)]
    mean = np.mean([sigmoid(matrix) for matrix in matrices], axis=0)
    np.testing.assert_allclose(ensemble(matrices), np.log(mean / (1 - mean)), rtol=1e-4, atol=1e-5)


def test_similarities_that_round_to_one_still_rank():
    one = np.array([[30.0, 31.0, 32.0], [40.0, -90.0, 0.0]], dtype=np.float32)
    two = one + np.float32(8)
    assert len(np.unique(sigmoid(one[0]).astype(np.float32))) == 1
    found = ensemble([one, two])
    assert found[0, 0] < found[0, 1] < found[0, 2]
    assert np.isfinite(found).all()
    assert ensemble([one]) is one


@pytest.mark.parametrize("name", ["sgr", "saf"])
def test_logits_are_those_of_the_similarities(name):
    torch.manual_seed(0)
    block = SgrSimilarity(8, 6, 1) if name == "sgr" else SafSimilarity(8, 6)
    images = ImageCodes(torch.randn(3, 36, 8), torch.randn(3, 8))
    captions = CaptionCodes(torch.randn(4, 5, 8), torch.randn(4, 8), torch.tensor([5, 3, 1, 4]))
    block.eval()
    with torch.no_grad():
        plain, logits = block(images, captions), block(images, captions, logits=True)
    torch.testing.assert_close(plain, logits.sigmoid())
