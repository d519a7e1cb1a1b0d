"""Encoders of SGRAF: unit vectors of regions and words, each with an attention pooling.

On the CPU the GRU of the captions has a backward pass written by hand.
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
from torch.nn.utils.rnn import PackedSequence

from now_builder.formats.features import REGIONS
from pc2_baseline.data.pairs import send
from pc2_baseline.networks.fused import unit
from pc2_baseline.networks.onednn_products import small_products

Block = Float[Tensor, "batch batch"]
"""Similarities of a batch, or a tensor of their shape: rows images, columns captions."""
PerPair = Float[Tensor, " batch"]
"""One value for each pair of a batch."""
Loss = Float[Tensor, ""]
"""Loss with its graph."""


@dataclass(frozen=True, slots=True)
class ImageCodes:
    """Encoded screenshots.

    Attributes:
        regions: One unit vector per region.
        pooled: One unit vector per screenshot.
    """

    regions: Float[Tensor, "images regions dim"]
    pooled: Float[Tensor, "images width"]

    def __getitem__(self, rows: slice | Int[Tensor, " rows"]) -> "ImageCodes":
        return ImageCodes(self.regions[rows], self.pooled[rows])


@dataclass(frozen=True, slots=True)
class CaptionCodes:
    """Encoded captions.

    Attributes:
        words: One unit vector per word; zeros from ``lengths`` on.
        pooled: One unit vector per caption.
        lengths: Number of words of each caption, on the CPU; on the device if ``words`` is cut.
    """

    words: Float[Tensor, "captions words dim"]
    pooled: Float[Tensor, "captions width"]
    lengths: Int[Tensor, " captions"]

    @property
    def longest(self) -> int:
        """Upper bound of the words of the longest caption."""
        return int(self.lengths.max()) if self.lengths.is_cpu else self.words.shape[1]

    def __getitem__(self, rows: slice | Int[Tensor, " rows"]) -> "CaptionCodes":
        on_cpu = rows if isinstance(rows, slice) else rows.cpu()
        on_device = rows if isinstance(rows, slice) else rows.to(self.words.device)
        return CaptionCodes(self.words[on_device], self.pooled[on_device], self.lengths[on_cpu])


def word_mask(lengths: Int[Tensor, " captions"], words: int, device: torch.device) -> Tensor:
    """Return the mask of words that are no padding: (captions, words), bool."""
    return torch.arange(words, device=device) < lengths.to(device)[:, None]


@dataclass(frozen=True, slots=True)
class WordRows:
    """Positions of the words of some captions: padded, without padding, and packed.

    Packed rows are ordered by place, captions sorted by length, as a GRU needs them. The host
    computes all positions from the lengths and sends them to the device in one copy.

    Attributes:
        lengths: Number of words of each caption, on the CPU.
        width: Number of words of a padded caption.
        caption: Caption of each word.
        padded: Row of each word where captions are padded.
        packed: Row of each packed word where captions are padded.
        back: Row of each word among the packed ones.
        counts: Number of packed rows of each place in a caption, on the CPU.
    """

    lengths: Int[Tensor, " captions"]
    width: int
    caption: Int[Tensor, " words"]
    padded: Int[Tensor, " words"]
    packed: Int[Tensor, " words"]
    back: Int[Tensor, " words"]
    counts: Int[Tensor, " places"]

    def pad(self, words: Float[Tensor, "words dim"]) -> Float[Tensor, "captions width dim"]:
        """Arrange words by caption, padded with zeros."""
        laid = words.new_zeros(len(self.lengths) * self.width, words.shape[1])
        return laid.index_copy(0, self.padded, words).view(len(self.lengths), self.width, -1)

    def drop(
        self, dropout: nn.Dropout, words: Float[Tensor, "words dim"], rows: Int[Tensor, " words"]
    ) -> Float[Tensor, "words dim"]:
        """Apply dropout drawn for padded captions; ``rows`` are the words' rows in these."""
        if not (dropout.training and dropout.p):
            return words
        ones = words.new_ones(len(self.lengths) * self.width, words.shape[1])
        return words * functional.dropout(ones, dropout.p).index_select(0, rows)

    def member(self, words: Float[Tensor, "words dim"]) -> Float[Tensor, "words captions"]:
        """Return the indicator matrix of words by captions."""
        return functional.one_hot(self.caption, len(self.lengths)).to(words.dtype)


