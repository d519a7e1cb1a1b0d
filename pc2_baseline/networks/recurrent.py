"""Reading packed captions by a GRU, with a backward pass written by hand for the CPU."""

from itertools import accumulate
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence


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
