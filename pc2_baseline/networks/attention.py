"""Cosine of each word, or region, with the sum that it attends to: SCAN, IMRAM, MaxSim.

Both directions share their code: *queries* (words or regions) attend to *keys* (the others). The
length of the weighted sum of keys follows from the keys' Gram matrix, and its product with the
query from their affinities, so no vector of a word's width is made for a pair, and all captions
are padded and scored at once.
"""

from functools import partial
from math import log
from typing import Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field, PositiveFloat
from torch import Tensor, nn
from torch.nn import functional

from now_builder.formats.features import REGIONS
from pc2_baseline.networks.encoders import (
    CaptionCodes,
    CaptionEncoder,
    ImageCodes,
    ImageEncoder,
    word_mask,
)
from pc2_baseline.networks.fused import EPSILON, unit
from pc2_baseline.networks.pooled import cosine_logits
from pc2_baseline.networks.sgr import SLOPE
from pc2_baseline.networks.similarity import (
    DEFAULT_BUDGET,
    ChunkedSettings,
    ChunkedSimilarity,
    MatchingNetwork,
    MemoryBudget,
)

Direction = Literal["t2i", "i2t"]
STEPS = 3
"""Steps of IMRAM's matching."""

_MOST_WORDS = 2.0**20


class AttendingSettings(ChunkedSettings):
    """Settings of the networks that compare words with regions alone."""

    def network(self, features: int, vocabulary: int) -> MatchingNetwork:
        """Build the network; the similarity is drawn last."""
        dim, drops = self.embed_dim, (self.dropout, self.word_dropout)
        images = LocalImageEncoder(features, dim, self.dropout, self.feature_dropout)
        captions = LocalCaptionEncoder(vocabulary, self.word_dim, dim, *drops)
        return MatchingNetwork(images, captions, self.compare())

    def compare(self) -> ChunkedSimilarity:
        """Build the similarity, by default MaxSim."""
        return MaxSimilarity(self.budget)


class MaxSimSettings(AttendingSettings):
    """Late interaction."""


class SoftmaxAttentionSettings(AttendingSettings):
    """Settings of the networks whose attention is a softmax of affinities."""

    attention_temperature: PositiveFloat = Field(
        default_factory=lambda own: 4.0 if own["similarity"] == "scan_i2t" else 9.0,
        description="Factor in the attention's softmax.",
    )


class ScanSettings(SoftmaxAttentionSettings):
    """SCAN (Lee et al., ECCV 2018): words attend to regions (t2i), or regions to words (i2t)."""

    lse_sharpness: PositiveFloat = Field(
        default_factory=lambda own: 5.0 if own["similarity"] == "scan_i2t" else 6.0,
        description="Factor in the LogSumExp of the cosines.",
    )

    def compare(self) -> ChunkedSimilarity:
        """Build the similarity."""
        direction: Direction = "i2t" if self.similarity == "scan_i2t" else "t2i"
        factors = self.attention_temperature, self.lse_sharpness
        return ScanSimilarity(direction, *factors, self.budget)


class ImramSettings(SoftmaxAttentionSettings):
    """IMRAM (Chen et al., CVPR 2020)."""

    def compare(self) -> ChunkedSimilarity:
        """Build the similarity."""
        return ImramSimilarity(self.embed_dim, STEPS, self.attention_temperature, self.budget)


def multiply(
    keys: Float[Tensor, "sets keys dim"],
    queries: Float[Tensor, "others queries dim"],
    dtype: torch.dtype,
    *,
    paired: bool,
) -> Float[Tensor, "sets keys others_or_one queries"]:
    """Multiply queries with keys in ``dtype``; the result has the type of the inputs.

    With ``paired``, set *i* of the queries is multiplied with set *i* of the keys alone.
    """
    keys, queries, wide = keys.to(dtype), queries.to(dtype), keys.dtype
    if paired:
        return (keys @ queries.transpose(1, 2)).to(wide)[:, :, None]
    products = keys @ queries.flatten(0, 1).T
    return products.to(wide).view(*keys.shape[:2], *queries.shape[:2])