def word_rows(lengths: Int[Tensor, " captions"], width: int, device: torch.device) -> WordRows:
    """Compute the positions of the words of captions from their lengths."""
    caption = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    starts = lengths.cumsum(0) - lengths
    padded = caption * width + torch.arange(len(caption)) - starts[caption]
    longest_first, order = lengths.sort(descending=True)
    counts = (torch.arange(int(longest_first[0]))[:, None] < longest_first).sum(1)
    place = torch.repeat_interleave(torch.arange(len(counts)), counts)
    # The k-th packed row of a place is that of the k-th longest caption.
    chosen = order[torch.arange(len(place)) - (counts.cumsum(0) - counts)[place]]
    back = (starts[chosen] + place).argsort()
    numbers = send(torch.stack([caption, padded, chosen * width + place, back]), device)
    caption, padded, packed, back = numbers.unbind()
    return WordRows(lengths, width, caption, padded, packed, back, counts)


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
    """Pool the words of each caption, without padding, by self-attention to their mean.

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
        self, words: Float[Tensor, "words dim"], rows: WordRows
    ) -> Float[Tensor, "captions dim"]:
        """Return one unit vector per caption."""
        member = rows.member(words)
        mean = (member.T @ words) / rows.lengths.to(words)[:, None]
        project, tanh, dropout = self.local
        local = rows.drop(cast(nn.Dropout, dropout), tanh(project(words)), rows.padded)
        scores = self.weigh(local * (member @ self.whole(mean))).squeeze(-1)
        # The softmax alone uses padded scores: one number per word.
        laid = scores.new_full((len(rows.lengths) * rows.width,), float("-inf"))
        laid = laid.index_copy(0, rows.padded, scores).view(-1, rows.width).softmax(1)
        weights = laid.flatten().index_select(0, rows.padded)
        return unit((member * weights[:, None]).T @ words)


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
        rows = word_rows(lengths, tokens.shape[1], tokens.device)
        blanks = self.word_dropout if self.training else 0.0
        embedded = embed_packed(self.embed, self.dropout, tokens, rows, blanks)
        words = unit(read_words(self.read, embedded, rows))
        return CaptionCodes(rows.pad(words), self.pooled(words, rows), lengths)

    def pooled(
        self, words: Float[Tensor, "words dim"], rows: WordRows
    ) -> Float[Tensor, "captions dim"]:
        """Pool the words of each caption by attention, or by their sum, scaled to length 1."""
        if self.pool is None:
            return unit(rows.member(words).T @ words)
        pooled: Tensor = self.pool(words, rows)
        return pooled


def embed_packed(
    embed: nn.Embedding,
    dropout: nn.Dropout,
    tokens: Int[Tensor, "captions words"],
    rows: WordRows,
    blanks: float,
) -> Float[Tensor, "words word"]:
    """Embed words in the order of a GRU, with dropout of values and of whole words."""
    embedded = rows.drop(dropout, embed(tokens.flatten()[rows.packed]), rows.packed)
    if not blanks:
        return embedded
    blank = torch.rand(tokens.shape, device=tokens.device) < blanks
    return embedded.masked_fill(blank.flatten()[rows.packed][:, None], 0.0)


@small_products()
def read_words(
    gru: nn.GRU, embedded: Float[Tensor, "words word"], rows: WordRows
) -> Float[Tensor, "words dim"]:
    """Read captions with a GRU; return its outputs caption by caption, averaged over directions.

    On the CPU, PyTorch's backward pass adds two gradients of the size of all words at every step;
    there the layer is differentiated by hand (:class:`_Direction`), equal up to rounding.

    Args:
        gru: One layer with biases.
        embedded: Packed words.
        rows: Positions of the words.
    """
    if embedded.device.type == "cpu" and torch.is_grad_enabled():
        counts = rows.counts.tolist()
        directions = [
            _Direction.apply(embedded, _steps(counts, suffix), *_weights(gru, suffix))
            for suffix in ("", "_reverse")[: 1 + gru.bidirectional]
        ]
    else:
        states, _ = gru(PackedSequence(embedded, rows.counts))
        directions = list(states.data.chunk(1 + gru.bidirectional, dim=-1))
    first, *second = directions
    states = (first + second[0]) / 2 if second else first
    return cast(Tensor, states.index_select(0, rows.back))


def _weights(gru: nn.GRU, suffix: str) -> list[Tensor]:
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    return [getattr(gru, name + suffix) for name in names]


class _Step(NamedTuple):
    """Rows of the packed words at one place of their captions."""

    start: int
    rows: int

    def of(self, packed: Tensor) -> Tensor:
        return packed.narrow(0, self.start, self.rows)


def _steps(counts: list[int], suffix: str) -> list[_Step]:
    """Return the steps over the captions' words in reading order."""
    steps = [_Step(end - rows, rows) for end, rows in zip(accumulate(counts), counts, strict=True)]
    return steps[::-1] if suffix else steps


