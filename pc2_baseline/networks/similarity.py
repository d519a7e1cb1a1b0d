"""Similarity of all images with all captions of a block at once, by words, regions and nodes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pc2_baseline.networks.active_cells import FEW, BlockScores, active_share, score_active
from pc2_baseline.networks.codes import CaptionCodes, ImageCodes, word_mask, xavier
from pc2_baseline.networks.fused import conclude, local_nodes, reason, squared_difference, unit
from pc2_baseline.process_groups import ALONE, ProcessGroup

TEMPERATURE = 9.0
SLOPE = 0.1
CHUNK_MB = {"cpu": 8, "cuda": 128}
"""Of nodes: larger chunks of captions hold more padding."""
WIDE_MB = {"cpu": 8, "cuda": 1024}
"""Of what is a word wide, within a chunk: on a GPU, starting many small kernels takes longer than
their work (45 µs each on an H100)."""
KEEP_MB = 4096


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Memory that the similarity of a block may take, and its numeric precision.

    Attributes:
        chunk_mb: Largest tensor (images, words, dim) or (images, words, node), in MiB; ``None``:
            a default for the device.
        keep_mb: Size in MiB of the activations of a block that may be kept for the backward pass;
            ``None``: a default for the device.
        precision: ``fp32``, or ``bf16`` for the large products and the nodes; norms, softmaxes,
            and all that has one value a pair stay in float32.
        division_precision: Precision while pairs are divided; ``None``: the same.
    """

    chunk_mb: int | None = None
    keep_mb: int | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    division_precision: Literal["fp32", "bf16"] | None = None


DEFAULT_BUDGET = MemoryBudget()


class BlockSimilarity(nn.Module):
    """Score every image of a block against every caption; a subclass defines :meth:`forward`.

    Attributes:
        group: Ranks that train the network together. A parameter that acts on a rank's own share
            of the block alone has its gradients summed over them; other work is done by each.
        dividing: Whether pairs are being divided, which may have a precision of its own.
        few_active: Whether few cells of the next block are expected to have a gradient. Each block
            tells of the next; set it when an epoch begins, so that a resumed one does the same.
    """

    def __init__(self) -> None:
        super().__init__()
        self.group: ProcessGroup = ALONE
        self.dividing = False
        self.few_active = True

    def forward(
        self, images: ImageCodes, captions: CaptionCodes, *, logits: bool = False
    ) -> Float[Tensor, "images captions"]:
        """Return the similarity matrix of a block, or logits, which rank alike.

        Sigmoids of logits are what :func:`~pc2_baseline.modules.retrieval.ensemble` averages.
        """
        raise NotImplementedError


