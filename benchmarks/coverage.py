"""Do 95 % intervals hold the truth 95 times in 100, and do tests of equals find 5 in 100?

A population of pairs has its ranks in one large gallery: what an image finds depends on how hard
the pair is, and so does what its caption finds, so that the directions go together. Test sets are
drawn from it; the truth is the population's. Two entries of equal skill share a part of each pair's
hardness; then one is made better to see what the tests can tell apart. At last whole test sets are
drawn anew, galleries and all: the intervals are for a given gallery, and that is more luck.

    python benchmarks/coverage.py                     # a few minutes
    python benchmarks/coverage.py --sets 200 --redrawn 50
"""

import argparse
from dataclasses import dataclass

import numpy as np

from leaderboard.core.uncertainty import bootstrap_rsum, compare, mcnemar, sign_flip, wilson
from leaderboard.metrics import CUTOFFS, Ranks, recalls

POPULATION = 100_000
GALLERY = 1000
LIKE_NOW = 2.15
NAMES = [f"{way} R@{cutoff}" for way in ("i2t", "t2i") for cutoff in CUTOFFS]


@dataclass(frozen=True, slots=True)
class Entry:
    """What one method would score on every pair of the population.

    Attributes:
        ranks: Ranks with images as queries and with captions as queries, from 0.
    """

    ranks: np.ndarray

    def hits(self) -> np.ndarray:
        """Return the six hits of each pair."""
        return np.concatenate([self.ranks < cutoff for cutoff in CUTOFFS])[[0, 2, 4, 1, 3, 5]]

    def draw(self, chosen: np.ndarray) -> tuple[Ranks, Ranks]:
        """Return the ranks of chosen pairs."""
        none, one = np.zeros(len(chosen), np.int64), np.ones(len(chosen), np.int64)
        i2t, t2i = (Ranks(way[chosen], none, none, one) for way in self.ranks)
        return i2t, t2i


def enter(draw: np.random.Generator, hardness: np.ndarray, skill: float) -> Entry:
    """Rank every pair in the gallery.

    Args:
        draw: Random numbers.
        hardness: Difficulty of each pair, standard normal, shared with other entries.
        skill: Mean similarity of own pairs, in deviations of the wrong ones.
    """
    own = 0.8 * hardness + 0.3 * draw.normal(size=len(hardness))
    both = skill + own + 0.5 * draw.normal(size=(2, len(hardness)))
    return Entry(draw.binomial(GALLERY - 1, above(both)))


def above(values: np.ndarray) -> np.ndarray:
    """Return the share of a standard normal above each value, to about 1e-4."""
    grid = np.linspace(-8, 8, 4001)
    density = np.exp(-(grid**2) / 2)
    below = np.cumsum(density) / density.sum()
    return 1 - np.interp(values, grid, below)


def exchanged(first: Entry, second: Entry) -> tuple[Entry, Entry]:
    """Add every pair a second time with the entries exchanged: now they are equal to the last."""
    ways = (first.ranks, second.ranks), (second.ranks, first.ranks)
    one, other = (np.concatenate(ranks, axis=1) for ranks in ways)
    return Entry(one), Entry(other)


def coverage(entry: Entry, n_pairs: int, sets: int, seed: int) -> dict[str, float]:
    """Return how often the interval of each recall and of rSum holds the population's value."""
    draw, hits = np.random.default_rng(seed), entry.hits()
    truth, held = 100 * hits.mean(axis=1), np.zeros(7)
    for _ in range(sets):
        chosen = draw.integers(0, POPULATION, n_pairs)
        found = hits[:, chosen]
        for place, count in enumerate(found.sum(axis=1)):
            low, high = wilson(float(count), n_pairs)
            held[place] += low <= truth[place] <= high
        interval = bootstrap_rsum(found.sum(axis=0).astype(np.float64))
        held[6] += interval.low <= truth.sum() <= interval.high
    return dict(zip([*NAMES, "rSum"], (held / sets).tolist(), strict=True))


