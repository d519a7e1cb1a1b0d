"""The large products of the similarity, with backward passes written by hand to save memory.

Every function here equals the few plain lines in its docstring. For the backward pass it keeps
tensors of a node's width (256), never of a word's (1,024).
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from pc2_baseline.networks.onednn_products import linear, whole_float32

EPSILON = 1e-8


def unit(x: Float[Tensor, "*shape dim"]) -> Float[Tensor, "*shape dim"]:
    r"""Scale vectors to length 1, :math:`x / (\|x\| + 10^{-8})`.

    A zero vector stays zero, and its gradient is that of the scaling alone.
    """
    scaled: Tensor = _Unit.apply(x)
    return scaled


def attend(
    regions: Float[Tensor, "images regions dim"],
    words: Float[Tensor, "captions words dim"],
    temperature: float,
    slope: float,
) -> Float[Tensor, "images regions allwords"]:
    r"""Weigh the regions for each word so that their weighted sum is a unit vector.

    The length of a sum :math:`\sum_r a_r v_r` is :math:`\sqrt{a^\top G a}` with the regions' Gram
    matrix G: no vector of a word's width is made.

    Padding words are zero.

    Source:
        SCAN (Lee et al., ECCV 2018), text to image, as SGRAF has it: affinities are scaled to
        length 1 over the words of a caption, then softmax over the regions.
    """
    affinity = functional.leaky_relu(regions @ words.flatten(0, 1).T, slope).to(words.dtype)
    over_words = unit(affinity.view(*affinity.shape[:2], *words.shape[:2])).flatten(2)
    weights = (temperature * over_words).softmax(1)
    gram = regions @ regions.transpose(1, 2)
    squares = (weights * (gram @ weights)).sum(1, keepdim=True)
    return weights / (squares.clamp(min=EPSILON**2).sqrt() + EPSILON)


def local_nodes(
    whole: Float[Tensor, "images captions node"],
    regions: Float[Tensor, "images regions dim"],
    words: Float[Tensor, "captions words dim"],
    weight: Float[Tensor, "node dim"],
    bias: Float[Tensor, " node"],
    attention: tuple[float, float],
    settings: tuple[torch.dtype, int],
) -> Float[Tensor, "images captions nodes node"]:
    """Compare each word with the regions that it attends to; put the global node in front.

    The same as::

        context = attend(regions, words, *attention).transpose(1, 2) @ regions
        local = unit(linear((context - words.flatten(0, 1)) ** 2, weight, bias))
        return cat([whole[:, :, None], local.unflatten(1, words.shape[:2])], 2)

    Padding words are zero. ``attention`` contains temperature and slope; ``settings`` the type of
    the large products and of the result, and the number of rows computed at once.
    """
    nodes: Tensor = _LocalNodes.apply(whole, regions, words, weight, bias, attention, settings)
    return nodes


def reason(
    nodes: Float[Tensor, "pairs nodes node"],
    padding: Bool[Tensor, "pairs 1 nodes"],
    query: tuple[Float[Tensor, "node node"], Float[Tensor, " node"]],
    mix: tuple[Float[Tensor, "node node"], Float[Tensor, " node"]],
    *,
    keep: bool,
) -> Float[Tensor, "pairs nodes node"]:
    """Update all nodes from all nodes; ``keep`` the projected queries for the backward pass.

    The same as::

        scores = linear(nodes, *query) @ nodes.transpose(1, 2)
        attention = scores.masked_fill(padding, -inf).softmax(-1)
        return relu(linear(attention @ nodes, *mix))
    """
    updated: Tensor = _Reason.apply(nodes, padding, *query, *mix, keep)
    return updated


def conclude(
    nodes: Float[Tensor, "pairs nodes node"],
    padding: Bool[Tensor, "pairs 1 nodes"],
    query: tuple[Float[Tensor, "node node"], Float[Tensor, " node"]],
) -> Float[Tensor, "pairs node"]:
    """Attend from the first node to all, as in :func:`reason`, for that node alone."""
    attended: Tensor = _Attend.apply(nodes, functional.linear(nodes[:, 0], *query), padding)
    return attended


def squared_difference(
    images: Float[Tensor, "images dim"],
    captions: Float[Tensor, "captions dim"],
    weight: Float[Tensor, "node dim"],
    bias: Float[Tensor, " node"],
) -> Float[Tensor, "images captions node"]:
    """Project squared differences: ``linear((images[:, None] - captions) ** 2, weight, bias)``."""
    projected: Tensor = _SquaredDifference.apply(images, captions, weight, bias)
    return projected


def _unit_backward(gradient: Tensor, scaled: Tensor, length: Tensor) -> Tensor:
    """Convert the gradient of unit vectors into that of the vectors."""
    # x / (length + ε) is a little shorter than 1, so the exact derivative has (length + ε) / length
    # with the projection on it. A zero vector has no direction to project on.
    grown = ((length + EPSILON) / length).masked_fill(length == 0, 0.0).to(gradient.dtype)
    along = torch.linalg.vecdot(gradient, scaled).unsqueeze(-1).mul_(grown)
    # Growth along its direction changes no unit vector: only the part across it counts.
    across = torch.addcmul(gradient, scaled, along, value=-1)
    return across.mul_((length + EPSILON).reciprocal_().to(gradient.dtype))


class _Unit(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scaled = x / (length + EPSILON)
        ctx.save_for_backward(scaled, length)
        return scaled

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _unit_backward(gradient, *ctx.saved_tensors)


def _blocks(images: int, rows: int, cells: int) -> list[slice]:
    step = max(1, cells // max(rows, 1))
    return [slice(start, start + step) for start in range(0, images, step)]


def _difference(weights: Tensor, regions: Tensor, flat: Tensor) -> Tensor:
    """Return the weighted sum of regions of each word, minus the word."""
    return torch.baddbmm(flat[None], weights.transpose(1, 2), regions, beta=-1)


class _LocalNodes(Function):
    @staticmethod
    def forward(
        ctx: Any,
        whole: Tensor,
        regions: Tensor,
        words: Tensor,
        weight: Tensor,
        bias: Tensor,
        attention: tuple[float, float],
        settings: tuple[torch.dtype, int],
    ) -> Tensor:
        dtype, cells = settings
        captions, longest = words.shape[:2]
        nodes = words.new_empty(len(regions), captions, longest + 1, len(weight), dtype=dtype)
        lengths = words.new_empty(len(regions), captions, longest, 1)
        nodes[:, :, 0] = whole
        flat, fast = words.flatten(0, 1).to(dtype), regions.to(dtype)
        # A few images at once: the squares have the width of a word, for each image and word.
        for block in _blocks(len(regions), len(flat), cells):
            # In full precision: the softmax's temperature multiplies rounding errors.
            weights = attend(regions[block], words, *attention).to(dtype)
            squares = _difference(weights, fast[block], flat).square_()
            local = linear(squares, weight.to(dtype), bias.to(dtype))
            local = local.view(-1, captions, longest, len(weight))
            lengths[block] = torch.linalg.vector_norm(
                local, dim=-1, keepdim=True, dtype=words.dtype
            )
            scale = (lengths[block] + EPSILON).reciprocal_().to(dtype)
            # Written next to the global node directly: a concatenation would copy all nodes.
            torch.mul(local, scale, out=nodes[block, :, 1:])
        # Neither weights nor squares are kept: squares have a word's width for each image and word,
        # several times the nodes. The backward pass recomputes both, block by block.
        ctx.save_for_backward(regions, words, weight, nodes, lengths)
        ctx.attention, ctx.settings = attention, settings
        return nodes

    @staticmethod
    @whole_float32()
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        regions, words, weight, nodes, lengths = ctx.saved_tensors
        dtype, cells = ctx.settings
        flat, fast, fast_weight = words.flatten(0, 1).to(dtype), regions.to(dtype), weight.to(dtype)
        of_regions, of_words = torch.zeros_like(regions), torch.zeros_like(words)
        of_weight, of_bias = torch.zeros_like(weight), weight.new_zeros(len(weight))
        for block in _blocks(len(regions), len(flat), cells):
            inner = _unit_backward(gradient[block, :, 1:], nodes[block, :, 1:], lengths[block])
            inner = inner.flatten(1, 2)
            of_bias += inner.sum((0, 1))
            # Recomputed with a graph: attention is small (one number per region and word), so
            # autograd differentiates it; the wide products around it are done by hand.
            with torch.enable_grad():
                inputs = regions[block].detach().requires_grad_(), words.detach().requires_grad_()
                weights = attend(*inputs, *ctx.attention)
            fast_weights = weights.detach().to(dtype)
            difference = _difference(fast_weights, fast[block], flat)
            # d(x²) = 2 x dx; the 2 multiplies the smallest factor. This product needs the
            # difference itself, so it is squared in place afterwards, for the weight.
            of_difference = (inner @ (2 * fast_weight)).mul_(difference)
            of_weight += inner.flatten(0, 1).T @ difference.square_().flatten(0, 1)
            # The difference is (weighted regions) - word, for each word and image. Regions and
            # words act twice: in the difference here, and in the attention below.
            of_words -= of_difference.sum(0).view_as(words)
            of_regions[block] += fast_weights @ of_difference
            of_weights = (fast[block] @ of_difference.transpose(1, 2)).to(words.dtype)
            small = torch.autograd.grad(weights, inputs, of_weights)
            of_regions[block] += small[0]
            of_words += small[1]
        of_whole = gradient[:, :, 0].to(words.dtype)
        return of_whole, of_regions, of_words, of_weight, of_bias, None, None


def _softmax(scores: Tensor, padding: Tensor) -> Tensor:
    dtype = scores.dtype
    # bfloat16 has three digits: exponentials and their sum are computed in float32.
    wide = scores.float() if dtype == torch.bfloat16 else scores
    return wide.masked_fill_(padding, float("-inf")).softmax(-1).to(dtype)


def _softmax_backward(gradient: Tensor, attention: Tensor) -> Tensor:
    inner: Tensor = torch.ops.aten._softmax_backward_data(  # noqa: SLF001
        gradient, attention, -1, attention.dtype
    )
    return inner


class _Reason(Function):
    @staticmethod
    def forward(
        ctx: Any,
        nodes: Tensor,
        padding: Tensor,
        query: Tensor,
        query_bias: Tensor,
        mix: Tensor,
        mix_bias: Tensor,
        keep: bool,  # noqa: FBT001 - autograd takes no names
    ) -> Tensor:
        dtype = nodes.dtype
        queries = linear(nodes, query.to(dtype), query_bias.to(dtype))
        attention = _softmax(queries @ nodes.transpose(1, 2), padding)
        updated = linear(attention @ nodes, mix.to(dtype), mix_bias.to(dtype), relu=True)
        kept = queries if keep else None
        ctx.save_for_backward(nodes, attention, updated, query, query_bias, mix, kept)
        return updated

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        nodes, attention, updated, query, query_bias, mix, queries = ctx.saved_tensors
        dtype = nodes.dtype
        # The rectifier's output shows as well as its input where it is active.
        inner = torch.ops.aten.threshold_backward(gradient, updated, 0)
        # attention @ nodes is recomputed, not kept: it is as large as the nodes.
        of_mix = inner.flatten(0, 1).T @ (attention @ nodes).flatten(0, 1)
        of_mix_bias = inner.sum((0, 1)).to(mix.dtype)
        of_mixed = inner @ mix.to(dtype)
        of_scores = _softmax_backward(of_mixed @ nodes.transpose(1, 2), attention)
        if queries is None:
            queries = linear(nodes, query.to(dtype), query_bias.to(dtype))
        # Nodes act three times, as values, keys and queries; each gradient is added in place.
        of_nodes = torch.bmm(attention.transpose(1, 2), of_mixed)
        of_nodes.baddbmm_(of_scores.transpose(1, 2), queries)
        of_queries = of_scores @ nodes
        of_query = of_queries.flatten(0, 1).T @ nodes.flatten(0, 1)
        of_query_bias = of_queries.sum((0, 1)).to(query.dtype)
        of_nodes.flatten(0, 1).addmm_(of_queries.flatten(0, 1), query.to(dtype))
        wide = (of_query.to(query.dtype), of_query_bias, of_mix.to(mix.dtype), of_mix_bias)
        return of_nodes, None, *wide, None


class _Attend(Function):
    @staticmethod
    def forward(ctx: Any, nodes: Tensor, queries: Tensor, padding: Tensor) -> Tensor:
        attention = _softmax(queries[:, None] @ nodes.transpose(1, 2), padding)
        ctx.save_for_backward(nodes, queries, attention)
        return (attention @ nodes)[:, 0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        nodes, queries, attention = ctx.saved_tensors
        of_scores = _softmax_backward(gradient[:, None] @ nodes.transpose(1, 2), attention)
        # Both outer products, attention × gradient and of_scores × queries, are one product with an
        # inner width of two: one pass over the nodes' gradient instead of two and a sum.
        down = torch.cat([attention, of_scores], 1).transpose(1, 2)
        of_nodes = down @ torch.stack([gradient, queries], 1)
        return of_nodes, (of_scores @ nodes)[:, 0], None


class _SquaredDifference(Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, captions: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(images, captions, weight)
        return functional.linear((images[:, None] - captions).square_(), weight, bias)

    @staticmethod
    @whole_float32()
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        images, captions, weight = ctx.saved_tensors
        flat = gradient.flatten(0, 1)
        difference = images[:, None] - captions  # recomputed: it has a word's width
        inner = (gradient @ (2 * weight)).mul_(difference)
        of_weight = flat.T @ difference.square_().flatten(0, 1)
        return inner.sum(1), -inner.sum(0), of_weight, flat.sum(0)
