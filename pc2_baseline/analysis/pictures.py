"""Draw the divisions of a training, and curves over its epochs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from now_builder.formats.io import atomic_write
from pc2_baseline.analysis.truth import DivisionQuality, Truth, by_peer
from pc2_baseline.modules.division import THRESHOLD, Scale, logarithms
from pc2_baseline.training.checkpoint import CheckpointState

# from the palette of Okabe and Ito, which is safe for colour-blind readers
BLUE, RED, GREEN, PINK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8C8C8C"

_STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "legend.framealpha": 0.85,
    "legend.edgecolor": "none",
    "svg.hashsalt": "pc2",  # reproducible bytes
}
_BINS = 60
_FLOOR = 5e-4  # minimum variance of the mixture, on losses scaled to [0, 1]

_COLOURS = (BLUE, RED, GREEN, PINK)
_QUALITY = ("auroc", "clean_precision", "clean_recall")

Groups = list[tuple[str, str, Bool[np.ndarray, " pairs"]]]


@contextmanager
def _figure(
    path: Path, rows: int, columns: int, width: float = 3.8
) -> Iterator[tuple[Figure, np.ndarray]]:
    """Yield an empty figure and its axes; write it on exit."""
    with mpl.rc_context(_STYLE):
        size = (width * columns, 2.7 * rows + 0.5)
        figure = Figure(figsize=size, dpi=120, layout="constrained")
        yield figure, figure.subplots(rows, columns, squeeze=False)
        ending = path.suffix[1:]
        metadata: dict[str, Any] = {"Software": None} if ending == "png" else {"Date": None}
        with atomic_write(path, durable=False) as temporary:
            figure.savefig(temporary, format=ending, metadata=metadata)


def draw_division(
    path: Path,
    division: Mapping[str, np.ndarray],
    truth: Truth | None,
    title: str,
    threshold: float = THRESHOLD,
    scale: Scale = "linear",
) -> None:
    """Draw one epoch's losses, clean probabilities and oscillations, a row for each peer.

    Peers that share a division have one row, and missing statistics have no column. A truth colours
    the pairs; a line marks the threshold of the clean probability. Losses have the scale on which
    the mixture was fitted.

    Source:
        PC2 (Duan et al., ACM MM 2024), the figure of the losses and their mixture.
    """
    peers = by_peer(division)
    linear = scale == "linear"
    labels = {
        "loss": "Loss of the pair" if linear else "log(0.1 + loss / mean loss), from the lowest",
        "clean_prob": "Clean probability",
        "oscillation": "Oscillation, log10",
    }
    columns = [name for name in labels if all(name in values for values in peers.values())]
    with _figure(path, len(peers), len(columns)) as (figure, axes):
        for row, (peer, values) in zip(axes, peers.items(), strict=True):
            groups = _groups(truth, len(values["clean_prob"]))
            at = dict(zip(columns, row, strict=True))
            if "loss" in at:
                losses = values["loss"] if linear else logarithms(values["loss"])
                _draw_losses(at["loss"], losses, values["clean_prob"], groups)
            axis, bins = at["clean_prob"], np.linspace(0, 1, _BINS // 3 + 1)
            _histogram(axis, values["clean_prob"], bins, groups, stacked=False)
            axis.axvline(threshold, color="black", linewidth=0.8, linestyle=":")
            axis.set_yscale("log")  # nearly all pairs are at either end
            axis.yaxis.set_minor_locator(NullLocator())
            axis.set_ylim(bottom=0.8)
            if "oscillation" in at:
                _draw_oscillations(at["oscillation"], values["oscillation"], groups)
            row[0].set_ylabel(f"Peer {peer}: pairs" if peer else "Pairs")
        for axis, name in zip(axes[-1], columns, strict=True):
            axis.set_xlabel(labels[name])
        figure.align_xlabels(list(axes[-1]))
        figure.suptitle(title)
        handles, _ = axes[0, columns.index("clean_prob")].get_legend_handles_labels()
        if "loss" in columns:
            handles.extend(axes[0, 0].get_lines())
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))


def _groups(truth: Truth | None, pairs: int) -> Groups:
    """Return name, colour and members of each non-empty group of pairs."""
    if truth is None:
        return [("all pairs", GREY, np.ones(pairs, dtype=bool))]
    groups = [
        ("matched", BLUE, truth.matched),
        ("mismatched", RED, truth.known & ~truth.matched),
        ("not known", GREY, ~truth.known),
    ]
    return [group for group in groups if group[2].any()]


def _histogram(
    axis: Axes,
    values: Float[np.ndarray, " pairs"],
    bins: np.ndarray,
    groups: Groups,
    *,
    stacked: bool = True,
) -> None:
    axis.hist(
        [values[members] for _, _, members in groups],
        bins=list(bins),
        color=[colour for _, colour, _ in groups],
        label=[name for name, _, _ in groups],
        stacked=stacked,
        histtype="stepfilled" if stacked else "bar",
        alpha=0.7,
    )


def _draw_losses(
    axis: Axes,
    losses: Float[np.ndarray, " pairs"],
    clean_prob: Float[np.ndarray, " pairs"],
    groups: Groups,
) -> None:
    """Draw a histogram with the two components, estimated from the posteriors (the M-step)."""
    low, high = float(losses.min()), float(losses.max())
    bins = np.linspace(low, high, _BINS + 1)
    _histogram(axis, losses, bins, groups)
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    x = np.linspace(low, high, 400)
    for name, line, share in (
        ("clean component", "-", clean_prob),
        ("noisy component", "--", 1 - clean_prob),
    ):
        weight = float(share.sum())
        if weight <= 0:
            continue
        mean = float(share @ losses) / weight
        variance = float(share @ (losses - mean) ** 2) / weight + _FLOOR * (high - low) ** 2
        density = np.exp(-((x - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
        height = weight * (bins[1] - bins[0])
        axis.plot(x, height * density, line, color="black", linewidth=1.2, label=name)


def _draw_oscillations(
    axis: Axes, oscillation: Float[np.ndarray, " pairs"], groups: Groups
) -> None:
    if np.ptp(oscillation) <= 0:
        axis.text(0.5, 0.5, "nothing to compare with yet", ha="center", transform=axis.transAxes)
        axis.set_xticks([])
        axis.set_yticks([])
        return
    logarithms = np.log10(np.maximum(oscillation, oscillation.max() * 1e-6))
    bins = np.linspace(logarithms.min(), logarithms.max(), _BINS + 1)
    _histogram(axis, logarithms, bins, groups)
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))


def draw_curves(path: Path, state: CheckpointState, pairs: int, warmup: int) -> None:
    """Draw dev rSum, losses, share of clean pairs and quality of the division by epoch."""
    names = list(dict.fromkeys(name for record in state.history for name in record.figures))
    shares = [name for name in names if re.fullmatch("clean(_[a-z])?", name)]
    dev = np.array([record.dev.get("rsum", np.nan) for record in state.history])
    panels = [
        ("Dev rSum", {"dev rSum": dev}),
        ("Loss of a batch", _curves(state, [name for name in names if name.startswith("loss")])),
        ("Share of pairs called clean", _curves(state, shares, float(pairs))),
        ("Division against the truth", _curves(state, [n for n in _QUALITY if n in names])),
    ]
    panels = [panel for panel in panels if panel[1]]
    columns = 3 if len(panels) == 3 else 2
    with _figure(path, -(-len(panels) // columns), columns) as (_, axes):
        for axis, (title, curves) in zip(axes.flat, panels, strict=True):
            _draw_curves(axis, title, curves, warmup)
        best, rsum = state.best_epoch + 1, state.best_rsum
        label = f"best: {rsum:.1f}, epoch {best}"
        axes[0, 0].plot(best, rsum, "o", color=RED, label=label)
        for axis in axes.flat:
            axis.legend(fontsize=8)


def _curves(
    state: CheckpointState, names: Sequence[str], unit: float = 1.0
) -> dict[str, Float[np.ndarray, " epochs"]]:
    """Return figures by epoch, divided by ``unit``; NaN if an epoch has none."""
    figures = [record.figures for record in state.history]
    return {
        name.replace("_", " "): np.array([epoch.get(name, np.nan) for epoch in figures]) / unit
        for name in names
    }


def _draw_curves(
    axis: Axes, title: str, curves: Mapping[str, Float[np.ndarray, " epochs"]], warmup: int
) -> None:
    for (name, values), colour in zip(curves.items(), cycle(_COLOURS), strict=False):
        epochs = np.arange(1, len(values) + 1)
        axis.plot(epochs, values, ".-", color=colour, linewidth=1.2, markersize=3, label=name)
    if 0 < warmup < len(next(iter(curves.values()))):
        axis.axvline(warmup + 0.5, color=GREY, linewidth=0.8, linestyle=":", label="warm-up ends")
    axis.set_title(title)
    axis.set_xlabel("Epoch")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def draw_quality(path: Path, epochs: Sequence[DivisionQuality], best: int, warmup: int) -> None:
    """Draw the AUROC of each statistic, matched against mismatched pairs, by epoch."""
    curves = {"clean probability": np.array([one.auroc for one in epochs])}
    for name in epochs[0].auroc_by_statistic:
        curves[name] = np.array([one.auroc_by_statistic[name] for one in epochs])
    with _figure(path, 1, 1, width=6.4) as (_, axes):
        axis = axes[0, 0]
        _draw_curves(axis, "AUROC of matched against mismatched training pairs", curves, warmup)
        label = f"selected on dev: {best + 1}"
        axis.axvline(best + 1, color="black", linewidth=1, linestyle="--", label=label)
        axis.axhline(0.5, color=GREY, linewidth=0.8)
        axis.set_ylabel("AUROC")
        axis.legend(fontsize=8)
