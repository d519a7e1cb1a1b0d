"""Settings of a training: four strict sections, read from TOML or a preset by name."""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializeAsAny,
    model_validator,
)

from now_builder.config import Strict, build, nearest, read_toml, with_overrides
from now_builder.errors import ConfigError
from now_builder.formats.benchmarks import NowName, PrecompName
from pc2_baseline.method_section import (
    MethodSection,
    MethodSettings,
    Share,
    read_section,
    settings_class,
)

DEFAULT_PRESET = "pc2-paper"
_PRESETS = Path(__file__).with_name("configs")
_SECTION = re.compile(r"^\[on\.([\w-]+)\] *# *(.*)$", re.MULTILINE)


class DataSettings(Strict):
    """Data of the release to train on."""

    tokenizer: str = Field(
        "jieba", description="Track of NoW: jieba, bpe, bert or one brought along."
    )
    name: Literal[NowName, PrecompName] = Field(
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
        default=False, description="Accept regions whose features are all zero."
    )
    sentences: bool = Field(
        default=True,
        description="Split captions of Flickr30K, MS-COCO and CC152K into sentences before words, "
        "as the field does; needs NLTK's punkt_tab.",
    )
    dev_images: Annotated[int, Field(ge=0)] = Field(
        1000, description="First images of dev to use of Flickr30K, MS-COCO and CC152K; 0: all."
    )
    noise_file: Path | None = Field(
        None, description="A .npy file with the image of each training caption; read, never made."
    )
    captures: Path | None = Field(
        None,
        description="Folder made by crawl that the release was packaged from, for its screenshots.",
    )
    bank: NonNegativeInt = Field(
        0,
        description="Where a finished run scores a split, lower pages and captions that are near "
        "to many of so many training pairs, drawn at random; 0: score as they are, as dev is in "
        "training.",
    )
    memory_gb: PositiveFloat = Field(
        12.0,
        description="Hold a split's regions, or resized screenshots, in memory up to this size, "
        "else read by the batch.",
    )
    device_gb: PositiveFloat = Field(
        24.0, description="Hold a split's regions on the GPU up to this size."
    )
    truth: Path | None = Field(
        None,
        description="CSV or Parquet with key or url, and matched: each epoch's division is "
        "compared with it, and with data.noise_file, whose wrong images never match. It changes "
        "the training only with method.matched_only, and of mscn.",
    )


NETWORKS = {
    "sgr": "sgr:SgrSettings",
    "saf": "saf:SafSettings",
    "scan_t2i": "attention:ScanSettings",
    "scan_i2t": "attention:ScanSettings",
    "imram": "attention:ImramSettings",
    "maxsim": "attention:MaxSimSettings",
    "vsrn": "region_graph:VsrnSettings",
    "pooled": "pooled:PooledSettings",
    "reading": "reading:ReadingSettings",
    "dual_encoder": "dual_encoder:DualNetworkSettings",
}
"""Class of the settings of each network in :mod:`pc2_baseline.networks`, by its similarity."""


class ModelSettings(Strict):
    """Base of the settings of a network, which ``similarity`` names.

    Attributes:
        has_parts: Whether its encoders return regions and words, not one vector each alone.
    """

    has_parts: ClassVar[bool] = False

    similarity: str = Field(
        "sgr",
        description="Network: SGRAF's graph reasoning (sgr) or attention filtration (saf); SCAN, "
        "words attending to regions (scan_t2i) or regions to words (scan_i2t); IMRAM; each word "
        "with its nearest region and each region with its nearest word (maxsim); VSRN; "
        "the cosine of one vector a screenshot and one a caption (pooled), hundreds of times "
        "faster; the words read on the page against the caption's letters, with a learned "
        "correction (reading), for features of a detector that reads, such as tiny-web; or the "
        "screenshot against the caption's text by model.encoder (dual_encoder), for data.captures.",
    )

    @property
    def product_width(self) -> int:
        """Width of an embedding, where no setting says so."""
        return 2048

    @classmethod
    def read_by(cls, tree: Any) -> type[Strict]:
        """Return the settings of the network that a section names: SGR's if it names none."""
        if cls is not ModelSettings:
            return cls
        name = str(tree.get("similarity", "sgr")) if isinstance(tree, Mapping) else "sgr"
        return network_settings(name)

    @property
    def pooled_width(self) -> int:
        """Width of a pooled vector of the network."""
        return self.product_width

    def settled(self, recorded: "ModelSettings | None", device: str) -> "ModelSettings":
        """Return these settings without ``auto``: as ``recorded`` in a run, or for this machine."""
        del recorded, device
        return self

    def build(self, features: int, vocabulary: int, words: Any, group: Any) -> Any:
        """Build the network, freshly drawn.

        Args:
            features: Width of a region.
            vocabulary: Number of tokens.
            words: Words of the data, for a network that reads.
            group: Ranks that train it.
        """
        del words, group
        return self.network(features, vocabulary)

    def network(self, features: int, vocabulary: int) -> Any:
        """Build a network that needs nothing else."""
        raise NotImplementedError


