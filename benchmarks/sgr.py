"""SGR by the plain loop over captions against the vectorised one: time, memory, difference.

Each way does forward and backward on the same weights and batch, in a process of its own, for its
peak memory. The loop is what the field's code does, in plain float32; "loop, oneDNN" has the faster
float32 products that the trainer turns on. Printed are ratios to the plain loop, too.

    python -m benchmarks.sgr                       # demo size, Flickr30K's and NoW's lengths
    python -m benchmarks.sgr --size now --device cuda --batch 128
"""

import argparse
import multiprocessing
import resource
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

import numpy as np
import torch
from torch import Tensor

from benchmarks.plain.pc2 import score_caption
from pc2_baseline.networks.encoders import CaptionCodes, ImageCodes
from pc2_baseline.networks.fused import unit
from pc2_baseline.networks.onednn_products import fast_float32
from pc2_baseline.networks.sgr import SgrSimilarity
from pc2_baseline.networks.similarity import MemoryBudget


@dataclass(frozen=True)
class Size:
    """What is scored: batch of images and of captions, widths, and words a caption."""

    batch: int
    dim: int
    node: int
    mean_words: float
    longest: int
    threads: int = 1
    device: str = "cpu"


SIZES = {
    "demo": Size(batch=32, dim=256, node=64, mean_words=18, longest=26),
    "flickr": Size(batch=64, dim=1024, node=256, mean_words=14, longest=40),
    "now": Size(batch=64, dim=1024, node=256, mean_words=54, longest=412),
}
WAYS = ("loop", "loop, oneDNN", "ours, fp32", "ours, bf16")
LAYERS = 3


def lengths_of(size: Size) -> list[int]:
    """Draw caption lengths: skewed, as those of web descriptions are."""
    rng = np.random.default_rng(0)
    drawn = rng.gamma(3.0, size.mean_words / 3.0, size.batch)
    return np.clip(np.round(drawn), 3, size.longest).astype(int).tolist()


def plain_loop(net: SgrSimilarity, images: ImageCodes, captions: CaptionCodes) -> Tensor:
    """One caption at a time against all images: what the field's code does."""
    given = zip(captions.words, captions.pooled, captions.lengths.tolist(), strict=True)
    halves = images.regions, images.pooled
    return torch.cat([score_caption(net, *halves, word[None, :length], caption[None])
                      for word, caption, length in given], 1)  # fmt: skip


def make(size: Size, way: str) -> tuple[SgrSimilarity, ImageCodes, CaptionCodes]:
    """Draw weights and encoded inputs: the same in every process."""
    torch.manual_seed(0)
    budget = MemoryBudget(precision="bf16" if way.endswith("bf16") else "fp32")
    sgr = SgrSimilarity(size.dim, size.node, LAYERS, budget)
    lengths = torch.tensor(lengths_of(size))
    there = torch.arange(int(lengths.max())) < lengths[:, None]
    words = unit(torch.randn(size.batch, int(lengths.max()), size.dim)) * there[..., None]
    regions = unit(torch.randn(size.batch, 36, size.dim))
    pooled = [unit(torch.randn(size.batch, size.dim)) for _ in range(2)]
    regions, words, *pooled = (value.to(size.device) for value in (regions, words, *pooled))
    images = ImageCodes(regions.requires_grad_(), pooled[0])
    captions = CaptionCodes(words.requires_grad_(), pooled[1], lengths)
    return sgr.to(size.device), images, captions


def measure(way: str, size: Size, repeat: int, pipe: Connection) -> None:
    """Time one way of scoring and send the figures, its scores and gradients."""
    torch.set_num_threads(size.threads)
    sgr, images, captions = make(size, way)
    score = plain_loop if way.startswith("loop") else type(sgr).__call__
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(repeat):
        images.regions.grad = captions.words.grad = None
        sgr.zero_grad()
        start = time.perf_counter()
        with nullcontext() if way == "loop" else fast_float32(size.dim):
            scores = score(sgr, images, captions)
            scores.square().sum().backward()
        if size.device != "cpu":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    if size.device == "cpu":
        peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    else:
        peak = torch.cuda.max_memory_allocated() / 2**20
    scored, gradient = scores.detach().cpu().numpy(), images.regions.grad.cpu().numpy()
    pipe.send({"wall": min(seconds), "mib": peak, "scores": scored, "gradient": gradient})


def compare(size: Size, repeat: int) -> None:
    """Run every way; print times, memory and differences."""
    context, loop = multiprocessing.get_context("spawn"), {}
    print("| way | seconds | faster | MiB | less memory | difference of scores | of gradients |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for way in WAYS:
        ours, theirs = context.Pipe()
        process = context.Process(target=measure, args=(way, size, repeat, theirs))
        process.start()
        theirs.close()
        own = ours.recv()
        process.join()
        loop = loop or own  # the first way
        apart = np.linalg.norm(loop["gradient"] - own["gradient"])
        print(
            f"| {way} | {own['wall']:.2f} | {loop['wall'] / own['wall']:.2f}x | {own['mib']:.0f} | "
            f"{loop['mib'] / max(own['mib'], 1.0):.1f}x | "
            f"{np.abs(loop['scores'] - own['scores']).max():.0e} | "
            f"{apart / np.linalg.norm(loop['gradient']):.0e} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Plain SGR loop against the vectorised one.")
    parser.add_argument("--size", choices=[*SIZES, "all"], default="all")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    for name in SIZES if options.size == "all" else [options.size]:
        size = replace(SIZES[name], threads=options.threads, device=options.device)
        size = replace(size, batch=options.batch or size.batch)
        print(f"\n{name}, batch {size.batch}, forward and backward\n")
        compare(size, options.repeat)


if __name__ == "__main__":
    main()
