"""Similarity graph reasoning between all images and all captions of a block at once."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pc2_baseline.modules.codes import CaptionCodes, ImageCodes, word_mask, xavier
from pc2_baseline.modules.fused import compare, unit

TEMPERATURE = 9.0
SLOPE = 0.1


class GraphLayer(nn.Module):
    """Let similarity nodes attend to each other and re-project them.

    Args:
        dim: Width of a node.

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
        asking: Float[Tensor, "pairs asking dim"],
        nodes: Float[Tensor, "pairs nodes dim"],
        padding: Bool[Tensor, "pairs 1 nodes"],
    ) -> Float[Tensor, "pairs asking dim"]:
        """Update the nodes that ask from all nodes.

        Args:
            asking: The nodes to update: all of ``nodes``, or the global one.
            nodes: What is attended to.
            padding: Nodes that are not there.
        """
        weight = self.key.weight.T @ self.query.weight
        bias = self.query.bias @ self.key.weight
        scores = functional.linear(asking, weight, bias) @ nodes.transpose(1, 2)
        attention = scores.masked_fill(padding, float("-inf")).softmax(-1)
        return functional.relu(self.mix(attention @ nodes))


class SgrSimilarity(nn.Module):
    """Score every image against every caption, in (0, 1).

    Captions are taken together, sorted by length and padded within a chunk; the result is that of
    one caption at a time. A block too large to be kept is computed again, chunk by chunk, in the
    backward pass, so that memory is bounded by the chunk.

    Args:
        dim: Width of regions and words.
        node_dim: Width of a similarity node.
        layers: Graph layers.
        chunk_mb: Largest (images, words, dim) tensor, in MiB of float32.
        keep_mb: Such tensors of a whole block that are kept for the backward pass.

    Source:
        SGRAF (Diao et al., AAAI 2021), branch SGR.

    Differs:
        The last graph layer is computed for the global node alone, the only one that is read.
    """

    def __init__(
        self, dim: int, node_dim: int, layers: int, chunk_mb: int = 16, keep_mb: int = 512
    ) -> None:
        super().__init__()
        self.local = nn.Linear(dim, node_dim)
        self.whole = nn.Linear(dim, node_dim)
        self.evaluate = nn.Linear(node_dim, 1)
        xavier(self)
        self.layers = nn.ModuleList(GraphLayer(node_dim) for _ in range(layers))
        self.cells = chunk_mb * 2**18 // dim
        self.kept_cells = keep_mb * 2**18 // dim

    def forward(
        self, images: ImageCodes, captions: CaptionCodes
    ) -> Float[Tensor, "images captions"]:
        """Give the similarity matrix of a block."""
        order = torch.argsort(captions.lengths, stable=True)
        chunks = self._chunks(captions.lengths[order].tolist(), len(images.pooled))
        cells = int(captions.lengths.sum()) * len(images.pooled)
        keep = cells <= self.kept_cells or not torch.is_grad_enabled()
        columns = []
        for start, stop in chunks:
            rows = order[start:stop]
            words = captions.words[rows, : int(captions.lengths[rows[-1]])]
            mask = word_mask(captions.lengths[rows], words.shape[1], words.device)
            inputs = (images.regions, images.pooled, words, captions.pooled[rows], mask)
            columns.append(
                self._block(*inputs)
                if keep
                else checkpoint(self._block, *inputs, use_reentrant=False, preserve_rng_state=False)
            )
        return torch.cat(columns, 1)[:, torch.argsort(order)]

    def _chunks(self, lengths: list[int], images: int) -> list[tuple[int, int]]:
        """Cut captions in rising length into runs whose padded size stays within ``cells``."""
        chunks, start = [], 0
        for stop in range(1, len(lengths) + 1):
            full = stop == len(lengths)
            if full or (stop + 1 - start) * lengths[stop] * images > self.cells:
                chunks.append((start, stop))
                start = stop
        return chunks

    def _block(
        self,
        regions: Float[Tensor, "images regions dim"],
        image: Float[Tensor, "images dim"],
        words: Float[Tensor, "captions words dim"],
        caption: Float[Tensor, "captions dim"],
        mask: Bool[Tensor, "captions words"],
    ) -> Float[Tensor, "images captions"]:
        local = self._local(regions, words * mask[..., None])
        whole = unit(self.whole((image[:, None] - caption).square()))
        nodes = torch.cat([whole[:, :, None], local], 2).flatten(0, 1)
        there = functional.pad(mask, (1, 0), value=True)
        padding = ~there.expand(len(image), -1, -1).reshape(len(nodes), 1, -1)
        *inner, last = self.layers
        for layer in inner:
            nodes = layer(nodes, nodes, padding)
        reasoned = last(nodes[:, :1], nodes, padding)[:, 0]
        return torch.sigmoid(self.evaluate(reasoned)).view(len(image), len(caption))

    def _local(
        self,
        regions: Float[Tensor, "images regions dim"],
        words: Float[Tensor, "captions words dim"],
    ) -> Float[Tensor, "images captions words node"]:
        """Compare each word with the regions that it attends to."""
        flat = words.flatten(0, 1)
        affinity = functional.leaky_relu(regions @ flat.T, SLOPE)
        over_words = unit(affinity.view(*affinity.shape[:2], *words.shape[:2])).flatten(-2)
        attention = (TEMPERATURE * over_words).softmax(1)
        context = attention.transpose(1, 2) @ regions
        local = unit(compare(context, flat, self.local.weight, self.local.bias))
        return local.view(len(regions), *words.shape[:2], -1)
