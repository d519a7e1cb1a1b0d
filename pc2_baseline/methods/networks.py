"""Networks and learners of the methods, built from a run's settings."""

from torch import nn

from pc2_baseline.config import ModelSettings, TrainSettings
from pc2_baseline.modules.image import ImageEncoder
from pc2_baseline.modules.learner import Learner
from pc2_baseline.modules.network import MatchingNetwork
from pc2_baseline.modules.pooled import (
    CosineSimilarity,
    PooledCaptionEncoder,
    PooledImageEncoder,
)
from pc2_baseline.modules.similarity import MemoryBudget, SafSimilarity, SgrSimilarity
from pc2_baseline.modules.text import CaptionEncoder
from pc2_baseline.process_groups import ALONE, ProcessGroup
from pc2_baseline.training.method import Sizes


def make_network(
    model: ModelSettings, sizes: Sizes, group: ProcessGroup = ALONE
) -> MatchingNetwork:
    """Build the network of a run's settings, freshly drawn, for the ranks that train it."""
    make = _pooled if model.similarity == "pooled" else _fine_grained
    net = make(model, sizes)
    net.similarity.group = group
    return net


def _fine_grained(model: ModelSettings, sizes: Sizes) -> MatchingNetwork:
    """Build a network that compares words with regions."""
    budget = MemoryBudget(model.chunk_mb, model.keep_mb, model.precision)
    return MatchingNetwork(
        ImageEncoder(sizes.features, model.embed_dim, model.dropout, model.feature_dropout),
        CaptionEncoder(
            sizes.vocabulary, model.word_dim, model.embed_dim, model.dropout, model.word_dropout
        ),
        SafSimilarity(model.embed_dim, model.similarity_dim, budget)
        if model.similarity == "saf"
        else SgrSimilarity(model.embed_dim, model.similarity_dim, model.graph_layers, budget),
    )


def _pooled(model: ModelSettings, sizes: Sizes) -> MatchingNetwork:
    """Build a network of one vector a screenshot and one a caption."""
    dropout = model.dropout, model.word_dropout
    return MatchingNetwork(
        PooledImageEncoder(
            sizes.features, model.embed_dim, model.image_pooling, model.feature_dropout
        ),
        PooledCaptionEncoder(
            sizes.vocabulary, model.word_dim, model.embed_dim, model.caption_encoder, *dropout
        ),
        CosineSimilarity(),
    )


def make_learner(net: nn.Module, matching: MatchingNetwork, train: TrainSettings) -> Learner:
    """Build the learner of a network, of which ``matching`` is the part that scores."""
    return Learner(net, train.lr, train.clip, train.weight_decay, matching.similarity)
