"""Run by torchrun: a command, a similarity block whole and split, then whole trainings.

Usage: ``two_ranks.py FILE ARGUMENT…``: FILE is a JSON list of release, run folder, preset and
overrides; the arguments are those of ``pc2-baseline``, which joins the ranks.
Exits with an error unless scores, gradients of inputs and parameters, and running statistics of the
block, in float64, agree to 1e-12 on every rank.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from pc2_baseline import cli
from pc2_baseline.config import read_settings
from pc2_baseline.networks.attention import ImramSimilarity, MaxSimilarity, ScanSimilarity
from pc2_baseline.networks.encoders import CaptionCodes, ImageCodes
from pc2_baseline.networks.fused import unit
from pc2_baseline.networks.pooled import CosineSimilarity
from pc2_baseline.networks.saf import SafSimilarity
from pc2_baseline.networks.sgr import SgrSimilarity
from pc2_baseline.networks.similarity import MemoryBudget
from pc2_baseline.process_groups import ALONE, join_process_groups
from pc2_baseline.runs.train import train


def outcome(make, group, captions_given):
    torch.manual_seed(0)
    similarity = make().double()
    similarity.group = group
    lengths = torch.tensor([7, 2, 30, 1, 12][:captions_given])
    there = torch.arange(30)[None, :, None] < lengths[:, None, None]
    regions, words = unit(torch.randn(6, 36, 24).double()), unit(torch.randn(5, 30, 24).double())
    inputs = [regions, unit(torch.randn(6, 24).double()), words[:captions_given],
              unit(torch.randn(5, 24).double())[:captions_given]]  # fmt: skip
    for value in inputs:
        value.requires_grad_()
    images = ImageCodes(inputs[0], inputs[1])
    captions = CaptionCodes(inputs[2] * there, inputs[3], lengths)
    scores = similarity(images, captions)
    (scores * torch.arange(6.0 * captions_given).view(6, captions_given)).sum().backward()
    group.sum_gradients(similarity.parameters())
    leaves = (*inputs, *similarity.parameters())
    gradients = [value.grad for value in leaves if value.grad is not None]
    return [scores.detach(), *gradients, *similarity.buffers()]


def compare_blocks():
    (group,) = join_process_groups(1).groups
    for name, make in (
        ("sgr", lambda: SgrSimilarity(24, 10, 3)),
        ("saf", lambda: SafSimilarity(24, 10)),
        ("scan", lambda: ScanSimilarity("i2t", 4.0, 5.0)),
        ("imram", lambda: ImramSimilarity(24, 3, 9.0)),
        ("maxsim", MaxSimilarity),
        ("vsrn", CosineSimilarity),
        ("recomputed", lambda: SgrSimilarity(24, 10, 3, MemoryBudget(keep_mb=0))),
    ):
        for captions in (5, 1):
            alone, split = (outcome(make, own, captions) for own in (ALONE, group))
            for whole, part in zip(alone, split, strict=True):
                worst = (whole - part).abs().max().item()
                assert worst <= 1e-12 * max(1.0, whole.abs().max().item()), (name, captions, worst)
    sys.stdout.write(f"rank {dist.get_rank()} agrees\n")


def main():
    jobs = json.loads(Path(sys.argv.pop(1)).read_text())
    try:
        cli.main()
    except SystemExit as ended:
        if ended.code:
            raise
    compare_blocks()
    for release, run, preset, overrides in jobs:
        train(Path(release), Path(run), read_settings(preset, overrides))
    dist.destroy_process_group()


main()
