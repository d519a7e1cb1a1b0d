"""Encoders of SGRAF: regions and words to unit vectors, each with an attention pooling.

The GRU that reads captions has a backward pass written by hand for the CPU.
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from now_builder.formats.features import REGIONS
from pc2_baseline.networks.fused import unit

Block = Float[Tensor, "batch batch"]
"""Similarities of a batch, or what has their shape: rows images, columns captions."""
PerPair = Float[Tensor, " batch"]
"""A value of each pair of a batch."""
Loss = Float[Tensor, ""]
"""A loss, with its graph."""


@dataclass(frozen=True, slots=True)
class ImageCodes:
    """Encoded screenshots.

    Attributes:
        regions: One unit vector a region.
        pooled: One unit vector a screenshot.
    """

    regions: Float[Tensor, "images regions dim"]
    pooled: Float[Tensor, "images width"]

    def __getitem__(self, rows: slice | Int[Tensor, " rows"]) -> "ImageCodes":
        return ImageCodes(self.regions[rows], self.pooled[rows])


@dataclass(frozen=True, slots=True)
class CaptionCodes:
    """Encoded captions.

    Attributes:
        words: One unit vector a word; zeros from ``lengths`` on.
        pooled: One unit vector a caption.
        lengths: Words of each caption, on the CPU.
    """

    words: Float[Tensor, "captions words dim"]
    pooled: Float[Tensor, "captions width"]
    lengths: Int[Tensor, " captions"]

    def __getitem__(self, rows: slice | Int[Tensor, " rows"]) -> "CaptionCodes":
        on_cpu = rows if isinstance(rows, slice) else rows.cpu()
        beside = rows if isinstance(rows, slice) else rows.to(self.words.device)
        return CaptionCodes(self.words[beside], self.pooled[beside], self.lengths[on_cpu])


def word_mask(lengths: Int[Tensor, " captions"], words: int, device: torch.device) -> Tensor:
    """Mark the words that are there: (captions, words), bool."""
    return torch.arange(words, device=device) < lengths.to(device)[:, None]


def xavier(module: nn.Module) -> None:
    r"""Draw the linear layers of a module uniformly from ±√6/√(in+out), biases zero."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class ImagePooling(nn.Module):
    """Pool regions by self-attention to their mean.

    Source:
        VisualSA of SGRAF (Diao et al., AAAI 2021): batch normalisation over the region slots in
        the local branch and over the width in the global one.
    """

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.local = nn.Sequential(
            nn.Linear(dim, dim), nn.BatchNorm1d(REGIONS), nn.Tanh(), nn.Dropout(dropout)
        )
        self.whole = nn.Sequential(
            nn.Linear(dim, dim), nn.BatchNorm1d(dim), nn.Tanh(), nn.Dropout(dropout)
        )
        self.weigh = nn.Linear(dim, 1)
        xavier(self)

    def forward(self, regions: Float[Tensor, "images 36 dim"]) -> Float[Tensor, "images dim"]:
        """Return one unit vector per image."""
        query = self.whole(regions.mean(1))
        weights = self.weigh(self.local(regions) * query[:, None]).softmax(1)
        return unit((weights * regions).sum(1))


class ImageEncoder(nn.Module):
    """Project region features to unit vectors and pool them: by attention, or their mean."""

    attends = True

    def __init__(
        self, feature_dim: int, dim: int, dropout: float, feature_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.drop = nn.Dropout(feature_dropout)
        self.project = nn.Linear(feature_dim, dim)
        xavier(self)
        self.pool = ImagePooling(dim, dropout) if self.attends else None

    def forward(self, regions: Float[Tensor, "images 36 features"]) -> ImageCodes:
        """Encode the screenshots of a batch."""
        vectors = unit(self.project(self.drop(regions)))
        pooled = unit(vectors.mean(1)) if self.pool is None else self.pool(vectors)
        return ImageCodes(vectors, pooled)


class CaptionPooling(nn.Module):
    """Pool the words of each caption by self-attention to their mean, padding apart.

    Source:
        TextSA of SGRAF (Diao et al., AAAI 2021).
    """

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.local = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Dropout(dropout))
        self.whole = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Dropout(dropout))
        self.weigh = nn.Linear(dim, 1)
        xavier(self)

    def forward(
        self, words: Float[Tensor, "captions words dim"], lengths: Int[Tensor, " captions"]
    ) -> Float[Tensor, "captions dim"]:
        """Return one unit vector per caption."""
        padding = ~word_mask(lengths, words.shape[1], words.device)
        mean = words.sum(1) / lengths.to(words)[:, None]
        scores = self.weigh(self.local(words) * self.whole(mean)[:, None]).squeeze(-1)
        weights = scores.masked_fill(padding, float("-inf")).softmax(1)
        return unit((weights[..., None] * words).sum(1))


