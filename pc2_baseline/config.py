"""Settings of a training: four strict sections, read from TOML or a preset by name."""

from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from now_builder.config import Strict, build, read_toml, with_overrides
from now_builder.errors import ConfigError
from now_builder.formats.benchmarks import NowName, PrecompName

DEFAULT_PRESET = "pc2-paper"

Share = Annotated[float, Field(ge=0, le=1)]


class DataSettings(Strict):
    """What is read from the release."""

    tokenizer: str = Field(
        "jieba", description="Track of NoW: jieba, bpe, bert or one brought along."
    )
    name: NowName | PrecompName = Field(
        "now100k_precomp",
        description="Layout: NoW, both of whose published names mean the same, or Flickr30K, "
        "MS-COCO or CC152K as the field stores them.",
    )
    vocab_path: Path | None = Field(
        None, description="Vocabulary file, or a folder of them; default: the release's own."
    )
    max_tokens: PositiveInt | None = Field(
        None, description="Keep this many content tokens of a caption; default: all of them."
    )
    allow_zero_rows: bool = Field(
        default=False, description="Take regions whose features are all zero instead of refusing."
    )
    sentences: bool = Field(
        default=True,
        description="Split captions of Flickr30K, MS-COCO and CC152K into sentences before words, "
        "as the field does; needs NLTK's punkt_tab.",
    )
    dev_images: Annotated[int, Field(ge=0)] = Field(
        1000,
        description="Images of dev used of Flickr30K, MS-COCO and CC152K, from the front; 0: all.",
    )
    noise_file: Path | None = Field(
        None, description="A .npy file with the image of each training caption; read, never made."
    )
    memory_gb: PositiveFloat = Field(
        12.0,
        description="Hold a split's regions in memory up to this size, else read by the batch.",
    )
    device_gb: PositiveFloat = Field(
        24.0, description="Hold a split's regions on the GPU up to this size."
    )
    hold: Literal["as_stored", "fp16"] = Field(
        "as_stored", description="How regions are held; fp16 halves what float32 takes."
    )
    truth: Path | None = Field(
        None,
        description="CSV or Parquet with key or url, and matched: each epoch's division is judged "
        "by it. It never influences the training.",
    )


class ModelSettings(Strict):
    """The matching network: encoders and SGR or SAF."""

    embed_dim: PositiveInt = Field(2048, description="Width of regions and words.")
    word_dim: PositiveInt = Field(300, description="Width of a token's embedding.")
    similarity: Literal["sgr", "saf"] = Field(
        "sgr", description="Similarity graph reasoning, or attention filtration."
    )
    similarity_dim: PositiveInt = Field(256, description="Width of a similarity node.")
    graph_layers: PositiveInt = Field(3, description="Layers of SGR's graph reasoning.")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.4, description="In the word embedding and both attention poolings."
    )
    feature_dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="Of the numbers of the regions' features, in training."
    )
    word_dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="Of whole words, in training."
    )
    precision: Literal["fp32", "bf16"] = Field(
        "fp32",
        description="Of the similarity's large products; norms, softmaxes and losses stay in fp32.",
    )
    chunk_mb: PositiveInt | None = Field(
        None,
        description="Largest tensor in MiB; more is done in chunks. Default: 8 on a CPU (near what "
        "its caches hold), 512 on a GPU.",
    )
    keep_mb: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="MiB of a block that are kept for the backward pass; above it, chunks are "
        "computed twice. Default: 512 on a CPU, 4096 on a GPU.",
    )


class TripletSettings(Strict):
    """What methods that learn by triplets share."""

    margin: PositiveFloat = Field(0.2, description="Triplet margin, in units of similarity.")
    mean_epochs: Annotated[int, Field(ge=0)] = Field(
        0, description="Epochs after the warm-up that go on with mean negatives; then hardest."
    )


