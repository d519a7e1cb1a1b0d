"""Rank the pairs of a release by how likely they are mismatched, without a training run."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from leaderboard.core.rounds import round_of
from now_builder.errors import ConfigError, FormatError, TrainingError
from now_builder.formats.io import check_output
from now_builder.formats.reader import open_release
from now_builder.formats.release import (
    Pair,
    data_folder,
    is_ours,
    read_split_captions,
    stream_pairs,
)
from now_builder.formats.screenshots import find_screenshots
from now_builder.formats.split import Split, registrable_domain
from now_builder.formats.tables import write_csv
from pc2_baseline.config import DataSettings, RankSettings
from pc2_baseline.data.pairs import PairSet, cut, open_split
from pc2_baseline.data.readers import tracks_of
from pc2_baseline.data.release_reader import ReleaseReader
from pc2_baseline.methods.ridge import Problem, fit_lsa
from pc2_baseline.modules.division import THRESHOLD, clean_posterior
from pc2_baseline.modules.folds import assign_folds
from pc2_baseline.modules.reading import (
    Reading,
    centre_and_scale,
    first_guess,
    fit_reading,
    mean_regions,
    with_texts,
    words_of,
)
from pc2_baseline.modules.seeds import stream
from pc2_baseline.networks.fused import unit
from pc2_baseline.progress import bar, say
from pc2_baseline.runs.zero_shot import embedded, make_encoder

_FOLDS = 5
_PENALTIES = np.geomspace(0.1, 1000.0, 13)
_TEMPERATURE = 0.1
_DRAWN = 1024
"""Captions that a pair's own is compared with for its loss, the same for all pairs."""
_LISTED = 8
"""Captions of the whole release among which the nearest better one is looked for."""
_BLOCK = 256
_ROUNDING = 1e-5
_LARGE = 10_000
"""Training pairs from which on captions have wider LSA vectors."""
_MEMORY_GB = 2.0
_SEED = 0
_DRAW = 7  # part of the stream's name


@dataclass(frozen=True, slots=True)
class RankedPair:
    """A row of ``pairs.csv``; the fields are its columns, in this order.

    Attributes:
        clean_prob: Probability that the pair matches; it falls as the loss grows.
        loss: InfoNCE of the pair's own caption among drawn ones, in nats.
        better_key: Page whose caption fits this page best, better than its own; or empty.
        better_caption: That caption.
        why: A line on a pair with a probability below one half; else empty.
        cosine: Cosine of page and caption, less the mean of all pages with all captions: of a dual
            encoder's own vectors, or of what the fit predicts.
    """

    key: str
    url: str
    split: str
    pair_index: int
    clean_prob: float
    loss: float
    caption: str
    better_key: str
    better_caption: str
    why: str
    cosine: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """Outcome of ``rank-pairs``: the file, and how many pairs have a probability below one half."""

    output: str
    pairs: int
    suspects: int
    folds_by: str
    penalty: float

    def __str__(self) -> str:
        """Return one line for the terminal."""
        return (
            f"{self.output}: {self.pairs} pairs, {self.suspects} of them with a clean probability "
            f"below {THRESHOLD}; judged in {_FOLDS} folds by {self.folds_by}"
        )


@dataclass(frozen=True)
class _Regions:
    """What the words on single regions add: the cosine of a caption with the nearest region."""

    reading: Reading
    splits: Sequence[PairSet]
    captions: Float[Tensor, "pairs 256"]

    def of_each(self, rows: Int[Tensor, "pairs each"]) -> Float[Tensor, "pairs each"]:
        """Return it for some captions of each pair, with the pair's page."""
        sizes = [len(split) for split in self.splits]
        own = zip(self.splits, rows.split_with_sizes(sizes), strict=True)
        found = [self.reading.best_regions_of(split, self.captions, some) for split, some in own]
        return torch.cat(found)

    def of_all(self, rows: Int[np.ndarray, " some"]) -> Float[Tensor, "pairs some"]:
        """Return it for some captions, the same for all pairs."""
        some = self.captions[rows]
        return torch.cat([self.reading.best_regions(split, some).float() for split in self.splits])


