"""Score a block on a GPU without padding: the words of all captions follow each other.

Every function here equals the few plain lines in its docstring, as in ``fused.py``. A *sequence*
has the nodes of one image and one caption: the global node, then a node per word. The sequences of
an image follow each other in the order of the captions, so ``nodes`` is (images, words + captions,
node) and a graph layer is one attention over sequences of any length.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from pc2_baseline.data.pairs import send
from pc2_baseline.networks.fused import EPSILON, _difference, _unit_backward
from pc2_baseline.networks.onednn_products import whole_float32

PIECE_BYTES, PART_BYTES = 2**30, 2**31
"""Maximum bytes of a tensor of a word's width in the backward pass; of a block's nodes."""
MOST_SEQUENCES, WIDEST_NODE = 65_535, 256
"""Maximum sequences and node width of CUDA's kernels."""

_aten = torch.ops.aten
_flash, _efficient = (
    (_aten._flash_attention_forward, _aten._flash_attention_backward),  # noqa: SLF001
    (_aten._efficient_attention_forward, _aten._efficient_attention_backward),  # noqa: SLF001
)
"""Attention over sequences of any length, forward and backward: in bfloat16, and in float32."""


def fits(device: torch.device, dtype: torch.dtype, node: int) -> bool:
    """Return whether a device has attention over sequences of any length, for nodes this wide."""
    supported = dtype in {torch.float32, torch.bfloat16} and node % 8 == 0 and node <= WIDEST_NODE
    return supported and device.type != "cpu"