class Pc2Settings(TripletSettings):
    """PC2 (Duan et al., ACM MM 2024)."""

    name: Literal["pc2"] = "pc2"
    margin_base: Annotated[float, Field(gt=1)] = Field(
        10.0, description="Base m of the soft margin."
    )
    pseudo_classes: bool = Field(
        default=True, description="Learn pseudo-classes (P-Cls); without, search by embedding."
    )
    classes: Annotated[int, Field(ge=2)] = Field(128, description="Pseudo-classes K.")
    class_input: Literal["slots", "padded", "pooled"] = Field(
        "slots",
        description="What is classified: 36 vectors in their order (slots), the same with a "
        "caption's padding resampled too (padded), or the attention-pooled vector.",
    )
    class_hidden: PositiveInt = Field(256, description="Hidden width of the pseudo-classifier.")
    entropy: Literal["batch_mean", "each_image"] = Field(
        "batch_mean",
        description="Entropy to raise: of the batch's mean prediction, or of each image's own.",
    )
    relative_targets: bool = Field(
        default=False,
        description="Choose a caption's pseudo-class against the mean of its batch.",
    )
    division_batch: Annotated[int, Field(ge=2)] = Field(
        128, description="Pairs against which a pair's loss is taken to divide them, at most."
    )
    division_order: Literal["fixed", "shuffled"] = Field(
        "fixed", description="Batches of the dividing pass: one order a run, or anew each epoch."
    )
    rectify: bool = Field(default=True, description="Rectify clean margins by oscillation (CR).")
    oscillation_threshold: Share = Field(
        0.5, description="Tau: stable posterior from which a clean pair is rectified."
    )
    stable: Literal["from_threshold", "divided"] = Field(
        "from_threshold",
        description="Stable pairs: posterior at least tau, or divided as clean pairs are.",
    )
    bank: Literal["each_epoch", "released"] = Field(
        "each_epoch",
        description="Who writes the prediction bank: the dividing pass, by pair; or the training "
        "passes as in the released code, after the warm-up by position in a subset.",
    )
    divergence: Literal["old_new", "new_old"] = Field(
        "old_new", description="Direction of the oscillation's Kullback-Leibler divergence."
    )
    pseudo_captions: bool = Field(
        default=True, description="Train on noisy pairs' pseudo-captions (P-Cap)."
    )
    search_by: Literal["prediction", "embedding"] = Field(
        "prediction",
        description="A pseudo-caption's clean image is the one with the likest pseudo-class "
        "prediction, or pooled embedding.",
    )
    search_in: Literal["batch", "clean_set"] = Field(
        "batch", description="Where: in the clean batch, or among the bank's clean pairs."
    )
    noisy_from_epoch: Annotated[int, Field(ge=0)] = Field(
        0, description="First epoch after the warm-up that trains on noisy pairs."
    )
    mismatch_threshold: Share = Field(
        0.0, description="Noisy pairs below this cosine are left out (PC2*: 0.5); 0: none."
    )
    zero_below: Share = Field(
        0.0, description="Noisy pairs below this cosine get margin 0, and go on acting; 0: none."
    )
    repeated_negatives: bool = Field(
        default=False,
        description="Noisy images with one pseudo-caption are negatives all the same.",
    )
    pseudo_caption_fit: Literal["exact", "resampled"] = Field(
        "exact",
        description="Words of a pseudo-caption: as encoded, or resampled to the noisy batch.",
    )
    margin_axis: Literal["query", "broadcast"] = Field(
        "query",
        description="Margin of a hinge: the query's; or broadcast along one axis both ways, clean "
        "pairs along images and noisy ones along captions.",
    )
    margin_gradient: bool = Field(
        default=False, description="Let the gradient through the noisy margins."
    )
    steps: Literal["summed", "two"] = Field(
        "summed", description="One step down the summed loss, or one clean and one noisy step."
    )
    fresh_optimiser: bool = Field(
        default=False, description="Start the optimiser anew after the warm-up."
    )
    lambda_noisy: NonNegativeFloat = Field(1.0, description="Weight of the noisy pairs' loss.")
    lambda_pseudo: NonNegativeFloat = Field(1.0, description="Weight of the pseudo-class loss.")
    lambda_entropy: NonNegativeFloat = Field(
        10.0, description="Weight of the entropy that spreads predictions over the classes."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> "Pc2Settings":
        if not self.pseudo_classes and self.rectify:
            raise ValueError("rectify needs pseudo_classes: predictions are what oscillates")
        by_prediction = self.search_by == "prediction" or self.search_in == "clean_set"
        if not self.pseudo_classes and self.pseudo_captions and by_prediction:
            raise ValueError(
                'pseudo_captions without pseudo_classes need search_by = "embedding" and '
                'search_in = "batch"'
            )
        if self.search_by == "embedding" and self.search_in == "clean_set":
            raise ValueError('search_by = "embedding" needs search_in = "batch"')
        if self.search_in == "clean_set" and self.pseudo_caption_fit == "resampled":
            raise ValueError('pseudo_caption_fit = "resampled" needs search_in = "batch"')
        if self.search_in == "clean_set" and self.bank == "released":
            raise ValueError('search_in = "clean_set" needs bank = "each_epoch"')
        return self


class SgrSettings(TripletSettings):
    """SGR (Diao et al., AAAI 2021): every pair is taken as matched."""

    name: Literal["sgr"] = "sgr"


class TrainSettings(Strict):
    """The life of a run."""

    batch: Annotated[int, Field(ge=2)] = Field(128, description="Pairs in a batch, at most.")
    warmup_epochs: PositiveInt = Field(10, description="First epochs: mean negatives, all pairs.")
    epochs: Annotated[int, Field(ge=0)] = Field(50, description="Epochs after the warm-up.")
    lr: PositiveFloat = Field(2e-4, description="Adam's learning rate.")
    lr_drop_epoch: PositiveInt = Field(
        30, description="Epochs after the warm-up at full rate; then a tenth of it."
    )
    clip: PositiveFloat = Field(2.0, description="Largest gradient norm.")
    weight_decay: NonNegativeFloat = Field(
        0.0, description="Of AdamW: keeps a small training set from being learned by heart."
    )
    patience: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Stop after so many epochs past the warm-up with no better dev rSum; 0: not.",
    )
    select_from_epoch: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Epochs after the warm-up before the best one is chosen, and chosen only from "
        "the later ones; 0: from all, the warm-up's too.",
    )
    seed: Annotated[int, Field(ge=0, lt=2**31)] = Field(0, description="Of every random draw.")
    device: str = Field("auto", description="cpu, cuda, cuda:1 …; auto takes CUDA where it is.")
    deterministic: bool = Field(
        default=True, description="Use only algorithms that repeat bit for bit on a device."
    )
    tensorboard: bool = Field(
        default=True, description="Write RUN/tensorboard: recalls, figures, rates by epoch."
    )
    pictures: bool = Field(
        default=True, description="Draw RUN/curves.png and each epoch's division in RUN/pictures."
    )