def finds(first: Entry, second: Entry, n_pairs: int, sets: int, seed: int) -> dict[str, float]:
    """Return how often each test finds a difference at 5 %, and the interval holds the true one."""
    draw = np.random.default_rng(seed)
    hits = np.stack([first.hits(), second.hits()])
    truth = float(100 * (hits[0].mean(axis=1) - hits[1].mean(axis=1)).sum())
    found, held = np.zeros(7), 0
    for _ in range(sets):
        chosen = draw.integers(0, hits.shape[2], n_pairs)
        one, other = hits[:, :, chosen]
        for place in range(6):
            only = (one & ~other)[place].sum(), (other & ~one)[place].sum()
            found[place] += mcnemar(int(only[0]), int(only[1])) <= 0.05
        difference = (one.sum(axis=0) - other.sum(axis=0)).astype(np.float64)
        found[6] += sign_flip(difference) <= 0.05
        interval = bootstrap_rsum(difference, replicates=2000)
        held += interval.low <= truth <= interval.high
    shares = dict(zip([*NAMES, "sign-flip"], (found / sets).tolist(), strict=True))
    return {"difference": truth, **shares, "interval holds": held / sets}


def redrawn(n_pairs: int, sets: int, noise: float) -> dict[str, float]:
    """Return how often rSum's interval holds its mean over new test sets, and its width.

    Args:
        n_pairs: Pairs of a test set, queries and gallery alike.
        sets: Test sets.
        noise: Deviation of both embeddings about their common meaning.
    """
    draw = np.random.default_rng(5)
    values, ends, deviations = [], [], []
    for _ in range(sets):
        meaning = draw.normal(size=(n_pairs, 64))
        halves = [meaning + noise * draw.normal(size=meaning.shape) for _ in range(2)]
        images, captions = (half / np.linalg.norm(half, axis=1, keepdims=True) for half in halves)
        found = recalls(images @ captions.T)
        interval = bootstrap_rsum(found.per_image)
        values.append(found.rsum)
        ends.append((interval.low, interval.high))
        deviations.append(interval.deviation)
    low, high = np.array(ends).T
    truth = np.mean(values)
    return {
        "rSum": float(truth),
        "interval holds": float(((low <= truth) & (truth <= high)).mean()),
        "deviation as told": float(np.mean(deviations)),
        "deviation as it is": float(np.std(values)),
    }


def check_compare(first: Entry, second: Entry) -> None:
    """Say what ``compare`` says of one draw: the same figures as are counted here."""
    chosen = np.random.default_rng(3).integers(0, POPULATION, GALLERY)
    found = compare(first.draw(chosen), second.draw(chosen))
    print(
        f"one draw: {found.difference:+.1f} [{found.low:+.1f}, {found.high:+.1f}], p {found.p:.3f}"
    )


def show(title: str, lines: dict[str, dict[str, float]], *, percent: bool = True) -> None:
    """Print a table."""
    names = list(next(iter(lines.values())))
    print(f"\n{title}\n| | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    for label, line in lines.items():
        cells = [
            f"{100 * value:.1f} %" if percent and name != "difference" else f"{value:.1f}"
            for name, value in line.items()
        ]
        print(f"| {label} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Coverage of intervals, level and power of tests.")
    parser.add_argument("--sets", type=int, default=2000)
    parser.add_argument("--redrawn", type=int, default=300)
    parser.add_argument("--pairs", type=int, default=GALLERY)
    options = parser.parse_args()
    draw = np.random.default_rng(0)
    hardness = draw.normal(size=POPULATION)
    skills = {"weak": 0.8, "like NoW": LIKE_NOW, "strong": 4.0}
    entries = {name: enter(draw, hardness, skill) for name, skill in skills.items()}
    lines = {}
    for name, entry in entries.items():
        rsum = 100 * entry.hits().mean(axis=1).sum()
        lines[f"{name}, rSum {rsum:.0f}"] = coverage(entry, options.pairs, options.sets, 1)
    show(f"Intervals that hold the truth, of {options.sets}; nominal 95 %", lines)
    base = entries["like NoW"]
    equal = enter(draw, hardness, LIKE_NOW)
    own = enter(draw, draw.normal(size=POPULATION), LIKE_NOW)
    lines = {
        "equal skill, alike": finds(*exchanged(base, equal), options.pairs, options.sets, 2),
        "equal skill, unlike": finds(*exchanged(base, own), options.pairs, options.sets, 2),
    }
    for more in (0.02, 0.05, 0.1, 0.2):
        better = enter(draw, hardness, LIKE_NOW + more)
        lines[f"skill + {more}"] = finds(better, base, options.pairs, options.sets, 4)
    show(f"Differences found at 5 %, of {options.sets} test sets", lines)
    check_compare(entries["like NoW"], equal)
    lines = {
        f"noise {noise}": redrawn(options.pairs, options.redrawn, noise)
        for noise in (1.0, 1.7, 3.0)
    }
    for line in lines.values():
        line["interval holds"] *= 100
    show(f"Galleries drawn anew, {options.redrawn} test sets", lines, percent=False)


if __name__ == "__main__":
    main()