class CaptionEncoder(nn.Module):
    """Embed tokens, read them both ways, average the two directions, and pool the words."""

    attends = True
    both_ways = True

    def __init__(
        self, vocabulary: int, word_dim: int, dim: int, dropout: float, word_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, word_dim)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        self.dropout = nn.Dropout(dropout)
        self.word_dropout = word_dropout
        self.read = nn.GRU(word_dim, dim, batch_first=True, bidirectional=self.both_ways)
        self.pool = CaptionPooling(dim, dropout) if self.attends else None

    def forward(
        self, tokens: Int[Tensor, "captions words"], lengths: Int[Tensor, " captions"]
    ) -> CaptionCodes:
        """Encode the captions of a batch."""
        embedded = self.dropout(self.embed(tokens))
        if self.training:
            embedded = with_blanks(embedded, self.word_dropout)
        words = unit(read_words(self.read, embedded, lengths))
        return CaptionCodes(words, self.pooled(words, lengths), lengths)

    def pooled(
        self, words: Float[Tensor, "captions words dim"], lengths: Int[Tensor, " captions"]
    ) -> Float[Tensor, "captions dim"]:
        """Pool the words of each caption: by attention, or their sum, which is along their mean."""
        pooled: Tensor = unit(words.sum(1)) if self.pool is None else self.pool(words, lengths)
        return pooled


def with_blanks(
    embedded: Float[Tensor, "captions words dim"], share: float
) -> Float[Tensor, "captions words dim"]:
    """Replace a random share of the words of each caption by zeros."""
    if not share:
        return embedded
    blank = torch.rand(embedded.shape[:2], device=embedded.device) < share
    return embedded.masked_fill(blank[..., None], 0.0)


def read_words(
    gru: nn.GRU, embedded: Float[Tensor, "captions words word"], lengths: Int[Tensor, " captions"]
) -> Float[Tensor, "captions words dim"]:
    """Read captions by a GRU, the mean of both directions if it has two; zeros after the end.

    On the CPU, PyTorch's backward pass adds a gradient as large as all words' to another at every
    step; there the layer is differentiated by hand (:class:`_Direction`), to rounding the same.

    Args:
        gru: One layer with biases, which takes the batch first.
        embedded: Padded with anything.
        lengths: Words of each caption, on the CPU.
    """
    packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
    if embedded.device.type == "cpu" and torch.is_grad_enabled():
        counts = packed.batch_sizes.tolist()
        found = [
            _Direction.apply(packed.data, _steps(counts, suffix), *_weights(gru, suffix))
            for suffix in ("", "_reverse")[: 1 + gru.bidirectional]
        ]
    else:
        found = list(gru(packed)[0].data.chunk(1 + gru.bidirectional, dim=-1))
    states = (found[0] + found[1]) / 2 if gru.bidirectional else found[0]
    return _padded(packed._replace(data=states), embedded.shape[:2])


def _weights(gru: nn.GRU, suffix: str) -> list[Tensor]:
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    return [getattr(gru, name + suffix) for name in names]


def _padded(states: PackedSequence, shape: torch.Size) -> Float[Tensor, "captions words dim"]:
    """Lay packed states out by caption and word, zeros after the end.

    ``pad_packed_sequence`` copies the whole gradient once for each length that occurs.
    """
    data, counts = states.data, states.batch_sizes
    # Packed rows go word by word, captions sorted by length: the k-th row of a word is that of the
    # k-th longest caption.
    order = cast(Tensor, states.sorted_indices)
    words = torch.repeat_interleave(torch.arange(len(counts)), counts)
    ranks = torch.arange(len(words)) - (counts.cumsum(0) - counts)[words]
    places = order[ranks.to(data.device)] * shape[1] + words.to(data.device)
    padded = data.new_zeros(shape.numel(), data.shape[1])
    return padded.index_copy_(0, places, data).view(*shape, -1)


