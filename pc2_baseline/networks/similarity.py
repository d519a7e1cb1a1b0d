"""Similarity of all images with all captions of a block: in chunks, by cells, by cosines.

Gradients are computed for the active cells of a block alone, those whose gradient is not zero. A
hinge on the hardest negatives has at most 3 B of them among B² cells; for a sum over negatives they
are those that break the margin. So a block is scored without a graph, and its active cells are
scored a second time with one: the gradients are the same, and the loss sees all scores, ties
included.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int, Num
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from pc2_baseline.config import ModelSettings
from pc2_baseline.data.pairs import Batch
from pc2_baseline.networks.encoders import Block, CaptionCodes, ImageCodes
from pc2_baseline.networks.onednn_products import whole_float32
from pc2_baseline.process_groups import ALONE, ProcessGroup

CHUNK_MB = {"cpu": 8, "cuda": 128}
"""Maximum size of a chunk's nodes in MiB, by device: larger chunks contain more padding."""
WIDE_MB = {"cpu": 8, "cuda": 1024}
"""Maximum size in MiB of a chunk's tensors of a word's width, by device: on a GPU, starting many
small kernels takes longer than their work (45 µs each on an H100)."""

AT_ONCE = {"cpu"}
"""Device types whose results the host need not wait for."""


class FeatureSettings(ModelSettings):
    """Settings of all networks that use region features."""

    feature_dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="Dropout of the values of the regions' features."
    )


class EmbeddingSettings(FeatureSettings):
    """Settings of all networks that embed regions and words."""

    embed_dim: PositiveInt = Field(2048, description="Width of regions and words.")
    word_dim: PositiveInt = Field(300, description="Width of a token's embedding.")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.4, description="Dropout in the word embedding and both attention poolings."
    )
    word_dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="Dropout of whole words."
    )

    @property
    def product_width(self) -> int:
        """Width of an embedding."""
        return self.embed_dim


class GraphSettings(EmbeddingSettings):
    """Settings of the networks that reason over a graph."""

    graph_layers: PositiveInt = Field(3, description="Layers of graph reasoning.")


class ChunkedSettings(EmbeddingSettings):
    """Settings of the networks that compare words with regions."""

    has_parts: ClassVar[bool] = True

    precision: Literal["fp32", "bf16"] = Field(
        "fp32",
        description="Precision of the similarity's large products; norms, softmaxes and losses "
        "stay in fp32.",
    )

    @property
    def budget(self) -> "MemoryBudget":
        """Memory budget and precision of a block."""
        return MemoryBudget(precision=self.precision)


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Memory budget and numeric precision of a block's similarity.

    Attributes:
        chunk_mb: Maximum size in MiB of a tensor (images, words, dim) or (images, words, node);
            ``None``: the device's default.
        keep_mb: Maximum size in MiB of the activations of a block kept for the backward pass.
        precision: ``fp32``, or ``bf16`` for the large products and the nodes; norms, softmaxes
            and tensors with one value per pair stay in float32.
        division_precision: Precision while pairs are divided; ``None``: ``precision``.
    """

    chunk_mb: int | None = None
    keep_mb: int = 4096
    precision: Literal["fp32", "bf16"] = "fp32"
    division_precision: Literal["fp32", "bf16"] | None = None


DEFAULT_BUDGET = MemoryBudget()


FEW = 0.4
"""Maximum share of active cells; above it, keeping the graph is cheaper than scoring them twice.

