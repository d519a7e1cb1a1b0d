"""Networks and learners of the methods, built from a run's settings."""

from functools import cache

from torch import nn

from now_builder.dual_encoder import DualTowers, EncoderInputs
from now_builder.formats.word_vectors import WIDTH
from pc2_baseline.config import ModelSettings, TrainSettings
from pc2_baseline.modules.learner import Learner
from pc2_baseline.networks.attention import (
    Direction,
    ImramSimilarity,
    MaxSimilarity,
    ScanSimilarity,
)
from pc2_baseline.networks.cosine import CosineSimilarity
from pc2_baseline.networks.dual_encoder import DualNetwork, choose_weights
from pc2_baseline.networks.image import ImageEncoder, LocalImageEncoder
from pc2_baseline.networks.network import MatchingNetwork
from pc2_baseline.networks.pooled import PooledCaptionEncoder, PooledImageEncoder
from pc2_baseline.networks.reading import (
    ReadingCaptionEncoder,
    ReadingImageEncoder,
    ReadingSimilarity,
    WordSides,
)
from pc2_baseline.networks.region_graph import RegionGraphEncoder
from pc2_baseline.networks.similarity import (
    BlockSimilarity,
    MemoryBudget,
    SafSimilarity,
    SgrSimilarity,
)
from pc2_baseline.networks.text import CaptionEncoder, LocalCaptionEncoder, OneWayCaptionEncoder
from pc2_baseline.process_groups import ALONE, ProcessGroup
from pc2_baseline.training.method import Sizes


def make_network(
    model: ModelSettings, sizes: Sizes, group: ProcessGroup = ALONE
) -> MatchingNetwork:
    """Build the network of a run's settings, freshly drawn, for the ranks that train it."""
    # The order of these three is the order in which weights are drawn.
    images, captions = _image_encoder(model, sizes), _caption_encoder(model, sizes)
    net = MatchingNetwork(images, captions, _similarity(model))
    if isinstance(images, DualTowers):
        return DualNetwork(images, group, model.chunk, model.precision)
    net.similarity.group = group
    return net


@cache
def encoder_inputs(name: str) -> EncoderInputs:
    """Return what a dual encoder takes."""
    return EncoderInputs(name)


def _image_encoder(model: ModelSettings, sizes: Sizes) -> nn.Module:
    features, dim, dropped = sizes.features, model.embed_dim, model.feature_dropout
    match model.similarity:
        case "sgr" | "saf":
            return ImageEncoder(features, dim, model.dropout, dropped)
        case "scan_t2i" | "scan_i2t" | "imram" | "maxsim":
            return LocalImageEncoder(features, dim, model.dropout, dropped)
        case "vsrn":
            return RegionGraphEncoder(features, dim, model.graph_layers, dropped)
        case "pooled":
            return PooledImageEncoder(features, dim, model.image_pooling, dropped)
        case "reading":
            return ReadingImageEncoder(features, _words(sizes), dropped)
        case "dual_encoder":
            towers = DualTowers(encoder_inputs(model.encoder))
            choose_weights(towers, model.lora_rank)
            return towers


def _caption_encoder(model: ModelSettings, sizes: Sizes) -> nn.Module:
    widths, dropped = (sizes.vocabulary, model.word_dim, model.embed_dim), model.word_dropout
    match model.similarity:
        case "sgr" | "saf":
            return CaptionEncoder(*widths, model.dropout, dropped)
        case "scan_t2i" | "scan_i2t" | "imram" | "maxsim":
            return LocalCaptionEncoder(*widths, model.dropout, dropped)
        case "vsrn":
            return OneWayCaptionEncoder(*widths, model.dropout, dropped)
        case "pooled":
            return PooledCaptionEncoder(*widths, model.caption_encoder, model.dropout, dropped)
        case "reading":
            return ReadingCaptionEncoder(_words(sizes))
        case "dual_encoder":  # both towers are in one
            return nn.Identity()


def _words(sizes: Sizes) -> WordSides:
    return sizes.words or WordSides.unknown(sizes.features)


def _similarity(model: ModelSettings) -> BlockSimilarity:
    budget = MemoryBudget(None, model.keep_mb, model.precision, model.division_precision)
    dim = model.embed_dim
    match model.similarity:
        case "sgr":
            return SgrSimilarity(dim, model.similarity_dim, model.graph_layers, budget)
        case "saf":
            return SafSimilarity(dim, model.similarity_dim, budget)
        case "vsrn" | "pooled" | "dual_encoder":
            return CosineSimilarity()
        case "reading":
            return ReadingSimilarity()
        case _:
            return _attending(model, budget)


def _attending(model: ModelSettings, budget: MemoryBudget) -> BlockSimilarity:
    """Build what compares words with regions alone."""
    temperature, sharpness = model.attention_temperature, model.lse_sharpness
    match model.similarity:
        case "imram":
            dim, steps = model.embed_dim, model.matching_steps
            return ImramSimilarity(dim, steps, temperature or 9.0, budget)
        case "maxsim":
            return MaxSimilarity(budget)
        case kind:
            way: Direction = "t2i" if kind == "scan_t2i" else "i2t"
            heat, sharp = (9.0, 6.0) if way == "t2i" else (4.0, 5.0)
            pooling = model.cosine_pooling
            return ScanSimilarity(way, temperature or heat, pooling, sharpness or sharp, budget)


def pooled_width(model: ModelSettings) -> int:
    """Return the width of a pooled vector of the settings' network."""
    if model.similarity == "dual_encoder":
        return encoder_inputs(model.encoder).width
    return WIDTH if model.similarity == "reading" else model.embed_dim


def make_learner(net: nn.Module, matching: MatchingNetwork, train: TrainSettings) -> Learner:
    """Build the learner of a network; ``matching`` is its part that scores."""
    return Learner(net, train.lr, train.clip, train.weight_decay, matching)
