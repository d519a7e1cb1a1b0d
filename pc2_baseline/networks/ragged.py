"""Score a block on a GPU without padding: the words of all captions stand one after the other.

Every function here equals the few plain lines that its docstring shows, as in ``fused.py``. A
*sequence* is the nodes of one image and one caption: the global node, then a node a word. Those of
an image stand one after the other in the order of the captions, so that ``nodes`` is (images, words
+ captions, node) and a graph layer is one attention over sequences of any length.
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
"""Of a tensor that is a word wide, for some images, in the backward pass; of a block's nodes."""
MOST_SEQUENCES, WIDEST_NODE = 65_535, 256
"""That CUDA's kernels take."""

_aten = torch.ops.aten
_flash, _efficient = (
    (_aten._flash_attention_forward, _aten._flash_attention_backward),  # noqa: SLF001
    (_aten._efficient_attention_forward, _aten._efficient_attention_backward),  # noqa: SLF001
)
"""Attention over sequences of any length, forward and backward: in bfloat16, and in float32."""


def fits(device: torch.device, kind: torch.dtype, node: int) -> bool:
    """Return whether a device has attention over sequences of any length, for nodes this wide."""
    known = kind in {torch.float32, torch.bfloat16} and node % 8 == 0 and node <= WIDEST_NODE
    return known and device.type != "cpu"


