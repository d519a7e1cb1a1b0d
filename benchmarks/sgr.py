"""SGR by the plain loop over captions against the vectorised one: time, memory, difference.

Both do forward and backward on the same weights, batch and machine, each in a process of its own,
so that its peak memory is its own. Printed are the ratios.

    python benchmarks/sgr.py                       # demo size and a NoW-like size
    python benchmarks/sgr.py --size now --repeat 3
"""

import argparse
import json
import multiprocessing
import resource
import sys
import time
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pc2_baseline.modules.codes import CaptionCodes, ImageCodes
from pc2_baseline.modules.fused import unit
from pc2_baseline.modules.sgr import SgrSimilarity


@dataclass(frozen=True)
class Size:
    """What is scored: batch of images and of captions, widths, and words a caption."""

    batch: int
    dim: int
    node: int
    mean_words: float
    longest: int
    chunk_mb: int = 16
    keep_mb: int = 512
    threads: int = 1


SIZES = {
    "demo": Size(batch=32, dim=256, node=64, mean_words=18, longest=26),
    "flickr": Size(batch=32, dim=1024, node=256, mean_words=14, longest=40),
    "now": Size(batch=24, dim=1024, node=256, mean_words=54, longest=170),
}


def lengths_of(size: Size) -> list[int]:
    """Draw caption lengths: skewed, as those of web descriptions are."""
    rng = np.random.default_rng(0)
    drawn = rng.gamma(3.0, size.mean_words / 3.0, size.batch)
    return np.clip(np.round(drawn), 3, size.longest).astype(int).tolist()


def l2norm(x: Tensor, dim: int) -> Tensor:
    """Scale to length 1."""
    return x / (x.pow(2).sum(dim, keepdim=True).sqrt() + 1e-8)


def plain_loop(sgr: SgrSimilarity, images: ImageCodes, captions: CaptionCodes) -> Tensor:
    """One caption at a time against all images: what the field's code does."""
    columns = []
    for row, length in enumerate(captions.lengths.tolist()):
        word = captions.words[row, :length]
        affinity = functional.leaky_relu(images.regions @ word.T, 0.1)
        attention = torch.softmax(9.0 * l2norm(affinity, 2), 1)
        context = l2norm(attention.transpose(1, 2) @ images.regions, 2)
        local = l2norm(sgr.local((context - word) ** 2), 2)
        whole = l2norm(sgr.whole((images.pooled - captions.pooled[row]) ** 2), 1)
        nodes = torch.cat([whole[:, None], local], 1)
        for layer in sgr.layers:
            edges = torch.softmax(layer.query(nodes) @ layer.key(nodes).transpose(1, 2), -1)
            nodes = torch.relu(layer.mix(edges @ nodes))
        columns.append(torch.sigmoid(sgr.evaluate(nodes[:, 0])))
    return torch.cat(columns, 1)


def make(size: Size) -> tuple[SgrSimilarity, ImageCodes, CaptionCodes]:
    """Draw weights and encoded inputs: the same in every process."""
    torch.manual_seed(0)
    sgr = SgrSimilarity(size.dim, size.node, 3, size.chunk_mb, size.keep_mb)
    lengths = torch.tensor(lengths_of(size))
    there = torch.arange(int(lengths.max())) < lengths[:, None]
    words = unit(torch.randn(size.batch, int(lengths.max()), size.dim)) * there[..., None]
    regions = unit(torch.randn(size.batch, 36, size.dim))
    images = ImageCodes(regions.requires_grad_(), unit(torch.randn(size.batch, size.dim)))
    captions = CaptionCodes(
        words.requires_grad_(), unit(torch.randn(size.batch, size.dim)), lengths
    )
    return sgr, images, captions


def measure(name: str, size: Size, repeat: int, pipe: Connection) -> None:
    """Time one way of scoring and send the figures, its scores and gradients."""
    torch.set_num_threads(size.threads)
    sgr, images, captions = make(size)
    score = plain_loop if name == "loop" else type(sgr).__call__
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(repeat):
        images.regions.grad = captions.words.grad = None
        sgr.zero_grad()
        start = time.perf_counter(), time.process_time()
        scores = score(sgr, images, captions)
        scores.square().sum().backward()
        seconds.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    pipe.send(
        {
            "wall": min(wall for wall, _ in seconds),
            "cpu": min(cpu for _, cpu in seconds),
            "mib": peak / 1024,
            "scores": scores.detach().numpy(),
            "gradient": images.regions.grad.numpy(),
        }
    )


def compare(size: Size, repeat: int) -> dict[str, float]:
    """Run both ways and give times, memory and differences."""
    context = multiprocessing.get_context("spawn")
    found = {}
    for name in ("loop", "vectorised"):
        ours, theirs = context.Pipe()
        process = context.Process(target=measure, args=(name, size, repeat, theirs))
        process.start()
        theirs.close()
        found[name] = ours.recv()
        process.join()
    loop, ours = found["loop"], found["vectorised"]
    return {
        "loop_s": loop["wall"],
        "vectorised_s": ours["wall"],
        "times_faster": loop["wall"] / ours["wall"],
        "times_less_cpu": loop["cpu"] / ours["cpu"],
        "loop_mib": loop["mib"],
        "vectorised_mib": ours["mib"],
        "times_less_memory": loop["mib"] / max(ours["mib"], 1.0),
        "max_difference": float(np.abs(loop["scores"] - ours["scores"]).max()),
        "max_gradient_difference": float(np.abs(loop["gradient"] - ours["gradient"]).max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Plain SGR loop against the vectorised one.")
    parser.add_argument("--size", choices=[*SIZES, "all"], default="all")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--chunk-mb", type=int, default=4)
    parser.add_argument("--keep-mb", type=int, default=512)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = list(SIZES) if options.size == "all" else [options.size]
    results = {}
    for name in names:
        sys.stderr.write(f"{name}: {asdict(SIZES[name])}\n")
        changes = {key: getattr(options, key) for key in ("threads", "chunk_mb", "keep_mb")}
        results[name] = compare(replace(SIZES[name], **changes), options.repeat)
    if options.json:
        print(json.dumps(results, indent=2))
        return
    for name, figures in results.items():
        print(
            f"{name:7} forward+backward {figures['loop_s']:.2f} s -> "
            f"{figures['vectorised_s']:.2f} s ({figures['times_faster']:.2f}x, "
            f"CPU {figures['times_less_cpu']:.2f}x), peak memory {figures['loop_mib']:.0f} -> "
            f"{figures['vectorised_mib']:.0f} MiB ({figures['times_less_memory']:.1f}x less), "
            f"max difference {figures['max_difference']:.1e}"
        )


if __name__ == "__main__":
    main()