class _Step(NamedTuple):
    """The rows of the packed words that stand at one place of their captions."""

    start: int
    rows: int

    def of(self, packed: Tensor) -> Tensor:
        return packed.narrow(0, self.start, self.rows)


def _steps(counts: list[int], suffix: str) -> list[_Step]:
    """Return the steps of a caption's words in the order in which they are read."""
    steps = [_Step(end - rows, rows) for end, rows in zip(accumulate(counts), counts, strict=True)]
    return steps[::-1] if suffix else steps


class _Direction(Function):
    r"""One direction of a GRU over packed words.

    With gates r, z and candidate c of PyTorch's definition, :math:`h' = (h - c) z + c`.
    What each gate's input has to do with the gradient of h' is computed for all words at once, so
    that a step of the backward pass is two products of elements and one of matrices.
    """

    @staticmethod
    def forward(ctx: Any, words: Tensor, steps: list[_Step], *weights: Tensor) -> Tensor:
        weight, recurrent, bias, recurrent_bias = weights
        dim = recurrent.shape[1]
        # The input's part of all gates in one large product; only the state's part has to wait for
        # the step before.
        gates = functional.linear(words, weight, bias)
        states, before, hidden = (words.new_empty(len(words), dim) for _ in range(3))
        state = words.new_zeros(max(step.rows for step in steps), dim)
        for step in steps:
            # Captions are sorted by length: those that go on are the first rows. Backwards in time
            # more captions begin at each step, whose rows are still zero.
            now = state[: step.rows]
            step.of(before).copy_(now)
            own = functional.linear(now, recurrent, recurrent_bias)
            step.of(hidden).copy_(own[:, 2 * dim :])
            # Gates replace their inputs in place: backward needs their values alone, since the
            # derivatives of sigmoid and tanh follow from these.
            gate = step.of(gates)
            gate[:, : 2 * dim].add_(own[:, : 2 * dim]).sigmoid_()
            reset, update, candidate = gate.chunk(3, 1)
            candidate.addcmul_(own[:, 2 * dim :], reset).tanh_()
            now.sub_(candidate).mul_(update).add_(candidate)  # h' = (h - c) z + c
            step.of(states).copy_(now)
        ctx.save_for_backward(words, gates, before, hidden, weight, recurrent)
        ctx.steps = steps
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        words, gates, before, hidden, weight, recurrent = ctx.saved_tensors
        dim = before.shape[1]
        reset, update, candidate = gates.chunk(3, 1)
        # dh'/d(input of each gate) needs no gradient of later steps: it is taken for all words at
        # once. `share` has PyTorch's order of gates, and is of what comes from the state, which
        # reaches the candidate through the reset gate.
        of_candidate = (1 - update) * (1 - candidate.square())
        share = torch.empty_like(gates)
        share[:, :dim] = of_candidate * hidden * reset * (1 - reset)
        share[:, dim : 2 * dim] = (before - candidate) * update * (1 - update)
        share[:, 2 * dim :] = of_candidate * reset
        totals = torch.empty_like(before)
        state = gradient.new_zeros(max(step.rows for step in ctx.steps), dim)
        for step in reversed(ctx.steps):
            now, total, own = state[: step.rows], step.of(totals), step.of(share)
            # h' is the output of this step and the state of the next one: both gradients.
            torch.add(now, step.of(gradient), out=total)
            own.view(-1, 3, dim).mul_(total[:, None])
            # h acts directly, through z, and through what the recurrent weights make of it.
            torch.mul(total, step.of(update), out=now)
            now.addmm_(own, recurrent)
        of_recurrent, of_recurrent_bias = share.T @ before, share.sum(0)
        # From here on `share` is of what comes from the words. It differs in the candidate alone:
        # the reset gate scales only what comes from the state.
        share[:, 2 * dim :] = totals * of_candidate
        of_words = share @ weight if ctx.needs_input_grad[0] else None
        of_weights = share.T @ words, of_recurrent, share.sum(0), of_recurrent_bias
        return of_words, None, *of_weights
