"""How samples of one modality lie to each other, and whether the other modality agrees."""

import pytest
import torch

from pc2_baseline.config import read_settings
from pc2_baseline.methods.gsc import (
    STRUCTURES,
    as_captions,
    as_images,
    structure_agreement,
    structure_loss,
)
from pc2_baseline.methods.networks import make_network
from pc2_baseline.networks.codes import CaptionCodes, ImageCodes
from pc2_baseline.training.method import Sizes


def codes(lengths, dim=32):
    """Encode nothing: unit vectors at random, zeros from each caption's length on."""
    unit = torch.nn.functional.normalize
    words = unit(torch.randn(len(lengths), max(lengths), dim), dim=2)
    for row, length in enumerate(lengths):
        words[row, length:] = 0.0
    count = len(lengths)
    images = ImageCodes(unit(torch.randn(count, 36, dim), dim=2), unit(torch.randn(count, dim)))
    captions = CaptionCodes(words, unit(torch.randn(count, dim)), torch.tensor(lengths))
    return images, captions


@pytest.fixture(scope="module")
def net():
    small = ["model.embed_dim=32", "model.word_dim=8", "model.similarity_dim=8"]
    return make_network(read_settings("gsc", small).model, Sizes(4, 8, 9)).eval()


def test_words_stand_for_regions_again_and_again_and_padding_never_does():
    _, captions = codes([2, 5])
    words = as_images(captions).regions
    assert words.shape == (2, 5, 32)
    assert torch.equal(words[0], captions.words[0, [0, 1, 0, 1, 0]])
    assert torch.equal(words[1], captions.words[1])


def test_a_caption_whose_words_come_equally_often_is_attended_to_as_itself(net):
    """Alone it has its two words, in company of one of four words each of them twice."""
    _, captions = codes([2, 4])
    with torch.no_grad():
        among = net.score(as_images(captions), captions)
        alone = net.score(as_images(captions[:1]), captions)
    assert torch.allclose(alone[0], among[0], atol=1e-5)


def test_all_regions_stand_for_words():
    images, _ = codes([3, 3])
    found = as_captions(images)
    assert found.words is images.regions
    assert found.lengths.tolist() == [36, 36]


def test_structures_are_within_a_modality(net):
    """Other captions leave the images' structure as it was, and the reverse."""
    images, captions = codes([3, 5, 4])
    other_images, other_captions = codes([4, 2, 5])
    for compare in STRUCTURES.values():
        with torch.no_grad():
            of_images, of_captions = compare(net, images, captions)
            assert torch.equal(compare(net, images, other_captions)[0], of_images)
            assert torch.equal(compare(net, other_images, captions)[1], of_captions)
            assert of_images.shape == of_captions.shape == (3, 3)


def test_pooled_structures_are_cosines(net):
    images, captions = codes([3, 5, 4])
    for found, own in zip(
        STRUCTURES["pooled"](net, images, captions), (images, captions), strict=True
    ):
        expected = torch.cosine_similarity(own.pooled[:, None], own.pooled[None], dim=2)
        assert torch.allclose(found, expected, atol=1e-6)


def test_agreement_is_the_cosine_of_rows_and_the_loss_their_info_nce():
    images = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    captions = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    expected = torch.tensor([1.0, 2**-0.5])
    assert torch.allclose(structure_agreement(images, captions), expected)
    logits = torch.tensor([[1.0, 0.0], [1.0, 2.0]])
    expected = torch.tensor([1 + torch.e**-1, 1 + torch.e**-1]).log()
    assert torch.allclose(images @ captions.T, logits)
    assert torch.allclose(structure_loss(images, captions), expected)


def test_gradients_agree_with_finite_differences_and_zeros_are_finite():
    images, captions = torch.randn(2, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(structure_loss, (images, captions))
    zeros = torch.zeros(3, 3, requires_grad=True)
    total = structure_loss(zeros, zeros).sum() + structure_agreement(zeros, zeros).sum()
    assert torch.isfinite(total)
    assert torch.isfinite(torch.autograd.grad(total, zeros)[0]).all()
