"""Similarity graph reasoning between all images and all captions of a block at once."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pc2_baseline.modules.codes import CaptionCodes, ImageCodes, word_mask, xavier
from pc2_baseline.modules.fused import conclude, local_nodes, reason, squared_difference, unit

Precision = Literal["fp32", "bf16"]

TEMPERATURE = 9.0
SLOPE = 0.1
CHUNK_MB = {"cpu": 4, "cuda": 512}


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
        self, nodes: Float[Tensor, "pairs nodes dim"], padding: Bool[Tensor, "pairs 1 nodes"]
    ) -> Float[Tensor, "pairs nodes dim"]:
        """Update all nodes from all nodes.

        Args:
            nodes: What attends and is attended to.
            padding: Nodes that are not there.
        """
        return reason(nodes, padding, self._folded(), (self.mix.weight, self.mix.bias))

    def first(
        self, nodes: Float[Tensor, "pairs nodes dim"], padding: Bool[Tensor, "pairs 1 nodes"]
    ) -> Float[Tensor, "pairs dim"]:
        """Update the first node alone, in full precision from the attention on."""
        weight, bias = self._folded()
        mixed = conclude(nodes, padding, (weight.to(nodes.dtype), bias.to(nodes.dtype)))
        return functional.relu(self.mix(mixed.to(weight.dtype)))

    def _folded(self) -> tuple[Float[Tensor, "dim dim"], Float[Tensor, " dim"]]:
        return self.key.weight.T @ self.query.weight, self.query.bias @ self.key.weight


class SgrSimilarity(nn.Module):
    """Score every image against every caption, in (0, 1).

    Captions are taken together, sorted by length and padded within a chunk; the result is that of
    one caption at a time. Nothing of the width of a word is kept for the backward pass, and where
    the nodes of a whole block would be too many, each chunk is computed again then, so that memory
    is bounded by the chunk.

    Args:
        dim: Width of regions and words.
        node_dim: Width of a similarity node.
        layers: Graph layers.
        chunk_mb: Largest tensor (images, words, dim) or (images, words, node), in MiB; ``None``:
            what suits the device.
        keep_mb: Of a whole block, what may be kept for the backward pass.
        precision: ``fp32``, or ``bf16`` for the large products and the nodes; norms, softmaxes,
            and all that has one value a pair stay in float32.

    Source:
        SGRAF (Diao et al., AAAI 2021), branch SGR.

    Differs:
        The last graph layer is computed for the global node alone, the only one that is read.
    """

    def __init__(
        self,
        dim: int,
        node_dim: int,
        layers: int,
        chunk_mb: int | None = None,
        keep_mb: int = 4096,
        precision: Precision = "fp32",
    ) -> None:
        super().__init__()
        self.local = nn.Linear(dim, node_dim)
        self.whole = nn.Linear(dim, node_dim)
        self.evaluate = nn.Linear(node_dim, 1)
        xavier(self)
        self.layers = nn.ModuleList(GraphLayer(node_dim) for _ in range(layers))
        self.precision = precision
        self.chunk_mb, self.keep_bytes = chunk_mb, keep_mb * 2**20

    def forward(
        self, images: ImageCodes, captions: CaptionCodes
    ) -> Float[Tensor, "images captions"]:
        """Give the similarity matrix of a block."""
        order = torch.argsort(captions.lengths, stable=True)
        kind = torch.bfloat16 if self.precision == "bf16" else images.regions.dtype
        room = self._room(images.regions.device)
        cells = room // (kind.itemsize * self.local.out_features)
        chunks = _runs(captions.lengths[order].tolist(), len(images.pooled), cells)
        keep = not torch.is_grad_enabled() or self._kept(captions, images, kind) <= self.keep_bytes
        columns = []
        for start, stop in chunks:
            rows = order[start:stop]
            words = captions.words[rows, : int(captions.lengths[rows[-1]])]
            mask = word_mask(captions.lengths[rows], words.shape[1], words.device)
            inputs = (images.regions, images.pooled, words, captions.pooled[rows], mask, kind, room)
            columns.append(
                self._block(*inputs)
                if keep
                else checkpoint(self._block, *inputs, use_reentrant=False, preserve_rng_state=False)
            )
        return torch.cat(columns, 1)[:, torch.argsort(order)]

    def _kept(self, captions: CaptionCodes, images: ImageCodes, kind: torch.dtype) -> int:
        """Bytes that the backward pass of a block needs: nodes and attention of each layer."""
        lengths = captions.lengths + 1
        nodes = int(lengths.sum()) * self.local.out_features
        attention = int(lengths.square().sum())
        return kind.itemsize * len(images.pooled) * len(self.layers) * (nodes + attention)

    def _room(self, device: torch.device) -> int:
        """Bytes of the largest tensor."""
        return (self.chunk_mb or CHUNK_MB.get(device.type, CHUNK_MB["cuda"])) * 2**20

    def _block(
        self,
        regions: Float[Tensor, "images regions dim"],
        image: Float[Tensor, "images dim"],
        words: Float[Tensor, "captions words dim"],
        caption: Float[Tensor, "captions dim"],
        mask: Bool[Tensor, "captions words"],
        kind: torch.dtype,
        room: int,
    ) -> Float[Tensor, "images captions"]:
        whole = squared_difference(image, caption, self.whole.weight, self.whole.bias)
        cells = room // (kind.itemsize * regions.shape[2])
        nodes = local_nodes(
            unit(whole),
            regions,
            words * mask[..., None],
            self.local.weight,
            self.local.bias,
            (TEMPERATURE, SLOPE),
            (kind, cells),
        ).flatten(0, 1)
        there = functional.pad(mask, (1, 0), value=True)
        padding = ~there.expand(len(image), -1, -1).reshape(len(nodes), 1, -1)
        *inner, last = self.layers
        for layer in inner:
            nodes = layer(nodes, padding)
        reasoned: Tensor = last.first(nodes, padding)  # type: ignore[operator]
        return torch.sigmoid(self.evaluate(reasoned)).view(len(image), len(caption))


def _runs(lengths: list[int], images: int, cells: int) -> list[tuple[int, int]]:
    """Cut captions in rising length into runs whose padded nodes stay within so many."""
    chunks, start = [], 0
    for stop in range(1, len(lengths) + 1):
        full = stop == len(lengths)
        if full or (stop + 1 - start) * (lengths[stop] + 1) * images > cells:
            chunks.append((start, stop))
            start = stop
    return chunks