def attention(
    affinity: Float[Tensor, "sets keys others queries"],
    temperature: float,
    there: Bool[Tensor, "sets keys"] | None = None,
) -> Float[Tensor, "sets keys others queries"]:
    """Weigh the keys for each query.

    Source:
        SCAN (Lee et al., ECCV 2018), eq. 1, 2 and 7, 8: affinities of a key are scaled to length 1
        over the queries, then the softmax is taken over the keys.

    Differs:
        Negative affinities count a tenth, as in the authors' code and SGRAF's; the paper has them
        zero.
    """
    scores = temperature * unit(functional.leaky_relu(affinity, SLOPE))
    if there is not None:
        scores = scores.masked_fill(~there[:, :, None, None], float("-inf"))
    return scores.softmax(1)


def attended_cosine(
    weights: Float[Tensor, "sets keys others queries"],
    affinity: Float[Tensor, "sets keys others queries"],
    gram: Float[Tensor, "sets keys keys"],
) -> Float[Tensor, "sets others queries"]:
    r"""Cosine of each query, a unit vector, with the weighted sum of the keys.

    .. math:: \cos(q, \sum_k a_k v_k) = \sum_k a_k\,v_k^\top q\ /\ \sqrt{a^\top G a}

    Args:
        weights: :math:`a`.
        affinity: :math:`v_k^\top q`.
        gram: :math:`G`, products of the keys with each other.
    """
    mixed = (gram @ weights.flatten(2)).view_as(weights)
    squares = (weights * mixed).sum(1)
    length = squares.clamp(min=EPSILON**2).sqrt() + EPSILON
    return (weights * affinity).sum(1) / length


class AttendingSimilarity(ChunkedSimilarity):
    """Score by cosines of queries with their attended keys; a subclass defines :meth:`_compare`.

    Attributes:
        bound: Largest absolute similarity.
    """

    bound: float

    def _block(
        self, images: ImageCodes, captions: CaptionCodes, dtype: torch.dtype, *, logits: bool
    ) -> Float[Tensor, "rows captions"]:
        similarity = self._compare(images, captions, dtype, paired=False)
        return cosine_logits(similarity, self.bound) if logits else similarity

    def _cells(
        self, images: ImageCodes, captions: CaptionCodes, *, dtype: torch.dtype, logits: bool
    ) -> Float[Tensor, " cells"]:
        similarity = self._compare(images, captions, dtype, paired=True)[:, 0]
        return cosine_logits(similarity, self.bound) if logits else similarity

    def _compare(
        self, images: ImageCodes, captions: CaptionCodes, dtype: torch.dtype, *, paired: bool
    ) -> Float[Tensor, "images captions_or_one"]:
        """Return similarities, with ``paired`` of image *i* with caption *i* alone.

        The large products have the type ``dtype``.
        """
        raise NotImplementedError


class ScanSimilarity(AttendingSimilarity):
    """Stacked cross attention: the pooled cosines of words, or regions, with their attended sums.

    Args:
        direction: ``t2i``: words attend to regions; ``i2t``: regions attend to words.
        temperature: Factor of the affinities in the softmax, lambda 1 of the paper.
        sharpness: Lambda 2 of the LogSumExp that pools the cosines, which is at most 1 plus the
            logarithm of their number over the sharpness.
        budget: Memory budget and precision of a block.

    Source:
        SCAN (Lee et al., ECCV 2018), eq. 1 to 10.

    Differs:
        See :func:`attention`. One pass over padded captions gives what the authors' code computes
        in a loop over captions.
    """

    shortest = REGIONS

    def __init__(
        self,
        direction: Direction,
        temperature: float,
        sharpness: float,
        budget: MemoryBudget = DEFAULT_BUDGET,
    ) -> None:
        super().__init__(REGIONS, budget)
        self.direction = direction
        self.temperature = temperature
        self.sharpness = sharpness
        self.bound = 1.0 + log(_MOST_WORDS) / sharpness

    def _kept(self, captions: CaptionCodes, images: ImageCodes, _: torch.dtype) -> int:
        """Return the bytes of affinities, scaled ones, weights and mixtures of a block."""
        words = int(captions.lengths.sum())
        wide = images.regions.dtype.itemsize
        return 4 * wide * len(images.regions) * images.regions.shape[1] * words

    def _compare(
        self, images: ImageCodes, captions: CaptionCodes, dtype: torch.dtype, *, paired: bool
    ) -> Float[Tensor, "images captions_or_one"]:
        """Pool the cosines of the queries with their attended keys."""
        words, there = _unpadded(captions)
        all_regions = there.new_ones(images.regions.shape[:2])
        keys_there: Tensor | None = there
        keys, queries, queries_there = words, images.regions, all_regions
        if self.direction == "t2i":
            keys, queries, keys_there, queries_there = images.regions, words, None, there
        affinity = multiply(keys, queries, dtype, paired=paired)
        weights = attention(affinity, self.temperature, keys_there)
        cosines = attended_cosine(weights, affinity, keys @ keys.transpose(1, 2))
        if paired:
            return self._pool(cosines, queries_there[:, None])
        similarity = self._pool(cosines, queries_there[None])
        return similarity if self.direction == "t2i" else similarity.T

    def _pool(
        self,
        cosines: Float[Tensor, "sets others queries"],
        there: Bool[Tensor, "#sets #others queries"],
    ) -> Float[Tensor, "sets others"]:
        sharp = (self.sharpness * cosines).masked_fill(~there, float("-inf"))
        return sharp.logsumexp(2) / self.sharpness