Measured on the CPU at widths 256 and 1,024; at one half both cost the same.
"""


class _ActiveCells(Function):
    """Score a block; its backward pass scores the active cells a second time."""

    @staticmethod
    def forward(
        ctx: Any,
        similarity: "ChunkedSimilarity",
        logits: bool,  # noqa: FBT001 - autograd takes no names
        lengths: Tensor,
        *tensors: Tensor,
    ) -> Tensor:
        ctx.similarity, ctx.logits, ctx.lengths = similarity, logits, lengths
        ctx.save_for_backward(*tensors)
        regions, image, words, caption = tensors[:4]
        captions = CaptionCodes(words, caption, lengths)
        return similarity.score_block(ImageCodes(regions, image), captions, logits=logits)

    @staticmethod
    @whole_float32()
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        sums = ctx.similarity.cell_gradients(
            ctx.saved_tensors, ctx.lengths, gradient, logits=ctx.logits
        )
        return None, None, None, *sums


class BlockSimilarity(nn.Module):
    """Score every image of a block against every caption; a subclass defines :meth:`forward`.

    Attributes:
        group: Ranks that train the network together. Gradients of parameters that act on a rank's
            share of the block are summed over the ranks; each rank repeats all other work.
        few_active: Whether few active cells are expected in the next block. Each block sets it for
            the next; set it when an epoch begins, so that a resumed epoch does the same.
        dividing: Whether pairs are being divided, which may have another precision.
    """

    most_active: int | None = None
    """Maximum active cells per image under the next loss, if known. A GPU then selects the cells of
    the largest gradients, and the host need not wait for their number."""

    by_cell = True
    """Whether a cell's similarity depends on its own image and caption alone."""

    def __init__(self) -> None:
        super().__init__()
        self.group: ProcessGroup = ALONE
        self.few_active: bool | Tensor = True
        self.dividing = False

    def forward(
        self, images: ImageCodes, captions: CaptionCodes, *, logits: bool = False
    ) -> Float[Tensor, "images captions"]:
        """Return the similarity matrix of a block, or logits, which rank the same.

        :func:`~pc2_baseline.modules.retrieval.ensemble` averages the sigmoids of logits.
        """
        raise NotImplementedError