class ChunkedSimilarity(BlockSimilarity):
    """Score the captions of a block in chunks.

    Captions are taken together, sorted by length and padded within a chunk; the result is that of
    one caption at a time. Where what a whole block keeps for the backward pass would be too much,
    each chunk is computed again then, so that memory is bounded by the chunk. The ranks of a
    process group take a share of the captions each.

    A subclass defines in :meth:`_block` the scores of a chunk, and in :meth:`_kept` what they keep.

    ``width`` is the number of values that a chunk holds for each image and word.
    """

    extra = 0
    """Rows that :meth:`_block` adds below the similarities of a caption."""

    shortest = 0
    """Words that a caption counts as at least, when chunks are cut."""

    by_cell = True
    """Whether a cell's similarity depends on its own image and caption alone."""

    def __init__(self, width: int, budget: MemoryBudget = DEFAULT_BUDGET) -> None:
        super().__init__()
        self.width = width
        self.budget = budget

    def forward(
        self, images: ImageCodes, captions: CaptionCodes, *, logits: bool = False
    ) -> Float[Tensor, "images captions"]:
        """Return the similarity matrix of a block, or its logits."""
        # By length, so that a chunk has little padding; every n-th caption for each of n ranks, so
        # that their shares have like lengths, and the ranks like work.
        order = torch.argsort(captions.lengths, stable=True)
        own = order[self.group.part :: self.group.parts]
        regions, image, words, caption = self.group.share(
            images.regions, images.pooled, captions.words, captions.pooled
        )
        images = ImageCodes(regions, image)
        part = CaptionCodes(words, caption, captions.lengths)[own]
        block: Callable[[ImageCodes, CaptionCodes], Tensor] = partial(self._score, logits=logits)
        if not torch.is_grad_enabled() or not self.by_cell or not len(own):
            scores = block(images, part)
        elif self.few_active:
            scores = score_active(self._ways(block, images, logits=logits), images, part)
        else:
            scores = block(images, part)
            scores.register_hook(  # type: ignore[no-untyped-call]
                lambda gradient: self._count(active_share(gradient))
            )
        gathered = self.group.gather(scores, len(order))
        gathered = gathered[:, torch.argsort(order).to(gathered.device)]
        self.note(gathered[len(images.pooled) :].detach(), captions.lengths, len(images.pooled))
        return gathered[: len(images.pooled)]

    def _score(
        self, images: ImageCodes, captions: CaptionCodes, *, logits: bool
    ) -> Float[Tensor, "rows captions"]:
        """Score captions, sorted by length, in chunks; keep the graph if it fits."""
        kind = self._kind(images)
        device = images.pooled.device
        cells = self._chunk_bytes(device) // (kind.itemsize * self.width)
        kept = self._kept(captions, images, kind) if torch.is_grad_enabled() else 0
        keep_mb = KEEP_MB if self.budget.keep_mb is None else self.budget.keep_mb
        keep = kept <= keep_mb * 2**20
        block = partial(self._block, logits=logits)
        lengths = captions.lengths.clamp(min=self.shortest).tolist()
        # Every rank must take part in the messages of the backward pass, also one without captions.
        found = [_nothing_of(images, captions, len(images.pooled) + self.extra)]
        for start, stop in _runs(lengths, len(images.pooled), cells):
            part = captions[start:stop]
            found.append(
                block(images, part, kind)
                if keep
                # No random draw is made in a block, so no state of the generators is kept.
                else checkpoint(
                    block, images, part, kind, use_reentrant=False, preserve_rng_state=False
                )
            )
        return torch.cat(found, 1)

    def _ways(
        self,
        block: Callable[[ImageCodes, CaptionCodes], Tensor],
        images: ImageCodes,
        *,
        logits: bool,
    ) -> BlockScores:
        kind, width = self._kind(images), max(self.width, images.regions.shape[2])
        cells = self._chunk_bytes(images.pooled.device) // (kind.itemsize * width)
        return BlockScores(
            block,
            partial(self._cells, kind=kind, logits=logits),
            lambda lengths: _runs(lengths.clamp(min=self.shortest).tolist(), 1, cells),
            tuple(self.parameters()),
            self._count,
        )

    def _count(self, share: float) -> None:
        self.few_active = share <= FEW

    def _kind(self, images: ImageCodes) -> torch.dtype:
        own = self.budget.division_precision if self.dividing else None
        bf16 = (own or self.budget.precision) == "bf16"
        return torch.bfloat16 if bf16 else images.regions.dtype

    def note(
        self,
        figures: Float[Tensor, "extra captions"],
        lengths: Int[Tensor, " captions"],
        images: int,
    ) -> None:
        """Take in the figures of a block's captions, once, in their order."""

    def _chunk_bytes(self, device: torch.device, usual: Mapping[str, int] = CHUNK_MB) -> int:
        """Return the size of the largest tensor in bytes."""
        own = usual["cpu" if device.type == "cpu" else "cuda"]
        return (own if self.budget.chunk_mb is None else self.budget.chunk_mb) * 2**20

    def _kept(self, captions: CaptionCodes, images: ImageCodes, kind: torch.dtype) -> int:
        """Return the bytes kept for the backward pass of a block, on this rank."""
        raise NotImplementedError

    def _block(
        self, images: ImageCodes, captions: CaptionCodes, kind: torch.dtype, *, logits: bool
    ) -> Float[Tensor, "rows captions"]:
        """Score a chunk of captions.

        Returns:
            A row an image, then :attr:`extra` rows of figures for :meth:`note`.
        """
        raise NotImplementedError

    def _cells(
        self, images: ImageCodes, captions: CaptionCodes, *, kind: torch.dtype, logits: bool
    ) -> Float[Tensor, " cells"]:
        """Score each image with the caption of its own row; used where :attr:`by_cell`."""
        raise NotImplementedError