class Settings(Strict):
    """All settings of a run."""

    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    method: Annotated[Pc2Settings | SgrSettings, Field(discriminator="name")] = Pc2Settings()
    train: TrainSettings = TrainSettings()


class Plan(Strict):
    """What ``pc2-baseline plant`` plants."""

    train: PositiveInt = Field(480, description="Training pairs.")
    dev: PositiveInt = Field(96, description="Pairs to select by, all matched.")
    test: PositiveInt = Field(96, description="Pairs to report on, all matched.")
    mismatch: Share = Field(
        0.4, description="Share of training pairs whose captions are shuffled among them."
    )
    topics: PositiveInt = Field(8, description="Topics; a page has one.")
    details: Annotated[int, Field(ge=0, lt=36)] = Field(3, description="Details of a page.")
    vocabulary: NonNegativeInt = Field(12, description="Details that a page's are drawn from.")
    words: PositiveInt = Field(1, description="Words for each topic and each detail.")
    tokens: PositiveInt = Field(8, description="Longest caption, in words.")
    topical: Share = Field(
        0.3, description="Share of a page's further regions and words that are for its topic."
    )
    clutter: Share = Field(
        0.0, description="Share of the further ones that are for any topic or detail at all."
    )
    noise: NonNegativeFloat = Field(
        0.5, description="Standard deviation of the regions' noise; the pictures' is 1."
    )
    seed: NonNegativeInt = Field(0, description="Of every random draw.")

    @property
    def concepts(self) -> int:
        """Topics and details that there are, each with a picture of its own."""
        return self.topics + self.vocabulary

    @model_validator(mode="after")
    def _fits(self) -> "Plan":
        if self.details > self.vocabulary:
            raise ValueError(f"details of a page {self.details}, of {self.vocabulary} at most")
        if self.tokens <= self.details:
            raise ValueError(
                f"tokens {self.tokens}, expected {self.details + 1} or more: "
                "a caption names its page's topic and every detail"
            )
        return self


