"""The matching network: both encoders and the similarity reasoning."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor, nn

from pc2_baseline.data.pairs import Batch
from pc2_baseline.networks.codes import CaptionCodes, ImageCodes
from pc2_baseline.networks.similarity import BlockSimilarity


class MatchingNetwork(nn.Module):
    """Encode images, encode captions, score them."""

    def __init__(self, images: nn.Module, captions: nn.Module, similarity: BlockSimilarity) -> None:
        super().__init__()
        self.images = images
        self.captions = captions
        self.similarity = similarity

    @contextmanager
    def dividing(self) -> Iterator[None]:
        """Evaluate pairs for a division: no graph is kept, and the precision may be its own.

        The caller puts the network, and what it belongs to, into evaluation mode.
        """
        self.similarity.dividing = True
        try:
            with torch.inference_mode():
                yield
        finally:
            self.similarity.dividing = False

    def shared_parameters(self) -> Iterable[nn.Parameter]:
        """Return the weights whose gradients are shared out among the ranks of a process group."""
        return self.similarity.parameters()

    def encode_images(self, regions: Float[Tensor, "images rows width"]) -> ImageCodes:
        """Encode screenshots."""
        codes: ImageCodes = self.images(regions)
        return codes

    def encode_captions(
        self, tokens: Num[Tensor, "captions words"], lengths: Int[Tensor, " captions"]
    ) -> CaptionCodes:
        """Encode captions."""
        codes: CaptionCodes = self.captions(tokens, lengths)
        return codes

    def score(
        self, images: ImageCodes, captions: CaptionCodes, *, logits: bool = False
    ) -> Float[Tensor, "images captions"]:
        """Return the similarity matrix of a block, or logits, which rank alike.

        Similarities are in (0, 1), or cosines and sums of them, by the kind of the network;
        margins are in their units. Logits are for scoring alone.
        """
        matrix: Tensor = self.similarity(images, captions, logits=logits)
        return matrix

    def score_batch(self, batch: Batch, *, logits: bool = False) -> Float[Tensor, "batch batch"]:
        """Encode both halves of some pairs and score them; the pairs are on the diagonal."""
        images = self.encode_images(batch.regions)
        captions = self.encode_captions(batch.tokens, batch.lengths)
        return self.score(images, captions, logits=logits)