class Similarity(ChunkedSimilarity):
    """Score pairs, in (0, 1), by what their words and the wholes differ in from each other.

    Nothing of the width of a word is kept for the backward pass.

    A subclass defines in :meth:`conclude` how a pair's nodes become one vector: one global, and
    one for each word, compared with what it attends to in the image.

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
        return self._cells(images, captions, kind=self._kind(images), logits=True)

    @torch.no_grad()
    def vectors(
        self, images: ImageCodes, captions: CaptionCodes
    ) -> Float[Tensor, "images captions node"]:
        """Return the vector of each pair of a block that its logit is made of."""
        found: list[Tensor] = []
        hook = self.evaluate.register_forward_pre_hook(lambda _, given: found.append(given[0]))
        group, self.group = self.group, ALONE  # all of the block on each rank
        try:
            self(images, captions)
        finally:
            hook.remove()
            self.group = group
        order = torch.argsort(captions.lengths, stable=True)
        return torch.cat(found, 1)[:, torch.argsort(order).to(found[0].device)]

    def _kept(self, captions: CaptionCodes, images: ImageCodes, kind: torch.dtype) -> int:
        """Return the bytes kept for the backward pass: nodes, and attention by layer."""
        lengths = captions.lengths + 1
        nodes = int(lengths.sum()) * self.local.out_features
        attention = int(lengths.square().sum())
        cells = len(images.pooled) * (nodes + attention)
        return kind.itemsize * self.kept_layers * cells

    def _block(
        self, images: ImageCodes, captions: CaptionCodes, kind: torch.dtype, *, logits: bool
    ) -> Float[Tensor, "rows captions"]:
        longest = int(captions.lengths.max())
        words = captions.words[:, :longest]
        mask = word_mask(captions.lengths, longest, words.device)
        whole = squared_difference(
            images.pooled, captions.pooled, self.whole.weight, self.whole.bias
        )
        cells = self._chunk_bytes(words.device, WIDE_MB) // (kind.itemsize * words.shape[2])
        nodes = local_nodes(
            unit(whole),
            images.regions,
            words * mask[..., None],
            self.local.weight,
            self.local.bias,
            (TEMPERATURE, SLOPE),
            (kind, cells),
        )
        concluded, figures = self.conclude(nodes, functional.pad(mask, (1, 0), value=True))
        scores = self.evaluate(concluded).squeeze(-1)
        return torch.cat([scores if logits else torch.sigmoid(scores), figures])

    def _cells(
        self, images: ImageCodes, captions: CaptionCodes, *, kind: torch.dtype, logits: bool
    ) -> Float[Tensor, " cells"]:
        longest = int(captions.lengths.max())
        mask = word_mask(captions.lengths, longest, captions.words.device)
        words = captions.words[:, :longest] * mask[..., None]
        whole = self.whole((images.pooled - captions.pooled).square())
        affinity = functional.leaky_relu(images.regions @ words.transpose(1, 2), SLOPE)
        weights = (TEMPERATURE * unit(affinity)).softmax(1).transpose(1, 2)
        context = unit(weights @ images.regions)
        local = functional.linear(
            (context - words).to(kind).square(),
            self.local.weight.to(kind),
            self.local.bias.to(kind),
        )
        nodes = torch.cat([unit(whole)[:, None].to(kind), unit(local)], 1)
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
        self, nodes: Float[Tensor, "pairs nodes dim"], padding: Bool[Tensor, "pairs 1 nodes"]
    ) -> Float[Tensor, "pairs nodes dim"]:
        """Update all nodes from all nodes."""
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


class SgrSimilarity(Similarity):
    """Similarity graph reasoning: nodes attend to each other; the global one is read.

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
            flat = layer(flat, padding)
        reasoned: Tensor = last.first(flat, padding)  # type: ignore[operator]
        return reasoned.view(images, captions, -1), reasoned.new_zeros(0, captions)