def parts_of(images: int, lengths: Int[Tensor, " captions"], row_bytes: int) -> list[slice]:
    """Cut images so that the kernels take their sequences, and their nodes fit into memory."""
    nodes = int(lengths.sum()) + len(lengths)
    most = min(MOST_SEQUENCES // len(lengths), PART_BYTES // (nodes * row_bytes))
    step = -(-images // -(-images // max(1, most)))  # parts of like size
    return [slice(start, start + step) for start in range(0, images, step)]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the words and nodes of some captions stand, for each of some images.

    Attributes:
        caption: Caption of each word.
        padded: Row of each word where captions are padded.
        place: Node of each word, among those of an image.
        first: Global node of each caption, among those of an image.
        each: Sequences that ask and are asked: where they start and the number of all nodes, twice,
            and the longest, twice.
        one: The same where one node of each sequence asks.
    """

    caption: Int[Tensor, " words"]
    padded: Int[Tensor, " words"]
    place: Int[Tensor, " words"]
    first: Int[Tensor, " captions"]
    each: tuple[Tensor, Tensor, int, int]
    one: tuple[Tensor, Tensor, int, int]


def lay_out(lengths: Int[Tensor, " captions"], images: int, words: Tensor) -> Layout:
    """Lay out captions, whose lengths the host knows, of padded words; places are sent at once."""
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

    The length of a region's affinities with the words of a caption is a product with the matrix
    that tells which word is of which caption, and so is its way back to these words.
    """
    temperature, slope = attention
    affinity = functional.leaky_relu(regions @ words.T, slope)
    member = functional.one_hot(layout.caption, len(layout.first)).to(words.dtype)
    # The root of zero has no gradient; the bound gives it one, of no effect on zero affinities.
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
    """Compare each word with what it attends to; put the global nodes in front of their words.

    The same as::

        context = attend(*codes, layout, attention).transpose(1, 2) @ regions
        nodes[:, layout.first] = whole
        nodes[:, layout.place] = unit(linear((context - words) ** 2, *local))

    ``settings`` has the attention's temperature and slope, and the type of the large products.
    """
    nodes: Tensor = _LocalNodes.apply(layout, settings, whole, *codes, *local)
    return nodes


def reason(
    nodes: Float[Tensor, "images nodes node"],
    query: tuple[Float[Tensor, "node node"], Float[Tensor, " node"]],
    mix: tuple[Float[Tensor, "node node"], Float[Tensor, " node"]],
    layout: Layout,
) -> Float[Tensor, "images nodes node"]:
    """Update all nodes from all nodes of their sequence: each as ``fused.reason`` does."""
    weights = [own.to(nodes.dtype) for own in (*query, *mix)]
    asking = functional.linear(nodes, *weights[:2])
    mixed: Tensor = _Attend.apply(asking, nodes, layout.each)
    return functional.linear(mixed, *weights[2:]).relu_()


def conclude(
    nodes: Float[Tensor, "images nodes node"],
    query: tuple[Float[Tensor, "node node"], Float[Tensor, " node"]],
    layout: Layout,
) -> Float[Tensor, "sequences node"]:
    """Attend from the global node of each sequence to all of it: as ``fused.conclude`` does."""
    asking = functional.linear(nodes.index_select(1, layout.first).flatten(0, 1), *query)
    attended: Tensor = _Attend.apply(asking, nodes, layout.one)
    return attended


class _LocalNodes(Function):
    @staticmethod
    def forward(ctx: Any, layout: Layout, settings: Any, *tensors: Tensor) -> Tensor:
        whole, regions, words, weight, bias = tensors
        attention, kind = settings
        count, node = len(regions), len(weight)
        nodes = words.new_empty(count, len(words) + whole.shape[1], node, dtype=kind)
        nodes.index_copy_(1, layout.first, whole.to(kind))
        lengths = words.new_empty(count, len(words), 1)
        weights = attend(regions, words, layout, attention).to(kind)
        flat, fast, narrow = words.to(kind), regions.to(kind), (weight.to(kind), bias.to(kind))
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
        layout, (attention, kind) = ctx.layout, ctx.settings
        flat, fast, narrow = words.to(kind), regions.to(kind), 2 * weight.to(kind)
        inner = _unit_backward(gradient[:, layout.place], nodes[:, layout.place], lengths)
        # As in `fused`: attention is small, and made again with a graph of its own.
        with torch.enable_grad():
            own = regions.detach().requires_grad_(), words.detach().requires_grad_()
            weights = attend(*own, layout, attention)
        fixed = weights.detach().to(kind)
        of_weight, of_words = torch.zeros_like(weight), torch.zeros_like(words)
        of_regions, of_weights = torch.empty_like(regions), torch.empty_like(weights)
        for piece in _pieces(len(regions), flat, PIECE_BYTES):
            difference = _difference(fixed[piece], fast[piece], flat)
            of_difference = (inner[piece] @ narrow).mul_(difference)
            of_weight += inner[piece].flatten(0, 1).T @ difference.square_().flatten(0, 1)
            of_words -= of_difference.sum(0)
            of_regions[piece] = fixed[piece] @ of_difference
            of_weights[piece] = fast[piece] @ of_difference.transpose(1, 2)
        small = torch.autograd.grad(weights, own, of_weights)
        of_whole = gradient[:, layout.first].to(words.dtype)
        of_bias = inner.sum((0, 1)).to(weight.dtype)
        of_codes = of_regions + small[0], of_words + small[1]
        return None, None, of_whole, *of_codes, of_weight, of_bias


class _Attend(Function):
    @staticmethod
    def forward(ctx: Any, asking: Tensor, nodes: Tensor, where: Any) -> Tensor:
        mixed, kept = _attend(asking.flatten(0, -2), nodes.flatten(0, 1), where)
        ctx.save_for_backward(asking, nodes, mixed, *kept)
        ctx.where = where
        return mixed.view_as(asking)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        asking, nodes, *kept = ctx.saved_tensors
        given = gradient.flatten(0, -2), asking.flatten(0, -2), nodes.flatten(0, 1), *kept
        of_asking, of_nodes = _attend_backward(ctx.where, *given)
        return of_asking.view_as(asking), of_nodes.view_as(nodes), None


def _pieces(images: int, words: Tensor, most: int) -> list[slice]:
    step = max(1, most // max(words.nbytes, 1))
    return [slice(start, start + step) for start in range(0, images, step)]


def _attend(asking: Tensor, nodes: Tensor, where: Any) -> tuple[Tensor, list[Tensor]]:
    """Mix each sequence's nodes by ``softmax(asking @ nodes.T)``; return what backward needs, too.

    ``where`` is :attr:`Layout.each` or :attr:`Layout.one`.
    """
    if nodes.device.type == "cpu":  # the slow, obvious way
        parts = (torch.split(rows, starts.diff().tolist())
                 for rows, starts in zip((asking, nodes), where[:2], strict=True))  # fmt: skip
        return torch.cat([(a @ b.T).softmax(-1) @ b for a, b in zip(*parts, strict=True)]), []
    given = asking[:, None], nodes[:, None], nodes[:, None]  # one head
    if nodes.dtype == torch.float32:
        wide = (each[None] for each in given)
        found = _efficient[0](*wide, None, *where, 0.0, 0, compute_log_sumexp=True, scale=1.0)
        return found[0][0, :, 0], [*found[1:4]]
    found = _flash[0](*given, *where, 0.0, is_causal=False, return_debug_mask=False, scale=1.0)
    return found[0][:, 0], [*found[1:4]]


def _attend_backward(
    where: Any, gradient: Tensor, asking: Tensor, nodes: Tensor, *kept: Tensor
) -> tuple[Tensor, ...]:
    """Return the gradients of ``asking`` and of the nodes, which act as keys and as values."""
    if nodes.device.type == "cpu":
        with torch.enable_grad():
            given = asking.detach().requires_grad_(), nodes.detach().requires_grad_()
            return torch.autograd.grad(_attend(*given, where)[0], given, gradient)
    heads = [each[:, None] for each in (gradient.contiguous(), asking, nodes, nodes, kept[0])]
    if nodes.dtype == torch.float32:
        *wide, out = (each[None] for each in heads)
        rest = None, out, *where, kept[1], 0.0, *kept[2:], 0, False
        found = _efficient[1](*wide, *rest, scale=1.0)
        return found[0][0, :, 0], (found[1] + found[2])[0, :, 0]
    rest = kept[1], *where, 0.0, False, *kept[2:]
    found = _flash[1](*heads, *rest, scale=1.0)
    return found[0][:, 0], found[1].add_(found[2])[:, 0]