class DualEncoderSettings(ModelSettings):
    """A dual encoder of transformers on pixels and texts, whose settings its data need as well."""

    encoder: str = Field(
        "google/siglip2-base-patch16-224",
        description="Dual encoder of transformers to begin with (CLIP, SigLIP, SigLIP 2, AltCLIP, "
        "Chinese-CLIP …): name on the Hugging Face hub, or folder.",
    )
    lora_rank: NonNegativeInt = Field(
        0,
        description="Train adapters of this rank (LoRA) next to the linear layers, and nothing "
        "else; 0: none.",
    )
    chunk: NonNegativeInt = Field(
        0,
        description="Encode so many of a batch at once, and again in the backward pass: the same "
        "gradients in the memory of a chunk, a third slower; 0: all.",
    )
    precision: Literal["fp32", "bf16"] = Field("fp32", description="Precision of the towers.")


def network_settings(name: str) -> type[ModelSettings]:
    """Return the class of the settings of a network."""
    if name not in NETWORKS:
        names = ", ".join(NETWORKS)
        raise ValueError(f"similarity to be one of {names}{nearest(name, NETWORKS)}")
    kind: type[ModelSettings] = resolve_name(f"pc2_baseline.networks.{NETWORKS[name]}")
    return kind


ModelSection = Annotated[
    SerializeAsAny[ModelSettings], BeforeValidator(partial(read_section, ModelSettings))
]
"""Type of the field in the settings of a run."""


class TrainSettings(Strict):
    """The life of a run."""

    batch: Annotated[int, Field(ge=2)] = Field(128, description="Maximum pairs in a batch.")
    warmup_epochs: PositiveInt = Field(10, description="First epochs: mean negatives, all pairs.")
    epochs: Annotated[int, Field(ge=0)] = Field(50, description="Epochs after the warm-up.")
    lr: PositiveFloat = Field(2e-4, description="Adam's learning rate.")
    lr_drop_epoch: PositiveInt = Field(
        30, description="Epochs after the warm-up at full rate; then a tenth of it."
    )
    clip: PositiveFloat = Field(2.0, description="Largest gradient norm.")
    weight_decay: NonNegativeFloat = Field(
        0.0, description="Weight decay of AdamW, against memorising a small training set."
    )
    patience: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Stop after this many epochs past the warm-up without a better dev rSum; "
        "0: never.",
    )
    select_from_epoch: Annotated[int, Field(ge=0)] = Field(
        0,
        description="First epoch after the warm-up from which the best one is chosen; 0: from all, "
        "those of the warm-up included.",
    )
    judge_warmup: bool = Field(
        default=True,
        description="Score dev and divide the pairs after each epoch of the warm-up. Without it, "
        "dev is scored after the last one only, and pairs are divided only for the method: the "
        "same weights, sooner, but the best epoch is chosen among fewer.",
    )
    seed: Annotated[int, Field(ge=0, lt=2**31)] = Field(0, description="Seed of every random draw.")
    device: str = Field("auto", description="cpu, cuda, cuda:1 …; auto takes CUDA where it is.")
    tf32: bool = Field(
        default=False,
        description="On a GPU, round the factors of float32 products of encoders and GRUs to "
        "TF32's ten bits: several times as fast. The similarity's are as model.precision says.",
    )
    tensorboard: bool = Field(
        default=True, description="Write RUN/tensorboard: recalls, figures, rates by epoch."
    )
    pictures: bool = Field(
        default=True, description="Draw RUN/curves.png and each epoch's division in RUN/pictures."
    )

    @property
    def total_epochs(self) -> int:
        """Epochs of the warm-up and after it."""
        return self.warmup_epochs + self.epochs

    def evaluates(self, epoch: int, last: int = 1) -> bool:
        """Return whether an epoch is judged; the ``last`` ones of the warm-up always are."""
        return self.judge_warmup or epoch >= self.warmup_epochs - last