@dataclass(frozen=True)
class _Sides:
    """Both sides of all pairs of a release as vectors, without a look at which belong together.

    Attributes:
        pages: What each page is regressed from.
        captions: Vector of each caption.
        read: First guess at the caption's vector; zeros without one.
        regions: Set where the regions hold words.
        cosine: Cosine of each pair above the mean, where both sides have vectors of one space.
    """

    pages: Float[Tensor, "pairs features"]
    captions: Float[Tensor, "pairs dim"]
    read: Float[Tensor, "pairs dim"]
    regions: _Regions | None = None
    cosine: Float[Tensor, " pairs"] | None = None


@dataclass(frozen=True)
class _Judged:
    """Pairs judged by a fit to the other folds.

    Attributes:
        predicted: Unit vector of each page.
        own: Similarity of each page with its own caption.
        better: Share of the drawn captions that fit the page better than its own.
    """

    penalty: float
    predicted: Float[Tensor, "pairs dim"]
    own: Float[Tensor, " pairs"]
    loss: Float[np.ndarray, " pairs"]
    better: Float[np.ndarray, " pairs"]


def rank_pairs(release: Path | str, output: Path | str, settings: RankSettings) -> Ranking:
    """Write all pairs of a release as a CSV of :class:`RankedPair`, the likeliest mismatch first.

    Captions are regressed from pages by the ridge formula (:class:`Problem`), in folds that share
    no domain where that comes out even, else no page, and never a caption: each pair is judged by a
    fit to the other folds. Only two numbers come from all pairs, the penalty, which has the lowest
    mean loss, and the factor of the first guess. A mixture over the losses gives the probabilities.

    Raises:
        ConfigError: If ``output`` is no ``.csv`` or a folder, the release has no such track, or the
            dual encoder cannot be had.
        FormatError: If the release cannot be read, or the captures are another crawl's.
        TrainingError: If there are too few different pages or captions.
    """
    release, output = Path(release), Path(output)
    check_output(output, ".csv")
    data = DataSettings(
        tokenizer=_track(release, settings.track), memory_gb=_MEMORY_GB, allow_zero_rows=True
    )
    reader = ReleaseReader(release, data)
    with ExitStack() as stack:
        cpu, names = torch.device("cpu"), _splits(release)
        splits = [stack.enter_context(open_split(reader, name, cpu)) for name in names]
        captions = [caption for split in splits for caption in split.captions]
        pairs = _pairs(reader, names)
        if settings.model is None:
            sides = _of_features(splits, reader.vocabulary.idx)
        else:
            sides = stack.enter_context(_of_encoder(output, pairs, settings))
        fold, folds_by = _folds(release, pairs, captions)
        rows, penalty = _rank(sides, fold, pairs, captions)
        _write(output, rows)
    suspects = sum(row.clean_prob < THRESHOLD for row in rows)
    return Ranking(str(output), len(rows), suspects, folds_by, penalty)


def _track(release: Path, asked: str | None) -> str:
    """Return the track whose captions are read: the one asked for, bert, or the first there is."""
    data_folder(release)
    tracks = tracks_of(release)
    track = asked or ("bert" if "bert" in tracks else tracks[0])
    if track not in tracks:
        raise ConfigError(f"{release}: no track {track}, expected --track {', '.join(tracks)}")
    return track


def _splits(release: Path) -> list[Split]:
    """Return the splits whose rows are pairs: not that of a blind round."""
    names = open_release(release).splits
    blind = [name for name in names if round_of(release, name) is not None]
    if blind:
        say(f"{release}: {blind[0]} is a blind round, whose rows are no pairs: left out")
    return [name for name in names if name not in blind]


def _pairs(reader: ReleaseReader, names: Sequence[Split]) -> list[Pair]:
    """Return the pairs in the order of their captions; the authors' archive has no URLs or texts.

    Raises:
        FormatError: If ``pairs.parquet`` has other pairs than the caption files.
    """
    release, track = reader.release, reader.data.tokenizer
    keys = [(name, *own) for name in names
            for own in enumerate(read_split_captions(release, name, track).keys)]  # fmt: skip
    if not is_ours(release):
        texts = [text.strip() for name in names for text in reader.texts(name)]
        return [
            Pair(key, name, row, "", "", text, None, None, None, "")
            for (name, row, key), text in zip(keys, texts, strict=True)
        ]
    known = {(pair.split, pair.pair_index, pair.key): pair for pair in stream_pairs(release)}
    if missing := [key for name, row, key in keys if (name, row, key) not in known]:
        problem = f"no row of {missing[0]}, which has a caption"
        raise FormatError(release / "pairs.parquet", problem)
    return [known[own] for own in keys]


