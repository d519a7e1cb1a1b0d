"""Networks and learners of the methods, built from a run's settings."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from now_builder.formats.word_vectors import WIDTH
from pc2_baseline.config import ModelSettings, TrainSettings
from pc2_baseline.modules.learner import Learner
from pc2_baseline.networks.attention import Direction, ImramSimilarity, ScanSimilarity
from pc2_baseline.networks.cosine import CosineSimilarity
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

_TEMPERATURE: dict[Direction, float] = {"t2i": 9.0, "i2t": 4.0}
_SHARPNESS: dict[Direction, float] = {"t2i": 6.0, "i2t": 5.0}


@dataclass(frozen=True, slots=True)
class Kind:
    """What a network of a kind is made of, in the order in which its weights are drawn."""

    images: Callable[[ModelSettings, Sizes], nn.Module]
    captions: Callable[[ModelSettings, Sizes], nn.Module]
    similarity: Callable[[ModelSettings, MemoryBudget], BlockSimilarity]


def _pooled_images(model: ModelSettings, sizes: Sizes) -> ImageEncoder:
    return ImageEncoder(sizes.features, model.embed_dim, model.dropout, model.feature_dropout)


def _local_images(model: ModelSettings, sizes: Sizes) -> ImageEncoder:
    return LocalImageEncoder(sizes.features, model.embed_dim, model.dropout, model.feature_dropout)


def _region_graph(model: ModelSettings, sizes: Sizes) -> RegionGraphEncoder:
    return RegionGraphEncoder(
        sizes.features, model.embed_dim, model.graph_layers, model.feature_dropout
    )


def _one_vector(model: ModelSettings, sizes: Sizes) -> PooledImageEncoder:
    return PooledImageEncoder(
        sizes.features, model.embed_dim, model.image_pooling, model.feature_dropout
    )


def _words(encoder: type[CaptionEncoder]) -> Callable[[ModelSettings, Sizes], CaptionEncoder]:
    def make(model: ModelSettings, sizes: Sizes) -> CaptionEncoder:
        return encoder(
            sizes.vocabulary, model.word_dim, model.embed_dim, model.dropout, model.word_dropout
        )

    return make


def _one_text_vector(model: ModelSettings, sizes: Sizes) -> PooledCaptionEncoder:
    return PooledCaptionEncoder(
        sizes.vocabulary,
        model.word_dim,
        model.embed_dim,
        model.caption_encoder,
        model.dropout,
        model.word_dropout,
    )


def _read_images(model: ModelSettings, sizes: Sizes) -> ReadingImageEncoder:
    words = sizes.words or WordSides.unknown(sizes.features, sizes.vocabulary)
    return ReadingImageEncoder(sizes.features, words, model.feature_dropout)


def _read_captions(model: ModelSettings, sizes: Sizes) -> ReadingCaptionEncoder:
    words = sizes.words or WordSides.unknown(sizes.features, sizes.vocabulary)
    return ReadingCaptionEncoder(words, model.word_dropout)


def _scan(direction: Direction) -> Callable[[ModelSettings, MemoryBudget], BlockSimilarity]:
    def make(model: ModelSettings, budget: MemoryBudget) -> BlockSimilarity:
        temperature = model.attention_temperature or _TEMPERATURE[direction]
        sharpness = model.lse_sharpness or _SHARPNESS[direction]
        return ScanSimilarity(direction, temperature, model.cosine_pooling, sharpness, budget)

    return make


def _imram(model: ModelSettings, budget: MemoryBudget) -> BlockSimilarity:
    temperature = model.attention_temperature or _TEMPERATURE["t2i"]
    return ImramSimilarity(model.embed_dim, model.matching_steps, temperature, budget)


KINDS = {
    "sgr": Kind(
        _pooled_images,
        _words(CaptionEncoder),
        lambda model, budget: SgrSimilarity(
            model.embed_dim, model.similarity_dim, model.graph_layers, budget
        ),
    ),
    "saf": Kind(
        _pooled_images,
        _words(CaptionEncoder),
        lambda model, budget: SafSimilarity(model.embed_dim, model.similarity_dim, budget),
    ),
    "scan_t2i": Kind(_local_images, _words(LocalCaptionEncoder), _scan("t2i")),
    "scan_i2t": Kind(_local_images, _words(LocalCaptionEncoder), _scan("i2t")),
    "imram": Kind(_local_images, _words(LocalCaptionEncoder), _imram),
    "vsrn": Kind(_region_graph, _words(OneWayCaptionEncoder), lambda *_: CosineSimilarity()),
    "pooled": Kind(_one_vector, _one_text_vector, lambda *_: CosineSimilarity()),
    "reading": Kind(_read_images, _read_captions, lambda *_: ReadingSimilarity()),
}
"""Networks, by ``model.similarity``."""


def make_network(
    model: ModelSettings, sizes: Sizes, group: ProcessGroup = ALONE
) -> MatchingNetwork:
    """Build the network of a run's settings, freshly drawn, for the ranks that train it."""
    kind = KINDS[model.similarity]
    net = MatchingNetwork(
        kind.images(model, sizes),
        kind.captions(model, sizes),
        kind.similarity(model, MemoryBudget(None, model.keep_mb, model.precision)),
    )
    net.similarity.group = group
    return net


def pooled_width(model: ModelSettings) -> int:
    """Return the width of a pooled vector of the settings' network."""
    return WIDTH if model.similarity == "reading" else model.embed_dim


def make_learner(net: nn.Module, matching: MatchingNetwork, train: TrainSettings) -> Learner:
    """Build the learner of a network, of which ``matching`` is the part that scores."""
    return Learner(net, train.lr, train.clip, train.weight_decay, matching.similarity)
