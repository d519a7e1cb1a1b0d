"""What a user can set in labelling pages, in training a detector and in running it."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from now_builder.config import Strict
from now_builder.machine.distribution import DistributedSettings


class LabelSettings(Strict):
    """Settings of ``label``."""

    mapping: Path | None = Field(
        None,
        description="TOML file that changes the classes, or which role, tag or input is of which; "
        "without it the 18 of the detector.",
    )
    pages: int = Field(24, ge=0, le=1000, description="Pages shown in report.html.")
    seed: int = Field(0, ge=0, description="Changes which pages are shown.")
    settled_only: bool = Field(
        default=False, description="Leave out pages that never came to rest while captured."
    )


class TrainDetectorSettings(Strict):
    """Settings of ``train-detector``."""

    size: Literal["tiny", "paper"] = Field(
        "tiny",
        description="tiny: 2 million parameters on 360 x 640 px, an hour on a CPU; paper: "
        "CLIP-ResNet-50 on 720 x 1280 px, needs a GPU.",
    )
    from_: Path | None = Field(
        None,
        description="Weights to start from: a .safetensors of the same size and --mode, or "
        "tiny-web, which come with the package. Empty: from scratch.",
    )
    mapping: Path | None = Field(
        None,
        description="TOML file that changes the classes, or which role, tag or input is of which, "
        "as for label.",
    )
    coco: Path | None = Field(
        None,
        description="COCO file to take the labels from: of the pages of CAPTURES, or, if that is "
        "no crawl but a folder of images, of those. Without --mapping its categories are the "
        "classes.",
    )
    also: list[Path] = Field(
        default_factory=list,
        description="One more folder made by crawl, whose train pool is learned from too. May be "
        "repeated.",
    )
    epochs: int = Field(0, ge=0, description="Passes over the train pool; 0 takes the size's own.")
    steps: int = Field(0, ge=0, description="Steps in all; overrides --epochs when not 0.")
    batch_size: int = Field(0, ge=0, description="Pages in memory at once; 0 takes the size's own.")
    accumulate: int = Field(
        1, ge=1, description="Batches whose gradients are averaged before each step."
    )
    lr: float = Field(0.0, ge=0, description="Highest learning rate; 0 takes the size's own.")
    seed: int = Field(0, ge=0, description="Changes the initial weights and every draw.")
    text_encoder: str = Field(
        "",
        description="Frozen 768-d encoder of class prompts and page text: hash:SEED, a hub name or "
        "a folder. Empty: hash:0 for tiny, bert-base-multilingual-cased for paper.",
    )
    clip_weights: str = Field(
        "",
        description="CLIP RN50 to start from: a .safetensors or .pt file (OpenAI's, open_clip's) "
        "or a hub name (timm/resnet50_clip.openai). Empty: from scratch.",
    )
    mode: Literal["shift", "film", "attn"] = Field(
        "shift", description="How a region's pixels and text tune the class prompts."
    )
    text_dropout: float = Field(
        0.4, ge=0, le=1, description="Share of text boxes hidden in training, so it can do without."
    )
    zoom: float = Field(
        1.0,
        ge=1,
        le=4,
        description="In training shrink half of the pages at random by up to this factor, or "
        "magnify them by up to its root; 1: none. About 2 teaches pages made for wide screens.",
    )
    ema: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Decay of the moving average of the weights, which is what is measured and "
        "written; less in the first steps. 0: the weights themselves.",
    )
    repeat_threshold: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Pages with a class that fewer than this share of the pages have are seen more "
        "often. 0: all alike; LVIS takes 0.001.",
    )
    held_out: float = Field(
        0.1, ge=0, lt=1, description="Share of the train pool kept aside to measure on."
    )
    measure_every: int = Field(
        0,
        ge=0,
        description="Epochs between measures while training; 0: as often as an epoch, but not more "
        "than 12 times.",
    )
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N.")
    threads: int = Field(0, ge=0, description="CPU threads; 0 takes all cores.")
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32",
        description="Of the convolutions; parameters and losses stay fp32. fp16 needs CUDA.",
    )
    half: bool = Field(
        default=False,
        description="Write the weights as float16, half as large; figures are of them.",
    )
    checkpoint_every: int = Field(100, ge=1, description="Steps between checkpoints.")
    cache_mib: int = Field(
        2048, ge=0, description="Memory for decoded screenshots; beyond it they are decoded anew."
    )


class TrainWordsSettings(Strict):
    """Settings of ``train-words``."""

    from_: Path | None = Field(
        None,
        description="Weights of the detector that learns to read: a .safetensors of the size tiny, "
        "or tiny-web, which come with the package and are the default.",
    )
    steps: int = Field(12_000, ge=1, description="Steps of 16 drawn canvases of 320 x 96 px.")
    lr: float = Field(2e-3, gt=0, description="Highest learning rate.")
    seed: int = Field(0, ge=0, description="Changes the initial weights and every draw.")
    fonts: list[Path] = Field(
        default_factory=list,
        description="One more folder of fonts, besides the system's. May be repeated.",
    )
    threads: int = Field(0, ge=0, description="CPU threads; 0 takes all cores.")
    precision: Literal["fp32", "bf16"] = Field(
        "fp32", description="Of the network; parameters and losses stay fp32."
    )
    half: bool = Field(
        default=False,
        description="Write the weights as float16, half as large; figures are of them.",
    )
    checkpoint_every: int = Field(200, ge=1, description="Steps between checkpoints.")


class _SettingsOfOneMachine(Strict):
    """Settings of ``detect`` that hold for each of its machines."""

    weights: Path | None = Field(
        None,
        description="Weights made by train-detector (.safetensors, its .json beside it), or "
        "tiny-web, which come with the package and are the default; --regions detectron2: without "
        "--weights has its own.",
    )
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N.")
    batch_size: int = Field(
        0, ge=0, description="Pages at a time; 0 takes 16, on a CPU 4, or 2 of the paper's size."
    )
    half: bool = Field(default=False, description="Store features as float16: half the space.")
    threads: int = Field(0, ge=0, description="CPU threads; 0 takes all cores.")
    precision: Literal["auto", "fp32", "mixed", "bf16", "fp16"] = Field(
        "auto",
        description="What to compute in; mixed: words alone in bf16; auto: bf16 where that is "
        "quicker (GPUs that have it; CPUs that have it, at the paper's size), mixed with words on "
        "CPUs that have it, else fp32. A file holds pages of one precision.",
    )
    proposals: int = Field(
        100, ge=36, description="Proposals a page to embed, of which 36 are kept."
    )
    shards_from: str = Field(
        "",
        description="K/N: do the K-th of N shares of the shards, K from 0, so that N GPUs or "
        "machines work on one file; the last one writes it. Under torchrun: RANK/WORLD_SIZE.",
    )
    regions: str = Field(
        "proposals",
        description="Where regions come from: proposals (the detector's own), dom (the elements "
        "that the browser laid out), hf:NAME_OR_FOLDER (any object detector of transformers) or "
        "detectron2:CONFIG[@WEIGHTS] (a detectron2 model, its config a YAML file or a name in the "
        "zoo; without --weights its own regions and features). After too few, proposals follow.",
    )
    region_score: float = Field(
        0.05, ge=0, le=1, description="Least score of boxes from hf:; those below are left out."
    )
    embed: str = Field(
        "",
        description="Describe each region by the picture tower of a dual encoder of transformers "
        "(CLIP, SigLIP, SigLIP 2 …), a hub name or folder, instead of by the detector, which "
        "still finds them. 36 pictures a page: wants a GPU.",
    )
    words: bool = Field(
        default=True,
        description="Store what the detector's word reader sees, if it has one, in columns 512 to "
        "767; without, they are zero.",
    )
    text_source: Literal["dom", "ocr", "none"] = Field(
        "dom",
        description="Where strings on the page come from: its DOM, its pixels (Tesseract) or "
        "nowhere.",
    )
    ocr_languages: str = Field(
        "chi_sim+eng", description="What --text-source ocr reads, in Tesseract's names."
    )
    ocr_confidence: float = Field(
        60.0, ge=0, le=100, description="Lines of which Tesseract is less sure are left out; in %."
    )


class DetectSettings(DistributedSettings, _SettingsOfOneMachine):
    """Settings of ``detect``."""

    worker_gpus: float = Field(0.0, ge=0, description="GPUs of a Ray worker: 1, or a part of one.")
