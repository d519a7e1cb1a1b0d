"""Settings of the commands ``label``, ``train-detector`` and ``detect``."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from now_builder.config import Strict
from now_builder.machine.distribution import DistributedSettings


class LabelSettings(Strict):
    """Settings of ``label``."""

    mapping: Path | None = Field(
        None,
        description="TOML file that changes the classes, or the class of a role, tag or input; "
        "default: the 18 classes of the detector.",
    )


class TrainDetectorSettings(Strict):
    """Settings of ``train-detector``."""

    size: Literal["tiny", "paper"] = Field(
        "tiny",
        description="Size of the model. tiny: 2 million parameters on 360 x 640 px, an hour on a "
        "CPU; paper: CLIP-ResNet-50 on 720 x 1280 px and bert-base-multilingual-cased, needs a "
        "GPU.",
    )
    from_: Path | None = Field(
        None,
        description="Weights to start from: a .safetensors file of the same size, or tiny-web, "
        "the weights in the package; default: train from scratch.",
    )
    mapping: Path | None = Field(
        None,
        description="TOML file that changes the classes, or the class of a role, tag or input, as "
        "for label.",
    )
    also: list[Path] = Field(
        default_factory=list, description="Additional captures folder to train on (repeatable)."
    )
    steps: int = Field(0, ge=0, description="Total steps; 0: the size's default.")
    batch_size: int = Field(0, ge=0, description="Pages per step; 0: the size's default.")
    lr: float = Field(0.0, ge=0, description="Maximum learning rate; 0: the size's default.")
    clip_weights: str = Field(
        "",
        description="CLIP RN50 weights for the backbone: a .safetensors or .pt file (of OpenAI or "
        "open_clip) or a hub name (timm/resnet50_clip.openai); empty: train it from scratch.",
    )
    zoom: float = Field(
        1.0,
        ge=1,
        le=4,
        description="Maximum factor for shrinking half of the training pages at random, or for "
        "magnifying them (its square root); about 2 helps on pages for wide screens; 1: none.",
    )
    ema: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Decay of the moving average of the weights, which is then measured and "
        "written; smaller in the first steps; 0: no average.",
    )
    held_out: float = Field(
        0.1, ge=0, lt=1, description="Share of the train pool that is held out to measure on."
    )
    device: str = Field("auto", description="Device: auto, cpu, cuda or cuda:N.")
    threads: int = Field(0, ge=0, description="CPU threads; 0: all cores.")
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32",
        description="Precision of the convolutions; parameters and losses stay fp32. fp16 needs "
        "CUDA.",
    )
    half: bool = Field(
        default=False, description="Write float16 weights, half as large, and measure with them."
    )


class DetectSettings(DistributedSettings):
    """Settings of ``detect``."""

    weights: Path | None = Field(
        None,
        description="Weights made by train-detector (.safetensors, next to its .json), or "
        "tiny-web, the weights in the package, which are the default.",
    )
    device: str = Field("auto", description="Device: auto, cpu, cuda or cuda:N.")
    batch_size: int = Field(
        0, ge=0, description="Pages per batch; 0: 16; on a CPU 4, or 2 at size paper."
    )
    half: bool = Field(default=False, description="Store features as float16: half the space.")
    threads: int = Field(0, ge=0, description="CPU threads; 0: all cores.")
    precision: Literal["auto", "fp32", "mixed", "bf16", "fp16"] = Field(
        "auto",
        description="Precision. mixed: bf16 for words only. auto: on GPUs with bf16, bf16; on CPUs "
        "with bf16, bf16 at size paper and mixed for words; else fp32. A resumed file keeps its "
        "precision.",
    )
    shards_from: str = Field(
        "",
        description="Share of the shards to process, K/N with K from 0, so that N GPUs or machines "
        "work on one file; the last one writes it; default: all, under torchrun RANK/WORLD_SIZE.",
    )
    regions: str = Field(
        "proposals",
        description="Source of the regions: proposals (of the detector), dom (the elements that "
        "the browser laid out, then proposals if they are too few) or detectron2:CONFIG[@WEIGHTS] "
        "(regions and features of a detectron2 model; CONFIG is a YAML file or a name in the zoo).",
    )
    embed: str = Field(
        "",
        description="Dual encoder of transformers (CLIP, SigLIP, SigLIP 2 …), a hub name or "
        "folder, whose image tower embeds the regions instead of the detector. It encodes 36 "
        "images a page, so use a GPU.",
    )
    words: bool = Field(
        default=True,
        description="Store the words that the detector reads, if it can, in columns 512 to 767; "
        "otherwise these are zero.",
    )
    text_source: Literal["dom", "ocr", "none"] = Field(
        "dom",
        description="Source of the strings on a page: dom, ocr (Tesseract, Chinese and English) "
        "or none.",
    )
    worker_gpus: float = Field(0.0, ge=0, description="GPUs per Ray worker, such as 1 or 0.5.")
