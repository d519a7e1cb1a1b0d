"""Networks and learners of the methods, built from a run's settings."""

import torch
from torch import nn

from pc2_baseline.config import ModelSettings, Settings, TrainSettings
from pc2_baseline.method_settings import Pc2CommonSettings
from pc2_baseline.modules.bank import PredictionBank
from pc2_baseline.modules.coteaching import PEERS, Peers
from pc2_baseline.modules.image import ImageEncoder
from pc2_baseline.modules.learner import Learner
from pc2_baseline.modules.network import MatchingNetwork
from pc2_baseline.modules.pc2_network import Pc2Network
from pc2_baseline.modules.pseudo_class import CLASSIFIERS
from pc2_baseline.modules.seeds import seed_torch
from pc2_baseline.modules.similarity import MemoryBudget, SafSimilarity, SgrSimilarity, Similarity
from pc2_baseline.modules.text import CaptionEncoder
from pc2_baseline.process_groups import ALONE, ProcessGroup, join_process_groups
from pc2_baseline.training.method import Sizes


def make_network(
    model: ModelSettings, sizes: Sizes, group: ProcessGroup = ALONE
) -> MatchingNetwork:
    """Build the network of a run's settings, freshly drawn.

    Args:
        model: Settings of the network.
        sizes: Sizes of the data.
        group: Ranks that train it together.
    """
    net = MatchingNetwork(
        ImageEncoder(sizes.features, model.embed_dim, model.dropout, model.feature_dropout),
        CaptionEncoder(
            sizes.vocabulary, model.word_dim, model.embed_dim, model.dropout, model.word_dropout
        ),
        _make_similarity(model),
    )
    net.similarity.group = group
    return net


def _make_similarity(model: ModelSettings) -> Similarity:
    budget = MemoryBudget(model.chunk_mb, model.keep_mb, model.precision)
    if model.similarity == "saf":
        return SafSimilarity(model.embed_dim, model.similarity_dim, budget)
    return SgrSimilarity(model.embed_dim, model.similarity_dim, model.graph_layers, budget)


def make_learner(net: nn.Module, matching: MatchingNetwork, train: TrainSettings) -> Learner:
    """Build the learner of a network, of which ``matching`` is the part that scores."""
    return Learner(net, train.lr, train.clip, train.weight_decay, matching.similarity)


def make_peers(
    settings: Settings, method: Pc2CommonSettings, sizes: Sizes, device: torch.device
) -> Peers:
    """Build two peers with a pseudo-classifier each, freshly and differently drawn.

    Args:
        settings: Settings of the run.
        method: Its method section.
        sizes: Sizes of the data.
        device: Device of the networks.
    """
    groups = join_process_groups(len(PEERS))
    nets = []
    for peer, group in enumerate(groups.groups):
        seed_torch(settings.train.seed, peer)
        classify = CLASSIFIERS[method.class_input](
            settings.model.embed_dim, method.class_hidden, method.classes
        )
        matching = make_network(settings.model, sizes, group)
        nets.append(Pc2Network(matching, classify, method.classes).to(device))
    learners = [make_learner(net, net.matching, settings.train) for net in nets]
    banks = [PredictionBank(sizes.pairs, method.classes) for _ in PEERS]
    return Peers(nets, learners, banks, groups)