class ChunkedSimilarity(BlockSimilarity):
    """Score the captions of a block in chunks.

    Captions are sorted by length and padded within a chunk; the result equals scoring one caption
    at a time. If the activations of a whole block exceed the budget, each chunk is recomputed in
    the backward pass, so that memory is bounded by the chunk. Each rank of a process group scores a
    share of the captions.

    A subclass defines in :meth:`_block` the scores of a chunk, and in :meth:`_kept` the bytes that
    they keep.

    ``width`` is the number of values that a chunk holds for each image and word.
    """

    extra = 0
    """Rows that :meth:`_block` adds below the similarities of a caption."""

    shortest = 0
    """Minimum number of words assumed for a caption when chunks are cut."""

    def __init__(self, width: int, budget: MemoryBudget = DEFAULT_BUDGET) -> None:
        super().__init__()
        self.width = width
        self.budget = budget

    @whole_float32()
    def forward(
        self, images: ImageCodes, captions: CaptionCodes, *, logits: bool = False
    ) -> Float[Tensor, "images captions"]:
        """Return the similarity matrix of a block, or its logits."""
        # Sorted by length, so that a chunk has little padding; each of n ranks takes every n-th
        # caption, so that all have similar work.
        order = torch.argsort(captions.lengths, stable=True)
        share = order[self.group.part :: self.group.parts]
        if self.group.parts > 1:
            regions, image, words, caption = self.group.share(
                images.regions, images.pooled, captions.words, captions.pooled
            )
            images = ImageCodes(regions, image)
            captions = CaptionCodes(words, caption, captions.lengths)
        keeps_order = self.group.parts == 1 and self._in_any_order(images)
        part = captions if keeps_order else captions[share]
        self.few_active = bool(self.few_active)  # counted since the last block: no wait
        if torch.is_grad_enabled() and self.by_cell and len(share) and self.few_active:
            tensors = (images.regions, images.pooled, part.words, part.pooled, *self.parameters())
            scores: Tensor = _ActiveCells.apply(self, logits, part.lengths, *tensors)
        else:
            scores = self.score_block(images, part, logits=logits)
            if scores.requires_grad and self.by_cell and len(share):
                scores.register_hook(self._count)  # type: ignore[no-untyped-call]
        if self.group.parts > 1:
            scores = self.group.gather(scores, len(order))
        gathered = scores if keeps_order else scores[:, torch.argsort(order).to(scores.device)]
        self.note(gathered[len(images.pooled) :].detach(), captions.lengths, len(images.pooled))
        return gathered[: len(images.pooled)]

    def _in_any_order(self, _: ImageCodes) -> bool:
        return False  # captions that are sorted by length cost less

    def score_block(
        self, images: ImageCodes, captions: CaptionCodes, *, logits: bool
    ) -> Float[Tensor, "rows captions"]:
        """Score captions, sorted by length, in chunks; keep the graph if it fits."""
        dtype = self._dtype(images.regions.dtype)
        device = images.pooled.device
        cells = self._chunk_bytes(device) // (dtype.itemsize * self.width)
        kept = self._kept(captions, images, dtype) if torch.is_grad_enabled() else 0
        keep = kept <= self.budget.keep_mb * 2**20
        block = partial(self._block, logits=logits)
        lengths = captions.lengths.clamp(min=self.shortest).tolist()
        # Every rank must take part in the messages of the backward pass, also one without captions.
        columns = [_nothing_of(images, captions, len(images.pooled) + self.extra)]
        for start, stop in _runs(lengths, len(images.pooled), cells):
            part = captions[start:stop]
            if keep:
                columns.append(block(images, part, dtype))
            else:  # no random draw is made in a block, so no state of the generators is kept
                scores: Tensor = checkpoint(
                    block, images, part, dtype, use_reentrant=False, preserve_rng_state=False
                )
                columns.append(scores)
        return torch.cat(columns, 1)

    def cell_gradients(
        self,
        tensors: tuple[Tensor, ...],
        lengths: Int[Tensor, " captions"],
        gradient: Float[Tensor, "images captions"],
        *,
        logits: bool,
    ) -> list[Tensor]:
        """Return the gradients of codes and weights (``tensors``) by a block's active cells."""
        codes, parameters = tensors[:4], tensors[4:]
        dtype, device = self._dtype(codes[0].dtype), codes[0].device
        width = dtype.itemsize * max(self.width, codes[0].shape[2])
        if self.most_active is None or device.type in AT_ONCE:
            columns, rows = gradient.T.nonzero(as_tuple=True)
            self.few_active = len(rows) / max(gradient.numel(), 1) <= FEW
            lengths, order = lengths[columns.cpu()].sort(stable=True)
            rows, columns = rows[order.to(device)], columns[order.to(device)]
            cells = self._chunk_bytes(device) // width
            runs = _runs(lengths.clamp(min=self.shortest).tolist(), 1, cells)
        else:
            # The maximum number of active cells; surplus ones have a gradient of zero.
            count = min(self.most_active * len(gradient), gradient.numel())
            places = gradient.flatten().abs().topk(count, sorted=False).indices
            rows, columns = places // gradient.shape[1], places % gradient.shape[1]
            longest = int(lengths.max())
            codes = (*codes[:2], codes[2][:, :longest], codes[3])
            lengths = lengths.to(device)[columns]
            cells = max(1, self._chunk_bytes(device, WIDE_MB) // (width * longest))
            runs = [(start, start + cells) for start in range(0, count, cells)]
        sums = [torch.zeros_like(tensor) for tensor in tensors[:4]]
        of_weights: list[Tensor] = []
        for start, stop in runs:
            i, j = rows[start:stop], columns[start:stop]
            cells_of = (i, i, j, j)
            inputs = [code[at].requires_grad_() for code, at in zip(codes, cells_of, strict=True)]
            with torch.enable_grad():
                captions = CaptionCodes(inputs[2], inputs[3], lengths[start:stop])
                similarity = self._cells(
                    ImageCodes(inputs[0], inputs[1]), captions, dtype=dtype, logits=logits
                )
            gradients = torch.autograd.grad(
                similarity, (*inputs, *parameters), gradient[i, j], materialize_grads=True
            )
            for total, place, value in zip(sums, cells_of, gradients[:4], strict=True):
                total[:, : value.shape[1]].index_add_(0, place, value)
            for total, value in zip(of_weights, gradients[4:], strict=False):
                total.add_(value)
            of_weights = of_weights or list(gradients[4:])
        return sums + (of_weights or [torch.zeros_like(tensor) for tensor in parameters])

    def _count(self, gradient: Float[Tensor, "images captions"]) -> None:
        """Record whether few cells of a block have a gradient, for the next block."""
        self.few_active = gradient.count_nonzero() <= FEW * gradient.numel()

    def _dtype(self, stored: torch.dtype) -> torch.dtype:
        """Return the type of the large products."""
        precision = self.budget.division_precision if self.dividing else None
        return torch.bfloat16 if (precision or self.budget.precision) == "bf16" else stored

    def note(
        self,
        figures: Float[Tensor, "extra captions"],
        lengths: Int[Tensor, " captions"],
        images: int,
    ) -> None:
        """Receive the figures of a block's captions, once a block, in the captions' order."""

    def _chunk_bytes(self, device: torch.device, usual: Mapping[str, int] = CHUNK_MB) -> int:
        """Return the size of the largest tensor in bytes."""
        usual_mb = usual["cpu" if device.type == "cpu" else "cuda"]
        return (usual_mb if self.budget.chunk_mb is None else self.budget.chunk_mb) * 2**20

    def _kept(self, captions: CaptionCodes, images: ImageCodes, dtype: torch.dtype) -> int:
        """Return the bytes kept for the backward pass of a block, on this rank."""
        raise NotImplementedError

    def _block(
        self, images: ImageCodes, captions: CaptionCodes, dtype: torch.dtype, *, logits: bool
    ) -> Float[Tensor, "rows captions"]:
        """Score a chunk of captions.

        Returns:
            A row an image, then :attr:`extra` rows of figures for :meth:`note`.
        """
        raise NotImplementedError

    def _cells(
        self, images: ImageCodes, captions: CaptionCodes, *, dtype: torch.dtype, logits: bool
    ) -> Float[Tensor, " cells"]:
        """Score each image with the caption of its own row; used where :attr:`by_cell`."""
        raise NotImplementedError


def _nothing_of(
    images: ImageCodes, captions: CaptionCodes, rows: int
) -> Float[Tensor, "rows none"]:
    """Return zero columns that have a graph, for a rank without captions."""
    sums = (images.regions, images.pooled, captions.words, captions.pooled)
    total = torch.stack([value.sum() for value in sums]).sum()
    return total.expand(rows, 1)[:, :0]


def _runs(lengths: list[int], images: int, cells: int) -> list[tuple[int, int]]:
    """Cut captions, sorted by length, into runs of at most ``cells`` padded nodes."""
    chunks, start = [], 0
    for stop in range(1, len(lengths) + 1):
        full = stop == len(lengths)
        if full or (stop + 1 - start) * (lengths[stop] + 1) * images > cells:
            chunks.append((start, stop))
            start = stop
    return chunks


class MatchingNetwork(nn.Module):
    """Encode images, encode captions, score them."""

    def __init__(self, images: nn.Module, captions: nn.Module, similarity: BlockSimilarity) -> None:
        super().__init__()
        self.images = images
        self.captions = captions
        self.similarity = similarity

    @contextmanager
    def dividing(self) -> Iterator[None]:
        """Score pairs for a division: without a graph, in the division's precision."""
        self.similarity.dividing = True
        try:
            with torch.inference_mode():
                yield
        finally:
            self.similarity.dividing = False

    def shared_parameters(self) -> Iterable[nn.Parameter]:
        """Return the weights whose gradients are summed over the ranks of a process group."""
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
        """Return the similarity matrix of a block, or logits, which rank the same.

        Similarities are in (0, 1), or are cosines or sums of them, depending on the network;
        margins have the same units. Logits are for scoring alone.
        """
        matrix: Tensor = self.similarity(images, captions, logits=logits)
        return matrix

    def score_batch(self, batch: Batch, *, logits: bool = False) -> Block:
        """Encode both halves of some pairs and score them; the pairs are on the diagonal."""
        images = self.encode_images(batch.regions)
        captions = self.encode_captions(batch.tokens, batch.lengths)
        return self.score(images, captions, logits=logits)
