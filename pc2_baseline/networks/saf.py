"""SAF of SGRAF: the weighted sum of a pair's nodes, by weights computed from the nodes."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from pc2_baseline.networks.encoders import xavier
from pc2_baseline.networks.fused import unit
from pc2_baseline.networks.sgr import NodeSettings, Similarity
from pc2_baseline.networks.similarity import DEFAULT_BUDGET, MatchingNetwork, MemoryBudget


class SafSettings(NodeSettings):
    """SAF of SGRAF (Diao et al., AAAI 2021)."""

    def network(self, features: int, vocabulary: int) -> MatchingNetwork:
        """Build the network."""
        encoders = self.encoders(features, vocabulary)
        similarity = SafSimilarity(self.embed_dim, self.similarity_dim, self.budget)
        return MatchingNetwork(*encoders, similarity)


class SafSimilarity(Similarity):
    """Score pairs by a weighted sum of their nodes, by weights computed from the nodes.

    Batch normalisation is over the nodes of one caption in all images of the batch, so a batch has
    as many statistics as captions; they update the running statistics in the captions' order, as a
    loop over captions does.

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
        dtype, wide = nodes.dtype, self.weigh.weight.dtype
        raw = functional.linear(nodes, self.weigh.weight.to(dtype)).squeeze(-1).to(wide)
        raw = raw + self.weigh.bias
        mean, variance = self._statistics(raw, there)
        scaled = (raw - mean[:, None]) * (variance[:, None] + self.norm.eps).rsqrt()
        gates = torch.sigmoid(scaled * self.norm.weight + self.norm.bias) * there
        weights = gates / (gates.sum(2, keepdim=True) + 1e-8)
        summed = (weights[:, :, None].to(dtype) @ nodes).squeeze(2).to(wide)
        return unit(summed), torch.stack([mean, variance])

    def _statistics(
        self, raw: Float[Tensor, "images captions nodes"], there: Bool[Tensor, "captions nodes"]
    ) -> tuple[Float[Tensor, " captions"], Float[Tensor, " captions"]]:
        captions = raw.shape[1]
        if not self.training or self.norm.running_mean is None or self.norm.running_var is None:
            running = (self.norm.running_mean, self.norm.running_var)
            mean, variance = (value.expand(captions) for value in running if value is not None)
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
        """Update the running statistics by each caption's; the variance is the unbiased one."""
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
