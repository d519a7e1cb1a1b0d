"""Structures within a modality: how each sample of a batch lies to the others."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from pc2_baseline.modules.contrastive import log_matches
from pc2_baseline.networks.codes import CaptionCodes, ImageCodes
from pc2_baseline.networks.fused import unit
from pc2_baseline.networks.network import MatchingNetwork

Structures = tuple[Float[Tensor, "batch batch"], Float[Tensor, "batch batch"]]
"""Similarities of each image with all images of a batch, and of each caption with all captions."""


def network_structures(
    net: MatchingNetwork, images: ImageCodes, captions: CaptionCodes
) -> Structures:
    """Compare images with images, and captions with captions, by the network that matches both.

    Regions stand for words, and words for regions. It takes two more blocks of similarities.

    Args:
        net: The network.
        images: Images of a batch.
        captions: Their captions.

    Source:
        GSC (Zhao et al., CVPR 2024).

    Differs:
        The authors' code compares the regions of two images rank by rank; here each attends to
        those of the other, as words do. In it, a caption's padding is masked; here it is filled
        with the caption's own words (:func:`as_images`).
    """
    return net.score(images, as_captions(images)), net.score(as_images(captions), captions)


def pooled_structures(_: MatchingNetwork, images: ImageCodes, captions: CaptionCodes) -> Structures:
    """Compare images, and captions, by the cosines of their pooled vectors: next to no work.

    The arguments are those of :func:`network_structures`.
    """
    vectors = unit(images.pooled), unit(captions.pooled)
    of_images, of_captions = (own @ own.T for own in vectors)
    return of_images, of_captions


STRUCTURES: dict[str, Callable[[MatchingNetwork, ImageCodes, CaptionCodes], Structures]] = {
    "network": network_structures,
    "pooled": pooled_structures,
}
"""Ways to compare samples of one modality, by their name in the settings."""


def as_captions(images: ImageCodes) -> CaptionCodes:
    """Take regions for words."""
    lengths = torch.full((len(images.regions),), images.regions.shape[1])
    return CaptionCodes(images.regions, images.pooled, lengths)


def as_images(captions: CaptionCodes) -> ImageCodes:
    """Take words for regions, again from the first one where a caption is shorter than others.

    A caption whose words all come equally often is attended to as the caption itself is.
    """
    lengths = captions.lengths[:, None]
    places = torch.arange(int(lengths.max())) % lengths
    places = places[..., None].to(captions.words.device)
    words = captions.words.gather(1, places.expand(-1, -1, captions.words.shape[2]))
    return ImageCodes(words, captions.pooled)


def structure_agreement(
    images: Float[Tensor, "batch batch"], captions: Float[Tensor, "batch batch"]
) -> Float[Tensor, " batch"]:
    """Compute the cosine of each pair's two structures: high where its halves lie alike.

    Args:
        images: Structure of the images, a row each.
        captions: Structure of their captions, a row each.
    """
    return functional.cosine_similarity(images, captions, dim=1)


def structure_loss(
    images: Float[Tensor, "batch batch"], captions: Float[Tensor, "batch batch"]
) -> Float[Tensor, " batch"]:
    r"""InfoNCE of each image's structure with the captions' structures, in nats.

    .. math:: -\log \mathrm{softmax}_j (G^I_i \cdot G^T_j)_i

    The arguments are those of :func:`structure_agreement`.

    Source:
        GSC (Zhao et al., CVPR 2024); temperature and direction as in the authors' code.
    """
    return -log_matches(images @ captions.T, 1.0)[0].diagonal()