def _of_features(splits: Sequence[PairSet], vocabulary: int) -> _Sides:
    """Take mean regions, and the words read on them or the captions' LSA vectors."""
    pages, train = _standardised(torch.cat([mean_regions(split) for split in splits])), splits[0]
    lsa = fit_lsa(train.captions, vocabulary, 64 if len(train) < _LARGE else 256, _SEED)
    captions = torch.cat([lsa.vectors(split.captions) for split in splits])
    nothing = torch.zeros_like(captions)
    if train.words is None:
        return _Sides(pages, captions, nothing)
    splits = [with_texts(split, words_of(split).texts) for split in splits]
    reading = fit_reading(splits[0])
    letters = torch.cat([reading.caption_vectors(split) for split in splits])
    read = torch.cat([reading.page_vectors(split) for split in splits])
    captions = torch.cat([letters, unit(captions)], 1)
    read = torch.cat([read * first_guess(read, letters), nothing], 1)
    return _Sides(pages, captions, read, _Regions(reading, splits, letters))


@contextmanager
def _of_encoder(output: Path, pairs: Sequence[Pair], settings: RankSettings) -> Iterator[_Sides]:
    """Take the vectors of a dual encoder, each side less its mean; the screenshot's is the guess.

    Finished batches wait in ``OUTPUT.parts/`` until the context ends.
    """
    if settings.captures is None or settings.model is None:
        raise ConfigError("--captures and --model: expected both")
    shots = find_screenshots(settings.captures, pairs)
    encoder = make_encoder(settings.model, settings)
    with embedded(output, pairs, shots, encoder, settings) as sides:
        images, texts = (torch.from_numpy(side).double() for side in sides)
        captions = texts - texts.mean(0)
        guess = images - images.mean(0)
        read = guess * first_guess(guess, captions)
        cosine = _above_mean(images, texts)
        yield _Sides(_standardised(images), captions, read, cosine=cosine)


def _standardised(pages: Float[Tensor, "pairs features"]) -> Float[Tensor, "pairs features"]:
    mean, scale = centre_and_scale(pages)
    return (pages - mean) / scale


def _above_mean(
    pages: Float[Tensor, "pairs dim"], captions: Float[Tensor, "pairs dim"]
) -> Float[Tensor, " pairs"]:
    """Return the cosine of each pair of unit vectors, less the mean of all pages and captions."""
    return (pages * captions).sum(1) - pages.mean(0) @ captions.mean(0)


def _folds(
    release: Path, pairs: Sequence[Pair], captions: Sequence[np.ndarray]
) -> tuple[Int[np.ndarray, " pairs"], str]:
    """Return each pair's fold, and whether folds are by domain: where none has twice its share."""
    domains = np.unique([registrable_domain(pair.site) for pair in pairs], return_inverse=True)[1]
    for groups, name in ((domains, "domain"), (np.arange(len(pairs)), "page")):
        try:
            fold = assign_folds(groups, captions, _FOLDS, _SEED)
        except TrainingError:
            continue
        if name == "page" or np.bincount(fold).max() <= 2 * len(pairs) / _FOLDS:
            return fold, name
    raise TrainingError(
        f"{release}: {len(pairs)} pairs, expected at least {2 * _FOLDS} that share no caption"
    )