class MaxSimilarity(AttendingSimilarity):
    r"""Late interaction: the cosine of each word with its nearest region, and vice versa.

    .. math:: \frac{1}{2}\Bigl(\frac{1}{T}\sum_t \max_k v_k^\top w_t
        + \frac{1}{K}\sum_k \max_t v_k^\top w_t\Bigr)

    It has no weights of its own, and keeps only the places of the maxima for the backward pass.

    Source:
        MaxSim of ColBERT (Khattab and Zaharia, SIGIR 2020), which ColPali (Faysse et al., ICLR
        2025) takes for words and patches of a page; both ways as FILIP (Yao et al., ICLR 2022).

    Differs:
        ColBERT and ColPali sum over the words of the query, which are the same for all that a
        query ranks. Here captions are ranked as well, so words are averaged, as in FILIP, which
        has a matrix for each direction of its loss; here there is one, their mean.
    """

    bound = 1.0

    def __init__(self, budget: MemoryBudget = DEFAULT_BUDGET) -> None:
        super().__init__(REGIONS, budget)

    def _kept(self, captions: CaptionCodes, images: ImageCodes, _: torch.dtype) -> int:
        """Return the bytes of words without padding, and of the places of a block's maxima."""
        images_, regions, dim = images.regions.shape
        words = int(captions.lengths.sum())
        maxima = images_ * (words + regions * len(captions.lengths))
        return torch.int64.itemsize * maxima + images.regions.dtype.itemsize * words * dim

    def _compare(
        self, images: ImageCodes, captions: CaptionCodes, dtype: torch.dtype, *, paired: bool
    ) -> Float[Tensor, "images captions_or_one"]:
        """Average over words and regions the cosine with the nearest of the others."""
        words, there = _unpadded(captions)
        there = there.unsqueeze(1 if paired else 0)
        affinity = multiply(images.regions, words, dtype, paired=paired)
        # A word that is not there is zero, and so is its highest affinity.
        by_words = affinity.max(1).values.sum(2) / there.sum(2)
        by_regions = affinity.masked_fill(~there[:, None], float("-inf")).max(3).values.mean(1)
        return (by_words + by_regions) / 2