class _Direction(Function):
    r"""One direction of a GRU over packed words.

    With gates r, z and candidate c of PyTorch's definition, :math:`h' = (h - c) z + c`.
    The derivatives of h' by the gates' inputs are computed for all words at once, so that a step
    of the backward pass is two products of elements and one of matrices.
    """

    @staticmethod
    def forward(ctx: Any, words: Tensor, steps: list[_Step], *weights: Tensor) -> Tensor:
        weight, recurrent, bias, recurrent_bias = weights
        dim = recurrent.shape[1]
        # One large product for the input's part of all gates; only the state's part depends on the
        # previous step.
        gates = functional.linear(words, weight, bias)
        states, before, hidden = (words.new_empty(len(words), dim) for _ in range(3))
        state = words.new_zeros(max(step.rows for step in steps), dim)
        for step in steps:
            # Captions are sorted by length: those with a word here are the first rows. Backwards in
            # time more captions begin at each step, whose rows are still zero.
            now = state[: step.rows]
            step.of(before).copy_(now)
            recurred = functional.linear(now, recurrent, recurrent_bias)
            step.of(hidden).copy_(recurred[:, 2 * dim :])
            # Gates replace their inputs in place: the derivatives of sigmoid and tanh follow from
            # their values.
            gate = step.of(gates)
            gate[:, : 2 * dim].add_(recurred[:, : 2 * dim]).sigmoid_()
            reset, update, candidate = gate.chunk(3, 1)
            candidate.addcmul_(recurred[:, 2 * dim :], reset).tanh_()
            now.sub_(candidate).mul_(update).add_(candidate)  # h' = (h - c) z + c
            step.of(states).copy_(now)
        ctx.save_for_backward(words, gates, before, hidden, weight, recurrent)
        ctx.steps = steps
        return states

    @staticmethod
    @once_differentiable
    @small_products()
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        words, gates, before, hidden, weight, recurrent = ctx.saved_tensors
        dim = before.shape[1]
        reset, update, candidate = gates.chunk(3, 1)
        # dh'/d(input of each gate) needs no gradient of later steps: it is computed for all words
        # at once. `share` has PyTorch's order of gates and is the derivative by the state's part,
        # which reaches the candidate through the reset gate.
        of_candidate = (1 - update) * (1 - candidate.square())
        share = torch.empty_like(gates)
        share[:, :dim] = of_candidate * hidden * reset * (1 - reset)
        share[:, dim : 2 * dim] = (before - candidate) * update * (1 - update)
        share[:, 2 * dim :] = of_candidate * reset
        totals = torch.empty_like(before)
        state = gradient.new_zeros(max(step.rows for step in ctx.steps), dim)
        for step in reversed(ctx.steps):
            now, total, gate_share = state[: step.rows], step.of(totals), step.of(share)
            # h' is the output of this step and the state of the next one: both gradients.
            torch.add(now, step.of(gradient), out=total)
            gate_share.view(-1, 3, dim).mul_(total[:, None])
            # h acts directly, through z, and through the recurrent weights.
            torch.mul(total, step.of(update), out=now)
            now.addmm_(gate_share, recurrent)
        of_recurrent, of_recurrent_bias = share.T @ before, share.sum(0)
        # From here on `share` is the derivative by the words' part. It differs in the candidate
        # alone, since the reset gate scales only the state's part.
        share[:, 2 * dim :] = totals * of_candidate
        of_words = share @ weight if ctx.needs_input_grad[0] else None
        of_weights = share.T @ words, of_recurrent, share.sum(0), of_recurrent_bias
        return of_words, None, *of_weights