class Settings(Strict):
    """All settings of a run."""

    data: DataSettings = DataSettings()
    model: ModelSection = Field(default_factory=lambda: network_settings("sgr")(similarity="sgr"))
    method: MethodSection = Field(default_factory=lambda: settings_class("pc2")(name="pc2"))
    train: TrainSettings = TrainSettings()

    @property
    def reads(self) -> bool:
        """Whether the method compares words read on a page with the letters of a caption."""
        return bool(getattr(self.method, "words", self.model.similarity == "reading"))

    @property
    def division_threshold(self) -> float:
        """Clean probability above which the method takes a pair for clean."""
        return float(getattr(self.method, "division_threshold", 0.5))

    @property
    def division_scale(self) -> Literal["linear", "log"]:
        """Scale of the statistic that the method's mixture is fitted to."""
        scale: Literal["linear", "log"] = getattr(self.method, "division_scale", "linear")
        return scale

    @model_validator(mode="after")
    def _network_and_data_are_what_the_method_takes(self) -> "Settings":
        if not self.model.has_parts:
            has = f'model.similarity = "{self.model.similarity}" has one vector each'
            if self.method.name == "pc2-released":
                raise ValueError(f"method pc2-released needs regions and words, but {has}")
            found = getattr(self.method, "class_input", "pooled")
            if found != "pooled":
                raise ValueError(
                    f'method.class_input = "{found}" needs regions and words, but {has}; '
                    'expected "pooled"'
                )
        if self.method.name == "mscn" and self.model.similarity not in {"sgr", "saf"}:
            raise ValueError(
                f'method mscn: model.similarity is "{self.model.similarity}", expected "sgr" or '
                '"saf", whose last layer it replaces'
            )
        if isinstance(self.model, DualEncoderSettings) and self.method.name == "ridge":
            raise ValueError("method ridge needs features, but dual_encoder sees screenshots")
        return self

    @model_validator(mode="after")
    def _screenshots_are_seen(self) -> "Settings":
        if self.data.captures and self.model.similarity != "dual_encoder":
            raise ValueError(
                'data.captures: screenshots are seen by model.similarity = "dual_encoder" alone, '
                f'as of --config clip, found "{self.model.similarity}"'
            )
        return self


class Plan(Strict):
    """Sizes and random draws of ``pc2-baseline plant``."""

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
    clutter: Share = Field(
        0.0, description="Share of the further ones that are for any topic or detail at all."
    )
    noise: NonNegativeFloat = Field(
        0.5, description="Standard deviation of the regions' noise; the pictures' is 1."
    )
    seed: NonNegativeInt = Field(0, description="Seed of every random draw.")

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


class ZeroShotSettings(Strict):
    """Settings of ``pc2-baseline zero-shot``."""

    captures: Path = Field(
        description="Folder made by crawl that the release was packaged from, for its screenshots."
    )
    model: str = Field(
        description="Model of sentence-transformers that encodes pictures and texts (CLIP, SigLIP, "
        "Jina, Qwen3-VL-Embedding …), also by many vectors (ColPali, ColQwen2 …): name on the "
        "Hugging Face hub, or folder."
    )
    split: Literal["dev", "test"] = Field("test", description="dev or test.")
    track: str = Field(
        "jieba",
        description="Tokenizer whose board the submission is for; the scores do not depend on it.",
    )
    squeeze: bool = Field(
        default=False,
        description="Resize screenshots to a square first: CLIP's own processor crops the middle "
        "square, and 280 px at the top and at the bottom are not seen.",
    )
    batch_size: PositiveInt = Field(32, description="Screenshots, or captions, at a time.")
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N.")
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32", description="Precision of the model."
    )


def presets() -> dict[str, str]:
    """List the presets that come with the package: name and first line of comment."""
    return {
        file.stem: file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        for file in sorted(_PRESETS.glob("*.toml"), key=lambda file: file.stem)
    }