def _rank(
    sides: _Sides,
    fold: Int[np.ndarray, " pairs"],
    pairs: Sequence[Pair],
    captions: Sequence[np.ndarray],
) -> tuple[list[RankedPair], float]:
    """Judge all pairs; return their rows, the likeliest mismatch first, and the penalty."""
    size = len(pairs)
    # The same tokens in another order are the same caption to both ways of comparing.
    number = np.unique([np.sort(one).tobytes() for one in captions], return_inverse=True)[1]
    drawn = stream(_SEED, size, _DRAW).permutation(size)[:_DRAWN]
    own, near = torch.zeros(size, dtype=torch.float64), torch.zeros(1, 1)
    if sides.regions is not None:
        own = sides.regions.of_each(torch.arange(size)[:, None])[:, 0]
        near = sides.regions.of_all(drawn)
    problem = Problem(sides.pages, sides.captions, fold, sides.read, own)
    same = torch.from_numpy(number[:, None] == number[drawn])
    penalties = bar(_PENALTIES, "penalties", len(_PENALTIES), "fit")
    fits = (_judge(problem, float(penalty), drawn, same, near) for penalty in penalties)
    best = min(fits, key=lambda judged: float(judged.loss.mean()))  # one at a time in memory
    order = np.argsort(-best.loss, kind="stable")
    clean_prob = clean_posterior(best.loss, _SEED, one_variance=True)
    clean_prob[order] = np.maximum.accumulate(clean_prob[order])  # rounding apart, they rise
    nearest = _nearest_better(sides, best, torch.from_numpy(number))
    copies = Counter(number.tolist())
    cosine = sides.cosine
    if cosine is None:
        cosine = _above_mean(best.predicted, unit(sides.captions))
    rows = []
    for row in order:
        pair, other = pairs[row], None if nearest[row] < 0 else pairs[nearest[row]]
        why = _why(best.better[row], other, copies[number[row]])
        rows.append(RankedPair(
            pair.key, pair.url, pair.split, pair.pair_index, float(clean_prob[row]),
            float(best.loss[row]), pair.caption, other.key if other else "",
            other.caption if other else "", why if clean_prob[row] < THRESHOLD else "",
            float(cosine[row]),
        ))  # fmt: skip
    return rows, best.penalty


def _judge(
    problem: Problem,
    penalty: float,
    drawn: Int[np.ndarray, " drawn"],
    same: Bool[Tensor, "pairs drawn"],
    near: Float[Tensor, "rows columns"],
) -> _Judged:
    """Judge all pairs with one penalty, against drawn captions other than their own (``same``)."""
    predicted, captions = problem.predict(penalty), unit(problem.captions)
    own = (predicted * captions).sum(1) + problem.nearest
    others = predicted.float() @ captions[drawn].float().T + near
    others.masked_fill_(same, -torch.inf)
    better = ((others > own[:, None]).sum(1) / (~same).sum(1).clamp(min=1)).double().numpy()
    against = torch.logsumexp(others.div_(_TEMPERATURE), 1).double()
    loss = torch.logaddexp(own / _TEMPERATURE, against) - own / _TEMPERATURE
    return _Judged(penalty, predicted, own, loss.numpy(), better)


def _nearest_better(
    sides: _Sides, judged: _Judged, number: Int[Tensor, " pairs"]
) -> Int[np.ndarray, " pairs"]:
    """Return the pair whose caption fits each page best, and better than its own; -1: none.

    Captions are listed by the fit alone, and the listed ones compared with all that counts.
    """
    captions, blocks = unit(sides.captions).float(), cut(np.arange(len(number)), _BLOCK)
    listed, cosines = [], []
    for block in bar(blocks, "captions", len(blocks)):
        found = judged.predicted[block].float() @ captions.T
        found.masked_fill_(number[block][:, None] == number, -torch.inf)
        top = found.topk(min(_LISTED, len(number)))
        listed.append(top.indices)
        cosines.append(top.values)
    rows, score = torch.cat(listed), torch.cat(cosines).double()
    if sides.regions is not None:
        score += sides.regions.of_each(rows)
    score, place = score.max(1)
    nearest = rows.gather(1, place[:, None])[:, 0]
    return torch.where(score > judged.own + _ROUNDING, nearest, -1).numpy()


def _why(better: float, other: Pair | None, copies: int) -> str:
    """Say in a line what speaks against a pair."""
    parts = [f"{better:.0%} of other captions fit its page better"]
    if other is not None:
        parts.append(f"best that of {other.url or other.key}")
    if copies > 1:
        parts.append(f"{copies} pages have its caption")
    return "; ".join(parts)


def _write(output: Path, rows: Sequence[RankedPair]) -> None:
    write_csv(output, (field.name for field in fields(RankedPair)), map(astuple, rows))
