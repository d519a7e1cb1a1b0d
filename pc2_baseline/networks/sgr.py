"""SGR of SGRAF: a graph whose nodes compare each word with the regions that it attends to."""

from functools import partial
from typing import Literal, cast

import torch
from jaxtyping import Bool, Float
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pc2_baseline.networks import ragged
from pc2_baseline.networks.encoders import (
    CaptionCodes,
    CaptionEncoder,
    ImageCodes,
    ImageEncoder,
    word_mask,
    xavier,
)
from pc2_baseline.networks.fused import conclude, local_nodes, reason, squared_difference, unit
from pc2_baseline.networks.onednn_products import (
    NARROWEST,
    multiplies_in_bf16,
    whole_float32,
)
from pc2_baseline.networks.similarity import (
    DEFAULT_BUDGET,
    WIDE_MB,
    ChunkedSettings,
    ChunkedSimilarity,
    GraphSettings,
    MatchingNetwork,
    MemoryBudget,
)

TEMPERATURE = 9.0
SLOPE = 0.1


class NodeSettings(ChunkedSettings):
    """Settings of the networks of SGRAF."""

    similarity_dim: PositiveInt = Field(256, description="Width of a similarity node.")
    division_precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto",
        description="Precision of the large products while pairs are divided. auto is decided when "
        f"a run begins and written into run.toml: bf16 from model.embed_dim {NARROWEST} on, on a "
        "CPU that multiplies in it, else model.precision. bf16 moved 0.3 % of pairs to the other "
        "side.",
    )

    @property
    def budget(self) -> MemoryBudget:
        """Memory budget and precisions of a block."""
        division = None if self.division_precision == "auto" else self.division_precision
        return MemoryBudget(precision=self.precision, division_precision=division)

    def precision_of_division(self, device: str) -> Literal["fp32", "bf16"]:
        """Return the precision of a division on this machine."""
        if self.division_precision != "auto":
            return self.division_precision
        pays = device == "cpu" and self.embed_dim >= NARROWEST and multiplies_in_bf16()
        return "bf16" if pays else self.precision

    def encoders(self, features: int, vocabulary: int) -> tuple[ImageEncoder, CaptionEncoder]:
        """Draw the encoders, the images' first."""
        dim = self.embed_dim
        images = ImageEncoder(features, dim, self.dropout, self.feature_dropout)
        drops = self.dropout, self.word_dropout
        return images, CaptionEncoder(vocabulary, self.word_dim, dim, *drops)


class SgrSettings(NodeSettings, GraphSettings):
    """SGR of SGRAF (Diao et al., AAAI 2021)."""

    def network(self, features: int, vocabulary: int) -> MatchingNetwork:
        """Build the network."""
        encoders = self.encoders(features, vocabulary)
        sizes = self.embed_dim, self.similarity_dim, self.graph_layers
        return MatchingNetwork(*encoders, SgrSimilarity(*sizes, self.budget))