def parts_of(images: int, lengths: Int[Tensor, " captions"], row_bytes: int) -> list[slice]:
    """Split images so that the kernels accept their sequences and their nodes fit into memory."""
    nodes = int(lengths.sum()) + len(lengths)
    most = min(MOST_SEQUENCES // len(lengths), PART_BYTES // (nodes * row_bytes))
    step = -(-images // -(-images // max(1, most)))  # parts of similar size
    return [slice(start, start + step) for start in range(0, images, step)]


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions of the words and nodes of some captions, the same for each image.

    Attributes:
        caption: Caption of each word.
        padded: Row of each word where captions are padded.
        place: Node of each word, among those of an image.
        first: Global node of each caption, among those of an image.
        each: Start of each sequence of queries and the number of all nodes, the same of keys, and
            the longest sequence of each, where every node is a query.
        one: The same where one node of each sequence is a query.
    """

    caption: Int[Tensor, " words"]
    padded: Int[Tensor, " words"]
    place: Int[Tensor, " words"]
    first: Int[Tensor, " captions"]
    each: tuple[Tensor, Tensor, int, int]
    one: tuple[Tensor, Tensor, int, int]


def lay_out(lengths: Int[Tensor, " captions"], images: int, words: Tensor) -> Layout:
    """Compute the layout of captions from their lengths on the host; send it in one copy."""
    device, width = words.device, words.shape[1]
    caption = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    ends = (lengths + 1).cumsum(0)
    first = ends - lengths - 1
    place = torch.arange(len(caption)) + caption + 1
    padded = caption * width + place - first[caption] - 1
    starts = (first + torch.arange(images)[:, None] * ends[-1]).flatten()
    parts = caption, padded, place, first, torch.cat([starts, images * ends[-1:]])
    sent = torch.split(send(torch.cat(parts), device), [len(part) for part in parts])
    caption, padded, place, first, starts = sent
    starts, longest = starts.int(), int(lengths.max()) + 1
    ones = torch.arange(len(starts), dtype=torch.int32, device=device)
    sequences = (starts, starts, longest, longest), (ones, starts, 1, longest)
    return Layout(caption, padded, place, first, *sequences)


def attend(
    regions: Float[Tensor, "images regions dim"],
    words: Float[Tensor, "words dim"],
    layout: Layout,
    attention: tuple[float, float],
) -> Float[Tensor, "images regions words"]:
    """Weigh the regions for each word, as :func:`~pc2_baseline.networks.fused.attend` does.

    A product with the matrix of captions by words gives the length of a region's affinities with
    the words of each caption, and another one assigns it to these words.
    """
    temperature, slope = attention
    affinity = functional.leaky_relu(regions @ words.T, slope)
    member = functional.one_hot(layout.caption, len(layout.first)).to(words.dtype)
    # The root of zero has no gradient; the bound gives it one, without effect on zero affinities.
    length = (affinity.square() @ member).clamp(min=EPSILON**3).sqrt() + EPSILON
    weights = (affinity * ((temperature / length) @ member.T)).softmax(1)
    gram = regions @ regions.transpose(1, 2)
    squares = (weights * (gram @ weights)).sum(1, keepdim=True)
    return weights / (squares.clamp(min=EPSILON**2).sqrt() + EPSILON)


def local_nodes(
    whole: Float[Tensor, "images captions node"],
    codes: tuple[Float[Tensor, "images regions dim"], Float[Tensor, "words dim"]],
    local: tuple[Float[Tensor, "node dim"], Float[Tensor, " node"]],
    layout: Layout,
    settings: tuple[tuple[float, float], torch.dtype],
) -> Float[Tensor, "images nodes node"]:
    """Compare each word with the regions that it attends to; put global nodes before their words.

    The same as::

        context = attend(*codes, layout, attention).transpose(1, 2) @ regions
        nodes[:, layout.first] = whole
        nodes[:, layout.place] = unit(linear((context - words) ** 2, *local))

    ``settings`` contains the attention's temperature and slope, and the type of large products.
    """
    nodes: Tensor = _LocalNodes.apply(layout, settings, whole, *codes, *local)
    return nodes


def reason(
    nodes: Float[Tensor, "images nodes node"],
    query: tuple[Float[Tensor, "node node"], Float[Tensor, " node"]],
    mix: tuple[Float[Tensor, "node node"], Float[Tensor, " node"]],
    layout: Layout,
) -> Float[Tensor, "images nodes node"]:
    """Update all nodes from all nodes of their sequence, as ``fused.reason`` does."""
    weights = [weight.to(nodes.dtype) for weight in (*query, *mix)]
    queries = functional.linear(nodes, *weights[:2])
    mixed: Tensor = _Attend.apply(queries, nodes, layout.each)
    return functional.linear(mixed, *weights[2:]).relu_()


def conclude(
    nodes: Float[Tensor, "images nodes node"],
    query: tuple[Float[Tensor, "node node"], Float[Tensor, " node"]],
    layout: Layout,
) -> Float[Tensor, "sequences node"]:
    """Attend from the global node of each sequence to all its nodes, as ``fused.conclude`` does."""
    queries = functional.linear(nodes.index_select(1, layout.first).flatten(0, 1), *query)
    attended: Tensor = _Attend.apply(queries, nodes, layout.one)
    return attended


class _LocalNodes(Function):
    @staticmethod
    def forward(ctx: Any, layout: Layout, settings: Any, *tensors: Tensor) -> Tensor:
        whole, regions, words, weight, bias = tensors
        attention, dtype = settings
        count, node = len(regions), len(weight)
        nodes = words.new_empty(count, len(words) + whole.shape[1], node, dtype=dtype)
        nodes.index_copy_(1, layout.first, whole.to(dtype))
        lengths = words.new_empty(count, len(words), 1)
        weights = attend(regions, words, layout, attention).to(dtype)
        flat, fast, narrow = words.to(dtype), regions.to(dtype), (weight.to(dtype), bias.to(dtype))
        for piece in _pieces(count, flat, 2 * PIECE_BYTES):
            squares = _difference(weights[piece], fast[piece], flat).square_()
            local = functional.linear(squares, *narrow)
            lengths[piece] = local.norm(dim=-1, keepdim=True, dtype=words.dtype)
            local.mul_((lengths[piece] + EPSILON).reciprocal_())
            nodes[piece].index_copy_(1, layout.place, local)
        ctx.save_for_backward(regions, words, weight, nodes, lengths)
        ctx.layout, ctx.settings = layout, settings
        return nodes

    @staticmethod
    @whole_float32()
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        regions, words, weight, nodes, lengths = ctx.saved_tensors
        layout, (attention, dtype) = ctx.layout, ctx.settings
        flat, fast, narrow = words.to(dtype), regions.to(dtype), 2 * weight.to(dtype)
        inner = _unit_backward(gradient[:, layout.place], nodes[:, layout.place], lengths)
        # As in `fused`: attention is small, and is recomputed with a graph.
        with torch.enable_grad():
            inputs = regions.detach().requires_grad_(), words.detach().requires_grad_()
            weights = attend(*inputs, layout, attention)
        fixed = weights.detach().to(dtype)
        of_weight, of_words = torch.zeros_like(weight), torch.zeros_like(words)
        of_regions, of_weights = torch.empty_like(regions), torch.empty_like(weights)
        for piece in _pieces(len(regions), flat, PIECE_BYTES):
            difference = _difference(fixed[piece], fast[piece], flat)
            of_difference = (inner[piece] @ narrow).mul_(difference)
            of_weight += inner[piece].flatten(0, 1).T @ difference.square_().flatten(0, 1)
            of_words -= of_difference.sum(0)
            of_regions[piece] = fixed[piece] @ of_difference
            of_weights[piece] = fast[piece] @ of_difference.transpose(1, 2)
        small = torch.autograd.grad(weights, inputs, of_weights)
        of_whole = gradient[:, layout.first].to(words.dtype)
        of_bias = inner.sum((0, 1)).to(weight.dtype)
        of_codes = of_regions + small[0], of_words + small[1]
        return None, None, of_whole, *of_codes, of_weight, of_bias


class _Attend(Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, nodes: Tensor, where: Any) -> Tensor:
        mixed, kept = _attend(queries.flatten(0, -2), nodes.flatten(0, 1), where)
        ctx.save_for_backward(queries, nodes, mixed, *kept)
        ctx.where = where
        return mixed.view_as(queries)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        queries, nodes, *kept = ctx.saved_tensors
        flat = gradient.flatten(0, -2), queries.flatten(0, -2), nodes.flatten(0, 1), *kept
        of_queries, of_nodes = _attend_backward(ctx.where, *flat)
        return of_queries.view_as(queries), of_nodes.view_as(nodes), None


def _pieces(images: int, words: Tensor, most: int) -> list[slice]:
    step = max(1, most // max(words.nbytes, 1))
    return [slice(start, start + step) for start in range(0, images, step)]


def _attend(queries: Tensor, nodes: Tensor, where: Any) -> tuple[Tensor, list[Tensor]]:
    """Mix each sequence's nodes by ``softmax(queries @ nodes.T)``; also return saved tensors.

    ``where`` is :attr:`Layout.each` or :attr:`Layout.one`.
    """
    if nodes.device.type == "cpu":  # slow and plain
        parts = (torch.split(rows, starts.diff().tolist())
                 for rows, starts in zip((queries, nodes), where[:2], strict=True))  # fmt: skip
        return torch.cat([(a @ b.T).softmax(-1) @ b for a, b in zip(*parts, strict=True)]), []
    heads = queries[:, None], nodes[:, None], nodes[:, None]  # one head
    if nodes.dtype == torch.float32:
        wide = (each[None] for each in heads)
        outputs = _efficient[0](*wide, None, *where, 0.0, 0, compute_log_sumexp=True, scale=1.0)
        return outputs[0][0, :, 0], [*outputs[1:4]]
    outputs = _flash[0](*heads, *where, 0.0, is_causal=False, return_debug_mask=False, scale=1.0)
    return outputs[0][:, 0], [*outputs[1:4]]


def _attend_backward(
    where: Any, gradient: Tensor, queries: Tensor, nodes: Tensor, *kept: Tensor
) -> tuple[Tensor, ...]:
    """Return the gradients of the queries and of the nodes, which act as keys and as values."""
    if nodes.device.type == "cpu":
        with torch.enable_grad():
            inputs = queries.detach().requires_grad_(), nodes.detach().requires_grad_()
            return torch.autograd.grad(_attend(*inputs, where)[0], inputs, gradient)
    heads = [each[:, None] for each in (gradient.contiguous(), queries, nodes, nodes, kept[0])]
    if nodes.dtype == torch.float32:
        *wide, out = (each[None] for each in heads)
        rest = None, out, *where, kept[1], 0.0, *kept[2:], 0, False
        gradients = _efficient[1](*wide, *rest, scale=1.0)
        return gradients[0][0, :, 0], (gradients[1] + gradients[2])[0, :, 0]
    rest = kept[1], *where, 0.0, False, *kept[2:]
    gradients = _flash[1](*heads, *rest, scale=1.0)
    return gradients[0][:, 0], gradients[1].add_(gradients[2])[:, 0]