def sections_of(config: str) -> dict[str, str]:
    """Return the names that ``--on`` takes with a preset or file, each with its comment."""
    path = path_of(config)
    tree = read_toml(path)
    inherited = sections_of(tree["extends"]) if _extends(config, tree) else {}
    comments = dict(_SECTION.findall(path.read_text(encoding="utf-8")))
    return {
        **dict.fromkeys(inherited, ""),
        **{name: comments.get(name, "") for name in _on(config, tree)},
    }


def read_settings(config: str | None, overrides: list[str], on: str | None = None) -> Settings:
    """Read a preset or a TOML file, and change single values.

    A file may begin with ``extends = "a preset"`` and then holds only what differs from it. What
    differs on a data set is below ``[on.NAME]``; those sections are inherited too. Where the method
    or the network is changed, settings that both have are kept.

    Args:
        config: Name of a preset or path of a TOML file; ``None`` is :data:`DEFAULT_PRESET`.
        overrides: ``section.key=value`` each.
        on: Name of a section ``[on.NAME]``; ``None`` and ``now`` take none.

    Raises:
        ConfigError: If there is no such preset, file or section, or a setting is unknown or out of
            range.
    """
    name = config or DEFAULT_PRESET
    if on not in {None, "now"} and on not in (names := ["now", *sections_of(name)]):
        raise ConfigError(
            f"--on {on}: no such section in {name}, expected one of {', '.join(names)}"
            f"{nearest(str(on), names)}"
        )
    tree = _tree(name, None if on == "now" else on)
    for section, values in with_overrides({}, overrides).items():
        tree = with_choice(tree, section, values)
    return build(Settings, with_overrides(tree, overrides), f"{name} --on {on}" if on else name)


def with_choice(tree: dict[str, Any], section: str, values: Any) -> dict[str, Any]:
    """Change the method or the network of a tree; settings that both classes have are kept.

    The tree stays as it is if the values of the section name none.
    """
    choices: dict[str, tuple[str, type[Strict]]] = {
        "method": ("name", MethodSettings), "model": ("similarity", ModelSettings),
    }  # fmt: skip
    key, kind = choices.get(section, ("", Strict))
    own, chosen = tree.get(section), values.get(key) if isinstance(values, dict) else None
    if chosen is None or not isinstance(own, dict) or own.get(key) == chosen:
        return tree
    try:
        known = kind.read_by({key: chosen}).model_fields
    except ValueError:  # no such class, which is said when the tree is read
        known = {}
    kept = {name: value for name, value in own.items() if name in known}
    return {**tree, section: {**kept, key: chosen}}


def _tree(name: str, on: str | None) -> dict[str, Any]:
    """Read a preset or file: what it extends, its own values, then those of its section."""
    own = read_toml(path_of(name))
    under = _tree(own["extends"], on) if _extends(name, own) else {}
    section = _on(name, own).get(on or "", {})
    own = {key: value for key, value in own.items() if key not in {"extends", "on"}}
    return _merge(_merge(under, own), section)


def _merge(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Lay a tree over another one, section by section."""
    merged = dict(under)
    for section, values in over.items():
        merged = with_choice(merged, section, values)
        below = merged.get(section)
        if isinstance(below, dict) and isinstance(values, dict):
            merged[section] = {**below, **values}
        else:
            merged[section] = values
    return merged


def _on(name: str, tree: dict[str, Any]) -> dict[str, dict[str, Any]]:
    sections = tree.get("on", {})
    if not isinstance(sections, dict) or not all(isinstance(v, dict) for v in sections.values()):
        raise ConfigError(f"{name}: on is {sections!r:.80}, expected sections such as [on.coco]")
    return sections


def _extends(name: str, tree: dict[str, Any]) -> bool:
    base = tree.get("extends")
    if base is not None and (base not in presets() or base == name):
        raise ConfigError(
            f"{name}: extends {base!r}, expected a preset{nearest(str(base), presets())}; "
            "`pc2-baseline train --presets` lists them"
        )
    return base is not None


def path_of(name: str, option: str = "--config") -> Path:
    """Return the file of a preset, or the path of a TOML file."""
    if name in presets():
        return _PRESETS / f"{name}.toml"
    if not Path(name).exists():
        raise ConfigError(
            f"{option} {name}: neither a file nor a preset{nearest(name, presets())}; "
            "`pc2-baseline train --presets` lists them"
        )
    return Path(name)
