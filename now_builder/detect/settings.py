"""Settings of labelling pages, of training a detector and of running it."""

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
        "without it the 18 of the detector.",
    )


class TrainDetectorSettings(Strict):
    """Settings of ``train-detector``."""

    size: Literal["tiny", "paper"] = Field(
        "tiny",
        description="tiny: 2 million parameters on 360 x 640 px, an hour on a CPU; paper: "
        "CLIP-ResNet-50 on 720 x 1280 px and bert-base-multilingual-cased, needs a GPU.",
    )
    from_: Path | None = Field(
        None,
        description="Weights to start from: a .safetensors of the same size, or tiny-web, which "
        "come with the package. Empty: from scratch.",
    )
    mapping: Path | None = Field(
        None,
        description="TOML file that changes the classes, or the class of a role, tag or input, as "
        "for label.",
    )
    also: list[Path] = Field(
        default_factory=list,
        description="Further folder made by crawl, whose train pool is learned from too. May be "
        "repeated.",
    )
    steps: int = Field(0, ge=0, description="Total steps; 0: the size's default.")
    batch_size: int = Field(0, ge=0, description="Pages of a step; 0: the size's default.")
    lr: float = Field(0.0, ge=0, description="Highest learning rate; 0: the size's default.")
    clip_weights: str = Field(
        "",
        description="CLIP RN50 to start from: a .safetensors or .pt file (OpenAI's, open_clip's) "
        "or a hub name (timm/resnet50_clip.openai). Empty: from scratch.",
    )
    zoom: float = Field(
        1.0,
        ge=1,
        le=4,
        description="Shrink half of the training pages at random by up to this factor, or "
        "magnify them by up to its root; 1: none. About 2 teaches pages made for wide screens.",
    )
    ema: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Decay of the moving average of the weights, which is then measured and "
        "written; less in the first steps. 0: no average.",
    )
    held_out: float = Field(0.1, ge=0, lt=1, description="Share of the train pool to measure on.")
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N.")
    threads: int = Field(0, ge=0, description="CPU threads; 0: all cores.")
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32",
        description="Precision of the convolutions; parameters and losses stay fp32. fp16 needs "
        "CUDA.",
    )
    half: bool = Field(
        default=False, description="Write the weights as float16, half as large, and measure those."
    )


class DetectSettings(DistributedSettings):
    """Settings of ``detect``."""

    weights: Path | None = Field(
        None,
        description="Weights made by train-detector (.safetensors, its .json beside it), or "
        "tiny-web, which come with the package and are the default.",
    )
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N.")
    batch_size: int = Field(
        0, ge=0, description="Pages at a time; 0: 16, on a CPU 4, or 2 of the paper's size."
    )
    half: bool = Field(default=False, description="Store features as float16: half the space.")
    threads: int = Field(0, ge=0, description="CPU threads; 0: all cores.")
    precision: Literal["auto", "fp32", "mixed", "bf16", "fp16"] = Field(
        "auto",
        description="Precision; mixed: words alone in bf16; auto: bf16 where that is "
        "quicker (GPUs that have it; CPUs that have it, at the paper's size), mixed with words on "
        "CPUs that have it, else fp32. A file keeps the precision with which it was begun.",
    )
    shards_from: str = Field(
        "",
        description="K/N: work on the K-th of N shares of the shards, K from 0, so that N GPUs or "
        "machines work on one file; the last one writes it. Under torchrun: RANK/WORLD_SIZE.",
    )
    regions: str = Field(
        "proposals",
        description="Source of the regions: proposals (the detector's own), dom (the elements "
        "that the browser laid out; after too few, proposals follow) or "
        "detectron2:CONFIG[@WEIGHTS] (regions and features of a detectron2 model, its config a "
        "YAML file or a name in the zoo).",
    )
    embed: str = Field(
        "",
        description="Describe each region by the picture tower of a dual encoder of transformers "
        "(CLIP, SigLIP, SigLIP 2 …), a hub name or folder, instead of by the detector, which "
        "still finds them. 36 pictures a page: wants a GPU.",
    )
    words: bool = Field(
        default=True,
        description="Store the words that the detector reads, if it can, in columns 512 to 767; "
        "else they are zero.",
    )
    text_source: Literal["dom", "ocr", "none"] = Field(
        "dom",
        description="Source of the strings on a page: its DOM, its pixels (Tesseract, Chinese and "
        "English) or none.",
    )
    worker_gpus: float = Field(0.0, ge=0, description="GPUs of a Ray worker: 1, or a part of one.")