class SafSimilarity(Similarity):
    """Similarity attention filtration: nodes are weighed by themselves and summed.

    Batch normalisation is over the nodes of one caption in all images of the batch, so a batch
    gives as many statistics as it has captions; the running ones take them in, in the captions'
    order, as a loop over captions does.

    Source:
        SGRAF (Diao et al., AAAI 2021), branch SAF, eq. 10 and 11.
    """

    extra = 2
    by_cell = False

    def __init__(self, dim: int, node_dim: int, budget: MemoryBudget = DEFAULT_BUDGET) -> None:
        super().__init__(dim, node_dim, budget)
        self.weigh = nn.Linear(node_dim, 1)
        xavier(self.weigh)
        self.norm = nn.BatchNorm1d(1)

    def conclude(
        self,
        nodes: Float[Tensor, "images captions nodes node"],
        there: Bool[Tensor, "captions nodes"],
    ) -> tuple[Float[Tensor, "images captions node"], Float[Tensor, "extra captions"]]:
        """Sum each pair's nodes by normalised weights; add the statistics of each caption."""
        kind, wide = nodes.dtype, self.weigh.weight.dtype
        raw = functional.linear(nodes, self.weigh.weight.to(kind)).squeeze(-1).to(wide)
        raw = raw + self.weigh.bias
        mean, variance = self._statistics(raw, there)
        scaled = (raw - mean[:, None]) * (variance[:, None] + self.norm.eps).rsqrt()
        gates = torch.sigmoid(scaled * self.norm.weight + self.norm.bias) * there
        weights = gates / (gates.sum(2, keepdim=True) + 1e-8)
        summed = (weights[:, :, None].to(kind) @ nodes).squeeze(2).to(wide)
        return unit(summed), torch.stack([mean, variance])

    def _statistics(
        self, raw: Float[Tensor, "images captions nodes"], there: Bool[Tensor, "captions nodes"]
    ) -> tuple[Float[Tensor, " captions"], Float[Tensor, " captions"]]:
        captions = raw.shape[1]
        if not self.training or self.norm.running_mean is None or self.norm.running_var is None:
            own = (self.norm.running_mean, self.norm.running_var)
            mean, variance = (value.expand(captions) for value in own if value is not None)
            return mean, variance
        count = len(raw) * there.sum(1)
        mean = (raw * there).sum((0, 2)) / count
        squares = ((raw - mean[:, None]) * there).square().sum((0, 2))
        return mean, squares / count

    @torch.no_grad()
    def note(
        self,
        figures: Float[Tensor, "extra captions"],
        lengths: Int[Tensor, " captions"],
        images: int,
    ) -> None:
        """Move the running statistics by each caption's, the variance as an unbiased one."""
        norm = self.norm
        if not self.training or norm.running_mean is None or norm.running_var is None:
            return
        # n steps of m <- (1 - s) m + s x at once: x_k has weight s (1 - s)^(n - 1 - k).
        share = norm.momentum or 0.0
        back = torch.arange(figures.shape[1] - 1, -1, -1, device=figures.device)
        weights = share * (1 - share) ** back
        count = (images * (lengths + 1)).to(figures)
        left = (1 - share) ** figures.shape[1]
        norm.running_mean.mul_(left).add_((weights * figures[0]).sum())
        norm.running_var.mul_(left).add_((weights * figures[1] * count / (count - 1)).sum())


def _nothing_of(
    images: ImageCodes, captions: CaptionCodes, rows: int
) -> Float[Tensor, "rows none"]:
    """Return no column, with a gradient of zero, for a rank that no caption is left for."""
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