class Similarity(ChunkedSimilarity):
    """Score pairs, in (0, 1), by how their words and regions, and their pooled vectors, differ.

    A pair has a global node, and one for each word, compared with the regions that it attends to. A
    subclass defines in :meth:`conclude` how these nodes become one vector. The backward pass keeps
    no tensor of a word's width.

    Source:
        SGRAF (Diao et al., AAAI 2021).
    """

    kept_layers = 1

    def __init__(self, dim: int, node_dim: int, budget: MemoryBudget = DEFAULT_BUDGET) -> None:
        super().__init__(node_dim, budget)
        self.local = nn.Linear(dim, node_dim)
        self.whole = nn.Linear(dim, node_dim)
        self.evaluate = nn.Linear(node_dim, 1)
        xavier(self)

    def conclude(
        self,
        nodes: Float[Tensor, "images captions nodes node"],
        there: Bool[Tensor, "captions nodes"],
    ) -> tuple[Float[Tensor, "images captions node"], Float[Tensor, "extra captions"]]:
        """Turn the nodes of each pair into one vector.

        Returns:
            The vector of each pair, and figures of each caption for :meth:`note`.
        """
        raise NotImplementedError

    def score_own(self, images: ImageCodes, captions: CaptionCodes) -> Float[Tensor, " pairs"]:
        """Return the logit of each image with the caption of its own row."""
        return self._cells(images, captions, dtype=self._dtype(images.regions.dtype), logits=True)

    def _kept(self, captions: CaptionCodes, images: ImageCodes, dtype: torch.dtype) -> int:
        """Return the bytes kept for the backward pass: nodes, and attention by layer."""
        lengths = captions.lengths + 1
        nodes = int(lengths.sum()) * self.local.out_features
        attention = int(lengths.square().sum())
        cells = len(images.pooled) * (nodes + attention)
        return dtype.itemsize * self.kept_layers * cells

    def _block(
        self, images: ImageCodes, captions: CaptionCodes, dtype: torch.dtype, *, logits: bool
    ) -> Float[Tensor, "rows captions"]:
        longest = captions.longest
        words = captions.words[:, :longest]
        mask = word_mask(captions.lengths, longest, words.device)
        whole = squared_difference(
            images.pooled, captions.pooled, self.whole.weight, self.whole.bias
        )
        cells = self._chunk_bytes(words.device, WIDE_MB) // (dtype.itemsize * words.shape[2])
        halves = unit(whole), images.regions, words * mask[..., None]
        local = self.local.weight, self.local.bias
        nodes = local_nodes(*halves, *local, (TEMPERATURE, SLOPE), (dtype, cells))
        concluded, figures = self.conclude(nodes, functional.pad(mask, (1, 0), value=True))
        scores = self.evaluate(concluded).squeeze(-1)
        return torch.cat([scores if logits else torch.sigmoid(scores), figures])

    def _cells(
        self, images: ImageCodes, captions: CaptionCodes, *, dtype: torch.dtype, logits: bool
    ) -> Float[Tensor, " cells"]:
        longest = captions.longest
        mask = word_mask(captions.lengths, longest, captions.words.device)
        words = captions.words[:, :longest] * mask[..., None]
        whole = self.whole((images.pooled - captions.pooled).square())
        affinity = functional.leaky_relu(images.regions @ words.transpose(1, 2), SLOPE)
        weights = (TEMPERATURE * unit(affinity)).softmax(1).transpose(1, 2)
        context = unit(weights @ images.regions)
        weight, bias = self.local.weight.to(dtype), self.local.bias.to(dtype)
        local = functional.linear((context - words).to(dtype).square(), weight, bias)
        nodes = torch.cat([unit(whole)[:, None].to(dtype), unit(local)], 1)
        concluded, _ = self.conclude(nodes[None], functional.pad(mask, (1, 0), value=True))
        scores = self.evaluate(concluded[0]).squeeze(-1)
        return scores if logits else torch.sigmoid(scores)