class Memory(nn.Module):
    """Update the query with its attended context through a gate.

    Source:
        IMRAM (Chen et al., CVPR 2020), memory distillation unit.

    Differs:
        Instead of a weight times a weighted sum of keys, it computes the weighted sum of the
        weight's products with the keys: the same value, with one product per key instead of one
        per query of a pair.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gate = nn.Linear(2 * dim, dim)
        self.write = nn.Linear(2 * dim, dim)

    def forward(
        self,
        queries: Float[Tensor, "_sets others queries dim"],
        keys: Float[Tensor, "sets keys dim"],
        weights: Float[Tensor, "sets keys others queries"],
        dtype: torch.dtype,
    ) -> Float[Tensor, "sets others queries dim"]:
        """Return the updated queries for each set of keys.

        The queries of the first step are the same for all sets of keys.
        """
        mix = weights.flatten(2).transpose(1, 2).to(dtype)

        # W [q; Σ a_k v_k] = W_q q + Σ a_k (W_v v_k): keys are few, attended vectors one a pair.
        def linear(layer: nn.Linear) -> Float[Tensor, "sets others queries dim"]:
            of_query, of_attended = layer.weight.to(dtype).chunk(2, dim=1)
            of_queries = functional.linear(queries.to(dtype), of_query)
            attended = mix @ functional.linear(keys.to(dtype), of_attended)
            shape = (len(keys), *of_queries.shape[1:])
            return (of_queries + attended.view(shape)).to(queries.dtype) + layer.bias

        gate, write = torch.sigmoid(linear(self.gate)), torch.tanh(linear(self.write))
        return torch.lerp(write, queries.expand_as(write), gate)


class ImramSimilarity(AttendingSimilarity):
    """Iterative matching: cross attention in several steps and both directions, summed.

    After a step, each query is updated with its attended context (:class:`Memory`); the cosine is
    always that of the encoded query.

    Source:
        IMRAM (Chen et al., CVPR 2020), with both directions.

    Differs:
        Affinities are cosines in every step. The authors' code has that as an option, which its
        scripts turn off (``--no_IMRAM_norm``).
    """

    shortest = REGIONS

    def __init__(
        self, dim: int, steps: int, temperature: float, budget: MemoryBudget = DEFAULT_BUDGET
    ) -> None:
        super().__init__(dim, budget)
        self.steps = steps
        self.temperature = temperature
        self.bound = 2.0 * steps
        self.words = Memory(dim)
        self.regions = Memory(dim)

    def _kept(self, captions: CaptionCodes, images: ImageCodes, _: torch.dtype) -> int:
        """Return the bytes of queries, gates and written values of a block, in all steps."""
        images_, regions, dim = images.regions.shape
        queries = int(captions.lengths.sum()) + regions * len(captions.lengths)
        cells = images_ * queries
        attended = 4 * self.steps * cells * regions
        return images.regions.dtype.itemsize * (4 * (self.steps - 1) * dim * cells + attended)

    def _compare(
        self, images: ImageCodes, captions: CaptionCodes, dtype: torch.dtype, *, paired: bool
    ) -> Float[Tensor, "images captions_or_one"]:
        words, there = _unpadded(captions)
        all_regions = there.new_ones(images.regions.shape[:2])
        match = partial(self._match, dtype=dtype, paired=paired)
        by_words = match(images.regions, words, (all_regions, there), self.words)
        by_regions = match(words, images.regions, (there, all_regions), self.regions)
        return by_words + (by_regions if paired else by_regions.T)

    def _match(
        self,
        keys: Float[Tensor, "sets keys dim"],
        queries: Float[Tensor, "others queries dim"],
        there: tuple[Bool[Tensor, "sets keys"], Bool[Tensor, "others queries"]],
        memory: Memory,
        *,
        dtype: torch.dtype,
        paired: bool,
    ) -> Float[Tensor, "sets others_or_one"]:
        """Sum over the steps the mean cosine of the queries with their attended keys."""
        keys_there = there[0]
        side = 1 if paired else 0
        queries_there = there[1].unsqueeze(side)
        first = affinity = multiply(keys, queries, dtype, paired=paired)
        gram = keys @ keys.transpose(1, 2)
        renewed, total = queries.unsqueeze(side), first.new_zeros(())
        for step in range(self.steps):
            weights = attention(affinity, self.temperature, keys_there)
            cosines = attended_cosine(weights, first, gram)
            total = total + (cosines * queries_there).sum(2) / queries_there.sum(2)
            if step + 1 < self.steps:
                renewed = memory(renewed, keys, weights, dtype)
                affinity = self._cosines(keys, renewed, dtype) * queries_there[:, None]
        return total

    def _cosines(
        self,
        keys: Float[Tensor, "sets keys dim"],
        queries: Float[Tensor, "sets others queries dim"],
        dtype: torch.dtype,
    ) -> Float[Tensor, "sets keys others queries"]:
        """Return the cosines of keys with each set's own queries."""
        flat = queries.flatten(1, 2)
        products = (keys.to(dtype) @ flat.to(dtype).transpose(1, 2)).to(keys.dtype)
        lengths = torch.linalg.vector_norm(flat, dim=2)[:, None] + EPSILON
        cosines: Tensor = products / lengths
        return cosines.view(*keys.shape[:2], *queries.shape[1:3])


def _unpadded(
    captions: CaptionCodes,
) -> tuple[Float[Tensor, "captions words dim"], Bool[Tensor, "captions words"]]:
    """Cut words to the longest caption, set padding to zero, and return them with their mask."""
    longest = captions.longest
    there = word_mask(captions.lengths, longest, captions.words.device)
    return captions.words[:, :longest] * there[..., None], there


class LocalImageEncoder(ImageEncoder):
    """An image encoder for networks that compare regions alone: the pooled vector is their mean."""

    attends = False


class LocalCaptionEncoder(CaptionEncoder):
    """A caption encoder for networks that compare words alone: the pooled vector is their mean."""

    attends = False
