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

    tokenizer: str = Field("jieba", description="Track of NoW: jieba, bpe, bert or your own.")
    name: Literal[NowName, PrecompName] = Field(
        "now100k_precomp", description="Layout: NoW (two names), Flickr30K, MS-COCO or CC152K."
    )
    vocab_path: Path | None = Field(
        None, description="Vocabulary or folder; default: the release's."
    )
    max_tokens: PositiveInt | None = Field(None, description="Maximum content tokens of a caption.")
    allow_zero_rows: bool = Field(default=False, description="Accept regions of zeros.")
    sentences: bool = Field(
        default=True, description="Split captions into sentences, except NoW's; needs punkt_tab."
    )
    dev_images: Annotated[int, Field(ge=0)] = Field(
        1000, description="Number of dev images of Flickr30K, MS-COCO and CC152K to use; 0: all."
    )
    noise_file: Path | None = Field(
        None, description="A .npy file with the image of each training caption (`make-noise`)."
    )
    captures: Path | None = Field(None, description="Captures folder, for screenshots.")
    bank: NonNegativeInt = Field(
        0,
        description="Number of random training pairs for the hub correction when a finished run is "
        "scored, which lowers pages and captions that are near to many of them; 0: none, as on dev "
        "in training.",
    )
    memory_gb: PositiveFloat = Field(
        12.0, description="Maximum GiB of regions or screenshots in memory; else read by batch."
    )
    device_gb: PositiveFloat = Field(24.0, description="Maximum GiB of regions to keep on the GPU.")
    truth: Path | None = Field(
        None,
        description="CSV or Parquet with key or url, and matched, to evaluate each epoch's "
        "division; captions that data.noise_file moved never match. Only method.matched_only and "
        "mscn train on it.",
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
        has_parts: Whether its encoders return regions and words, not only one vector each.
    """

    has_parts: ClassVar[bool] = False

    similarity: str = Field(
        "sgr",
        description="Network: SGRAF's graph reasoning (sgr) or attention filtration (saf); SCAN, "
        "words attending to regions (scan_t2i) or regions to words (scan_i2t); IMRAM; each word "
        "with its nearest region and each region with its nearest word (maxsim); VSRN; "
        "the cosine of one vector per page and per caption (pooled), hundreds of times faster; the "
        "words read on the page against the caption's letters, with a learned correction "
        "(reading), for features of a detector that reads, such as tiny-web; or the screenshot "
        "against the caption's text by model.encoder (dual_encoder), for data.captures.",
    )

    @property
    def product_width(self) -> int:
        """Width of an embedding."""
        return 2048

    @classmethod
    def read_by(cls, tree: Any) -> type[Strict]:
        """Return the class of the network that a section names; default: SGR's."""
        if cls is not ModelSettings:
            return cls
        name = str(tree.get("similarity", "sgr")) if isinstance(tree, Mapping) else "sgr"
        return network_settings(name)

    @property
    def pooled_width(self) -> int:
        """Width of a pooled vector of the network."""
        return self.product_width

    def precision_of_division(self, device: str) -> Literal["fp32", "bf16"] | None:
        """Return the precision of a division on this machine; ``None``: there is no choice."""
        del device
        return None

    def build(self, features: int, vocabulary: int, words: Any, group: Any) -> Any:
        """Build the network with random weights.

        Args:
            features: Width of a region.
            vocabulary: Number of tokens.
            words: Words of the data, for a network that reads.
            group: Ranks that train it.
        """
        del words, group
        return self.network(features, vocabulary)

    def network(self, features: int, vocabulary: int) -> Any:
        """Build a network that needs no words and no group."""
        raise NotImplementedError


class DualEncoderSettings(ModelSettings):
    """Settings of a dual encoder of transformers on pixels and texts, and of its data."""

    encoder: str = Field(
        "google/siglip2-base-patch16-224",
        description="Dual encoder of transformers to start from (CLIP, SigLIP, SigLIP 2, AltCLIP, "
        "Chinese-CLIP …): name on the Hugging Face hub, or folder.",
    )
    lora_rank: NonNegativeInt = Field(
        0, description="Rank of LoRA adapters, which alone are trained then; 0: none."
    )
    chunk: NonNegativeInt = Field(
        0, description="Pairs to encode at once: less memory, a third slower; 0: the whole batch."
    )
    precision: Literal["fp32", "bf16"] = Field("fp32", description="Precision of the towers.")


def network_settings(name: str) -> type[ModelSettings]:
    """Return the class of the settings of a network."""
    if name not in NETWORKS:
        names = ", ".join(NETWORKS)
        raise ValueError(f"similarity to be one of {names}{nearest(name, NETWORKS)}")
    settings: type[ModelSettings] = resolve_name(f"pc2_baseline.networks.{NETWORKS[name]}")
    return settings


ModelSection = Annotated[
    SerializeAsAny[ModelSettings], BeforeValidator(partial(read_section, ModelSettings))
]
"""Type of the field in the settings of a run."""


class TrainSettings(Strict):
    """Epochs, optimiser, selection and outputs of a run."""

    batch: Annotated[int, Field(ge=2)] = Field(128, description="Maximum pairs in a batch.")
    warmup_epochs: PositiveInt = Field(10, description="Epochs on all pairs with mean negatives.")
    epochs: Annotated[int, Field(ge=0)] = Field(50, description="Epochs after the warm-up.")
    lr: PositiveFloat = Field(2e-4, description="Adam's learning rate.")
    lr_drop_epoch: PositiveInt = Field(
        30, description="Epochs after the warm-up at the full learning rate, before a tenth of it."
    )
    clip: PositiveFloat = Field(2.0, description="Maximum gradient norm.")
    weight_decay: NonNegativeFloat = Field(0.0, description="Weight decay of AdamW.")
    patience: Annotated[int, Field(ge=0)] = Field(
        0, description="Epochs after the warm-up without a better dev rSum until a stop; 0: never."
    )
    select_from_epoch: Annotated[int, Field(ge=0)] = Field(
        0, description="First epoch after the warm-up to select from; 0: all, warm-up included."
    )
    judge_warmup: bool = Field(
        default=True,
        description="Score dev and divide the pairs after each warm-up epoch; false: score dev "
        "after the last one only, and divide only for the method, which gives the same weights "
        "sooner but fewer epochs to select from.",
    )
    seed: Annotated[int, Field(ge=0, lt=2**31)] = Field(0, description="Seed of every random draw.")
    device: str = Field("auto", description="Device: cpu, cuda, cuda:1 …; auto: CUDA if there is.")
    tf32: bool = Field(
        default=False,
        description="Use TF32 (ten bits) for float32 products of encoders and GRUs on a GPU, "
        "several times as fast; model.precision sets the similarity's.",
    )
    tensorboard: bool = Field(default=True, description="Write figures to RUN/tensorboard.")
    pictures: bool = Field(default=True, description="Draw RUN/curves.png and RUN/pictures.")

    @property
    def total_epochs(self) -> int:
        """Epochs of the warm-up and after it."""
        return self.warmup_epochs + self.epochs

    def evaluates(self, epoch: int, last: int = 1) -> bool:
        """Return whether an epoch is evaluated; the ``last`` ones of the warm-up always are."""
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
        """Clean probability above which the method calls a pair clean."""
        return float(getattr(self.method, "division_threshold", 0.5))

    @property
    def division_scale(self) -> Literal["linear", "log"]:
        """Scale of the statistic that the method's mixture is fitted to."""
        scale: Literal["linear", "log"] = getattr(self.method, "division_scale", "linear")
        return scale

    @model_validator(mode="after")
    def _check_network(self) -> "Settings":
        if not self.model.has_parts:
            has = f'model.similarity = "{self.model.similarity}" has one vector each'
            if self.method.name == "pc2-released":
                raise ValueError(f"method pc2-released needs regions and words, but {has}")
            class_input = getattr(self.method, "class_input", "pooled")
            if class_input != "pooled":
                raise ValueError(
                    f'method.class_input = "{class_input}" needs regions and words, but {has}; '
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
    def _check_captures(self) -> "Settings":
        if self.data.captures and self.model.similarity != "dual_encoder":
            raise ValueError(
                'data.captures: expected model.similarity = "dual_encoder" (--config clip), '
                f'not "{self.model.similarity}"'
            )
        return self


class Plan(Strict):
    """Sizes and random draws of ``pc2-baseline plant``."""

    train: PositiveInt = Field(480, description="Training pairs.")
    dev: PositiveInt = Field(96, description="Dev pairs, all matched.")
    test: PositiveInt = Field(96, description="Test pairs, all matched.")
    mismatch: Share = Field(0.4, description="Share of training pairs with shuffled captions.")
    topics: PositiveInt = Field(8, description="Number of topics; each page has one.")
    details: Annotated[int, Field(ge=0, lt=36)] = Field(
        3, description="Number of details of a page."
    )
    vocabulary: NonNegativeInt = Field(12, description="Number of details to draw from.")
    words: PositiveInt = Field(1, description="Number of words for each topic and detail.")
    tokens: PositiveInt = Field(8, description="Maximum number of words of a caption.")
    clutter: Share = Field(0.0, description="Share of random concepts in the remaining places.")
    noise: NonNegativeFloat = Field(0.5, description="Deviation of region noise (pictures: 1).")
    seed: NonNegativeInt = Field(0, description="Seed of every random draw.")

    @property
    def concepts(self) -> int:
        """Number of topics and details, each with its own picture."""
        return self.topics + self.vocabulary

    @model_validator(mode="after")
    def _fits(self) -> "Plan":
        if self.details > self.vocabulary:
            raise ValueError(
                f"details {self.details}, expected vocabulary = {self.vocabulary} at most"
            )
        if self.tokens <= self.details:
            raise ValueError(
                f"tokens {self.tokens}, expected {self.details + 1} or more: "
                "a caption names its page's topic and every detail"
            )
        return self


class ZeroShotSettings(Strict):
    """Settings of ``pc2-baseline zero-shot``."""

    captures: Path = Field(description="Captures folder of the release, for its screenshots.")
    model: str = Field(
        description="sentence-transformers model for images and texts (CLIP, SigLIP, Jina, "
        "Qwen3-VL-Embedding …), also with many vectors (ColPali, ColQwen2 …): name on the Hugging "
        "Face hub, or folder."
    )
    split: Literal["dev", "test"] = Field("test", description="dev or test.")
    track: str = Field("jieba", description="Tokenizer of the board; scores do not depend on it.")
    squeeze: bool = Field(
        default=False, description="Squeeze screenshots into squares; CLIP crops them otherwise."
    )
    batch_size: PositiveInt = Field(32, description="Number of screenshots or captions per batch.")
    device: str = Field("auto", description="Device: auto, cpu, cuda or cuda:N.")
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32", description="Precision of the model."
    )


def presets() -> dict[str, str]:
    """Return the names and first comment lines of the package's presets."""
    return {
        file.stem: file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        for file in sorted(_PRESETS.glob("*.toml"), key=lambda file: file.stem)
    }


def sections_of(config: str) -> dict[str, str]:
    """Return the sections of a preset or file for ``--on``, each with its comment."""
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

    A file may begin with ``extends = "a preset"`` and then has only the differences. Differences
    for a data set are below ``[on.NAME]``; those sections are inherited, too. If the method or the
    network changes, settings that both have are kept.

    Args:
        config: Name of a preset or path of a TOML file; ``None`` is :data:`DEFAULT_PRESET`.
        overrides: ``section.key=value`` each.
        on: Name of a section ``[on.NAME]``; ``None`` and ``now``: no section.

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
    """Change the method or the network of a tree if ``values`` name one; keep common settings."""
    choices: dict[str, tuple[str, type[Strict]]] = {
        "method": ("name", MethodSettings), "model": ("similarity", ModelSettings),
    }  # fmt: skip
    key, base = choices.get(section, ("", Strict))
    before, chosen = tree.get(section), values.get(key) if isinstance(values, dict) else None
    if chosen is None or not isinstance(before, dict) or before.get(key) == chosen:
        return tree
    try:
        fields = base.read_by({key: chosen}).model_fields
    except ValueError:  # unknown class: an error when the tree is validated
        fields = {}
    kept = {name: value for name, value in before.items() if name in fields}
    return {**tree, section: {**kept, key: chosen}}


def _tree(name: str, on: str | None) -> dict[str, Any]:
    """Read a preset or file: the preset that it extends, its values, then those of a section."""
    file = read_toml(path_of(name))
    base = _tree(file["extends"], on) if _extends(name, file) else {}
    section = _on(name, file).get(on or "", {})
    values = {key: value for key, value in file.items() if key not in {"extends", "on"}}
    return _merge(_merge(base, values), section)


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