def presets() -> dict[str, str]:
    """List the presets that come with the package: name and first line of comment."""
    found = {}
    for file in resources.files("pc2_baseline").joinpath("configs").iterdir():
        if file.name.endswith(".toml"):
            first = file.read_text(encoding="utf-8").partition("\n")[0]
            found[file.name.removesuffix(".toml")] = first.lstrip("# ")
    return dict(sorted(found.items()))


def read_settings(config: str | None, overrides: list[str]) -> Settings:
    """Read a preset or a TOML file, and change single values.

    Either may begin with ``extends = "a preset"`` and then says only what differs from it.

    Args:
        config: Name of a preset or path of a TOML file; ``None`` is :data:`DEFAULT_PRESET`.
        overrides: ``section.key=value`` each.

    Raises:
        ConfigError: If there is no such preset or file, or a setting is unknown or out of range.
    """
    return build_settings(*read_tree(config, overrides))


def build_settings(tree: dict[str, Any], origin: str) -> Settings:
    """Make settings from a tree of plain values.

    Args:
        tree: Sections of values.
        origin: Where they came from, for the message.

    Raises:
        ConfigError: Naming each setting that is unknown or out of range.
    """
    return build(Settings, tree, origin)


def with_method(tree: dict[str, Any], name: str) -> dict[str, Any]:
    """Give a tree of settings another method: of the old one's settings, those it has, too.

    Args:
        tree: Sections of values.
        name: Of the method.
    """
    methods: dict[str, type[Strict]] = {"pc2": Pc2Settings, "sgr": SgrSettings}
    known = methods[name].model_fields if name in methods else {}
    kept = {key: value for key, value in tree.get("method", {}).items() if key in known}
    return {**tree, "method": {**kept, "name": name}}


def read_tree(config: str | None, overrides: list[str]) -> tuple[dict[str, Any], str]:
    """Read a preset or a TOML file, as plain values and not yet checked; and say which.

    Args:
        config: As for :func:`read_settings`.
        overrides: ``section.key=value`` each.

    Raises:
        ConfigError: If there is no such preset or file.
    """
    name = config or DEFAULT_PRESET
    return with_overrides(_tree(name), overrides), name


def _tree(name: str) -> dict[str, Any]:
    """Read a preset or file; what it ``extends`` comes first, section by section."""
    tree = _own_tree(name)
    base = tree.pop("extends", None)
    if base is None:
        return tree
    if base not in presets() or base == name:
        raise ConfigError(f"{name}: extends {base!r}, expected one of {', '.join(presets())}")
    under = _tree(base)
    for section, values in tree.items():
        below = under.get(section)
        if isinstance(below, dict) and isinstance(values, dict):
            under[section] = {**below, **values}
        else:
            under[section] = values
    return under


def _own_tree(name: str) -> dict[str, Any]:
    if name in presets():
        with resources.as_file(
            resources.files("pc2_baseline").joinpath("configs", f"{name}.toml")
        ) as path:
            return read_toml(path)
    if not Path(name).exists():
        raise ConfigError(
            f"--config {name}: neither a file nor a preset; presets are {', '.join(presets())}"
        )
    return read_toml(Path(name))
