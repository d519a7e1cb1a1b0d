"""SGR by the plain loop over captions against the vectorised one: time, memory, difference.

Each way does forward and backward on the same weights, batch and machine, in a process of its own,
so that its peak memory is its own. The loop is what the field's code does, in plain float32;
"loop, oneDNN" is the same with the faster float32 products that the trainer turns on where they
are exact. Printed are seconds, memory, and ratios to the plain loop.

    python benchmarks/sgr.py                       # demo size, Flickr30K's and NoW's lengths
    python benchmarks/sgr.py --size now --threads 2 --repeat 3
    python benchmarks/sgr.py --size now --device cuda --batch 128
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
from torch.nn import functional

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


def l2norm(x: Tensor, dim: int) -> Tensor:
    """Scale to length 1."""
    return x / (x.pow(2).sum(dim, keepdim=True).sqrt() + 1e-8)


def plain_loop(net: SgrSimilarity, images: ImageCodes, captions: CaptionCodes) -> Tensor:
    """One caption at a time against all images: what the field's code does."""
    columns = []
    for row, length in enumerate(captions.lengths.tolist()):
        word = captions.words[row, :length]
        affinity = functional.leaky_relu(images.regions @ word.T, 0.1)
        attention = torch.softmax(9.0 * l2norm(affinity, 2), 1)
        context = l2norm(attention.transpose(1, 2) @ images.regions, 2)
        local = l2norm(net.local((context - word) ** 2), 2)
        whole = l2norm(net.whole((images.pooled - captions.pooled[row]) ** 2), 1)
        nodes = torch.cat([whole[:, None], local], 1)
        columns.append(torch.sigmoid(net.evaluate(reasoned(net, nodes))))
    return torch.cat(columns, 1)


def reasoned(sgr: SgrSimilarity, nodes: Tensor) -> Tensor:
    """Let nodes attend to each other, and read the global one."""
    for layer in sgr.layers:
        edges = torch.softmax(layer.query(nodes) @ layer.key(nodes).transpose(1, 2), -1)
        nodes = torch.relu(layer.mix(edges @ nodes))
    return nodes[:, 0]


def operations(size: Size) -> float:
    """Count multiplications and additions of the loop's products, forward and backward."""
    words = size.batch * sum(lengths_of(size))
    graph = 3 * size.node**2 + 2 * size.node * size.mean_words
    attention = 2 * 36 * size.dim
    return 6.0 * words * (attention + size.dim * size.node + LAYERS * graph)


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


def compare(size: Size, repeat: int) -> dict[str, dict[str, float]]:
    """Run every way and give times, memory and differences."""
    context = multiprocessing.get_context("spawn")
    found = {}
    for way in WAYS:
        ours, theirs = context.Pipe()
        process = context.Process(target=measure, args=(way, size, repeat, theirs))
        process.start()
        theirs.close()
        found[way] = ours.recv()
        process.join()
    loop = found["loop"]
    return {
        way: {
            "seconds": own["wall"],
            "mib": own["mib"],
            "times_faster": loop["wall"] / own["wall"],
            "times_less_memory": loop["mib"] / max(own["mib"], 1.0),
            "max_difference": float(np.abs(loop["scores"] - own["scores"]).max()),
            "gradient_difference": float(
                np.linalg.norm(loop["gradient"] - own["gradient"])
                / np.linalg.norm(loop["gradient"])
            ),
        }
        for way, own in found.items()
    }


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
        found = compare(size, options.repeat)
        work = operations(size)
        print(f"\n{name}, batch {size.batch}, forward and backward")
        print("| way | seconds | GFLOP/s of the loop's products | faster | MiB | less memory | "
              "largest difference | relative difference of gradients |")  # fmt: skip
        print("|---|---|---|---|---|---|---|---|")
        for way, own in found.items():
            print(
                f"| {way} | {own['seconds']:.2f} | {work / own['seconds'] / 1e9:.0f} | "
                f"{own['times_faster']:.2f}x | {own['mib']:.0f} | "
                f"{own['times_less_memory']:.1f}x | {own['max_difference']:.0e} | "
                f"{own['gradient_difference']:.0e} |"
            )


if __name__ == "__main__":
    main()