class GraphLayer(nn.Module):
    """Let similarity nodes attend to each other and re-project them.

    Source:
        SGR of SGRAF (Diao et al., AAAI 2021), eq. 8 and 9: softmax(Q(X)K(X)ᵀ), unscaled, without
        a residual.

    Differs:
        Query and key projections are multiplied first: Q(x)·K(x') = (KᵀQx + Kᵀb_Q)·x' + terms in
        x alone, which cancel in the softmax, as does a key's bias. The same value, one product a
        node fewer.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim, bias=False)
        self.mix = nn.Linear(dim, dim)
        xavier(self)

    def forward(
        self,
        nodes: Float[Tensor, "pairs nodes dim"],
        padding: Bool[Tensor, "pairs 1 nodes"],
        *,
        keep: bool,
    ) -> Float[Tensor, "pairs nodes dim"]:
        """Update all nodes from all nodes."""
        return reason(nodes, padding, self.folded(), (self.mix.weight, self.mix.bias), keep=keep)

    def first(
        self, nodes: Float[Tensor, "pairs nodes dim"], padding: Bool[Tensor, "pairs 1 nodes"]
    ) -> Float[Tensor, "pairs dim"]:
        """Update the first node alone, in full precision from the attention on."""
        weight, bias = self.folded()
        mixed = conclude(nodes, padding, (weight.to(nodes.dtype), bias.to(nodes.dtype)))
        return functional.relu(self.mix(mixed.to(weight.dtype)))

    def folded(self) -> tuple[Float[Tensor, "dim dim"], Float[Tensor, " dim"]]:
        """Return the combined weight and bias of query and key."""
        return self.key.weight.T @ self.query.weight, self.query.bias @ self.key.weight


class SgrSimilarity(Similarity):
    """Score pairs by the global node, after the nodes attended to each other.

    Source:
        SGRAF (Diao et al., AAAI 2021), branch SGR.

    Differs:
        The last graph layer is computed for the global node alone, the only one that is read.
    """

    def __init__(
        self, dim: int, node_dim: int, layers: int, budget: MemoryBudget = DEFAULT_BUDGET
    ) -> None:
        super().__init__(dim, node_dim, budget)
        self.layers = nn.ModuleList(GraphLayer(node_dim) for _ in range(layers))
        self.kept_layers = layers
        self._keeps_queries = True

    def _kept(self, captions: CaptionCodes, images: ImageCodes, dtype: torch.dtype) -> int:
        kept = super()._kept(captions, images, dtype)
        # Recomputing the queries takes a tenth of a step: they are kept if they fit.
        nodes = len(images.pooled) * int((captions.lengths + 1).sum()) * self.local.out_features
        queries = dtype.itemsize * (len(self.layers) - 1) * nodes
        self._keeps_queries = not kept <= self.budget.keep_mb * 2**20 < kept + queries
        return kept

    def _in_any_order(self, images: ImageCodes) -> bool:
        dtype = self._dtype(images.regions.dtype)
        return ragged.fits(images.pooled.device, dtype, self.local.out_features)

    def score_block(
        self, images: ImageCodes, captions: CaptionCodes, *, logits: bool
    ) -> Float[Tensor, "images captions"]:
        """Score captions without padding where the device can, else in chunks."""
        dtype, node = self._dtype(images.regions.dtype), self.local.out_features
        if not (len(captions.lengths) and self._in_any_order(images)):
            return super().score_block(images, captions, logits=logits)
        parts = ragged.parts_of(len(images.pooled), captions.lengths, node * dtype.itemsize)
        block = partial(self._score_part, logits=logits)
        if len(parts) == 1 or not torch.is_grad_enabled():
            return torch.cat([block(images[part], captions, dtype) for part in parts])
        recomputed = partial(checkpoint, block, use_reentrant=False, preserve_rng_state=False)
        return torch.cat([recomputed(images[part], captions, dtype) for part in parts])

    @whole_float32()
    def _score_part(
        self, images: ImageCodes, captions: CaptionCodes, dtype: torch.dtype, *, logits: bool
    ) -> Float[Tensor, "images captions"]:
        """Score some images of a block without padding."""
        count = len(images.pooled), len(captions.lengths)
        layout = ragged.lay_out(captions.lengths, count[0], captions.words)
        words = captions.words.flatten(0, 1).index_select(0, layout.padded)
        pooled = images.pooled, captions.pooled, self.whole.weight, self.whole.bias
        local = self.local.weight, self.local.bias
        attention = (TEMPERATURE, SLOPE), dtype
        whole = unit(squared_difference(*pooled))
        nodes = ragged.local_nodes(whole, (images.regions, words), local, layout, attention)
        *inner, last = cast(list[GraphLayer], list(self.layers))
        for layer in inner:
            mix = layer.mix.weight, layer.mix.bias
            nodes = ragged.reason(nodes, layer.folded(), mix, layout)
        weight, bias = last.folded()
        mixed = ragged.conclude(nodes, (weight.to(dtype), bias.to(dtype)), layout)
        concluded = functional.relu(last.mix(mixed.to(weight.dtype)))
        scores = self.evaluate(concluded).view(count)
        return scores if logits else torch.sigmoid(scores)

    def conclude(
        self,
        nodes: Float[Tensor, "images captions nodes node"],
        there: Bool[Tensor, "captions nodes"],
    ) -> tuple[Float[Tensor, "images captions node"], Float[Tensor, "extra captions"]]:
        """Reason over the graph of each pair's nodes and return the global one."""
        images, captions = nodes.shape[:2]
        padding = ~there.expand(images, -1, -1).reshape(images * captions, 1, -1)
        flat = nodes.flatten(0, 1)
        *inner, last = self.layers
        for layer in inner:
            flat = layer(flat, padding, keep=self._keeps_queries)
        reasoned: Tensor = last.first(flat, padding)  # type: ignore[operator]
        return reasoned.view(images, captions, -1), reasoned.new_zeros(0, captions)
