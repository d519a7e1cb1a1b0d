"""Rank the pairs of a release by how likely they are mismatched, without a training run."""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from leaderboard.core.rounds import round_of
from now_builder.errors import ConfigError, FormatError, TrainingError
from now_builder.formats.io import check_output, write_text
from now_builder.formats.reader import open_release
from now_builder.formats.release import data_folder, is_ours, read_pairs, read_split_captions
from now_builder.formats.split import Split, registrable_domain
from pc2_baseline.config import DataSettings
from pc2_baseline.data.pairs import PairSet, cut, open_split
from pc2_baseline.data.readers import tracks_of
from pc2_baseline.data.release_reader import ReleaseReader
from pc2_baseline.methods.ridge import Problem, fit_lsa
from pc2_baseline.modules.division import THRESHOLD, assign_folds, clean_posterior
from pc2_baseline.modules.reading import (
    Reading,
    centre_and_scale,
    fit_reading,
    guess_scale,
    mean_regions,
    with_texts,
)
from pc2_baseline.modules.seeds import stream
from pc2_baseline.networks.fused import unit
from pc2_baseline.progress import bar

COLUMNS = [
    "key", "url", "split", "pair_index", "clean_prob", "loss", "caption", "better_key",
    "better_caption", "lemon",
]  # fmt: skip
_FOLDS, _SEED, _DRAW = 5, 0, 7
_PENALTIES = np.geomspace(0.1, 1000.0, 13)
_TEMPERATURE = 0.1
_DRAWN = 1024
"""Number of captions that every pair's own caption is compared with for its loss."""
_LISTED = 8
"""Number of nearest captions among which a better one is looked for."""
_LARGE = 10_000
"""Minimum number of training pairs for LSA vectors of width 256 in place of 64."""
_NEIGHBOURS, _WEIGHT, _DECAY, _TRUST = 30, 5.0, 0.1, 5.0
"""LEMoN's hyperparameters (k, beta = gamma, tau 1, tau 2) that are the same for all data sets."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Outcome of ``rank-pairs``; ``suspects`` have a clean probability below one half."""

    output: str
    pairs: int
    suspects: int
    folds_by: str

    def __str__(self) -> str:
        """Return one line for the terminal."""
        return (
            f"{self.output}: {self.pairs} pairs, {self.suspects} of them with a clean probability "
            f"below {THRESHOLD}; {_FOLDS} folds by {self.folds_by}"
        )


@dataclass(frozen=True)
class _Regions:
    """Cosines of captions' sketches with pages' sketches, where a detector read words."""

    reading: Reading
    splits: Sequence[PairSet]
    sketches: Float[Tensor, "pairs 36 256"]

    def of_each(self, rows: Int[Tensor, "pairs each"]) -> Float[Tensor, "pairs each"]:
        """Compare each pair's page with captions of its own."""
        parts = torch.split(rows, [*map(len, self.splits)])
        scores = self.reading.sketch_scores_of
        return torch.cat([scores(split, self.sketches, part)
                          for split, part in zip(self.splits, parts, strict=True)])  # fmt: skip

    def of_all(self, rows: Int[np.ndarray, " some"]) -> Float[Tensor, "pairs some"]:
        """Compare each pair's page with the same captions."""
        sketches, scores = self.sketches[rows], self.reading.sketch_scores
        return torch.cat([scores(split, sketches).float() for split in self.splits])


def rank_pairs(release: Path | str, output: Path | str, track: str | None = None) -> Ranking:
    """Write all pairs of a release as a CSV of :data:`COLUMNS`, the likeliest mismatch first.

    Captions are predicted from pages by the ridge formula (:class:`Problem`). Pairs are in folds
    that share no domain (no page if domains are too large) and never a caption; a fit to the other
    folds judges each pair. Only the penalty with the lowest mean loss and the scale of the first
    guess come from all pairs. The loss is InfoNCE against drawn captions, in nats; a mixture over
    the losses gives the probabilities. The split of a blind round is left out.

    Raises:
        ConfigError: If ``output`` is no ``.csv`` or a folder, or the release has no such track.
        FormatError: If the release cannot be read.
        TrainingError: If there are too few different pages or captions.
    """
    release, output = Path(release), Path(output)
    check_output(output, ".csv")
    data_folder(release)
    tracks = tracks_of(release)
    track = track or ("bert" if "bert" in tracks else tracks[0])
    if track not in tracks:
        raise ConfigError(f"{release}: no track {track}, expected --track {', '.join(tracks)}")
    names = [name for name in open_release(release).splits if round_of(release, name) is None]
    data = DataSettings(tokenizer=track, memory_gb=2.0, allow_zero_rows=True)
    reader = ReleaseReader(release, data)
    with ExitStack() as stack:
        splits = [
            stack.enter_context(open_split(reader, name, torch.device("cpu"))) for name in names
        ]
        table = _pairs(reader, names)
        captions = [caption for split in splits for caption in split.captions]
        fold, folds_by = _folds(release, table, captions)
        # Captions with the same tokens in another order have the same vectors.
        sorted_ids = [np.sort(caption).tobytes() for caption in captions]
        number = torch.from_numpy(np.unique(sorted_ids, return_inverse=True)[1])
        problem, regions = _problem(splits, reader.vocabulary.idx, fold)
        drawn = stream(_SEED, len(table), _DRAW).permutation(len(table))[:_DRAWN]
        near = regions.of_all(drawn) if regions else torch.zeros(1, 1)
        same = number[:, None] == number[drawn]
        losses = {
            penalty: info_nce_of_pairs(problem, penalty, drawn, same, near)
            for penalty in bar(_PENALTIES.tolist(), "penalties", len(_PENALTIES), "fit")
        }
        penalty = min(losses, key=lambda one: float(losses[one].mean()))
        better = nearest_better(problem, penalty, regions, number)
    table["loss"] = losses[penalty]
    for column in ("key", "caption"):
        table[f"better_{column}"] = np.where(better < 0, "", table[column].to_numpy()[better])
    table["lemon"] = lemon_scores(problem.predict(penalty), unit(problem.captions))
    table["clean_prob"] = clean_posterior(losses[penalty], _SEED, one_variance=True)
    table = table.sort_values("loss", ascending=False, kind="stable")
    table["clean_prob"] = table["clean_prob"].cummax()  # monotone but for rounding
    write_text(output, table[COLUMNS].to_csv(index=False))
    suspects = int((table.clean_prob < THRESHOLD).sum())
    return Ranking(str(output), len(table), suspects, folds_by)


def _pairs(reader: ReleaseReader, names: Sequence[Split]) -> pd.DataFrame:
    """Return the pairs in the order of their captions; the authors' archive has no URLs."""
    release, track = reader.release, reader.data.tokenizer
    keys = {name: pd.Series(read_split_captions(release, name, track).keys) for name in names}
    table = pd.concat(keys, names=["split", "pair_index"]).reset_index(name="key")
    if not is_ours(release):
        texts = [text.strip() for name in names for text in reader.texts(name)]
        return table.assign(url="", site="", caption=texts)
    columns = [*table.columns, "url", "site", "caption"]
    about = pd.DataFrame([asdict(pair) for pair in read_pairs(release)])[columns]
    table = table.merge(about, "left", [*table.columns])
    if missing := table.key[table.url.isna()].tolist():
        problem = f"no row of {missing[0]}, which has a caption"
        raise FormatError(release / "pairs.parquet", problem)
    return table


def _folds(
    release: Path, table: pd.DataFrame, captions: Sequence[np.ndarray]
) -> tuple[Int[np.ndarray, " pairs"], str]:
    """Assign folds by domain, or by page if a fold would have over twice its share of pairs."""
    domains = pd.factorize(table.site.map(registrable_domain))[0]
    for groups, name in ((domains, "domain"), (np.arange(len(table)), "page")):
        with suppress(TrainingError):
            fold = assign_folds(groups, captions, _FOLDS, _SEED)
            if name == "page" or np.bincount(fold).max() <= 2 * len(table) / _FOLDS:
                return fold, name
    raise TrainingError(
        f"{release}: {len(table)} pairs, expected at least {2 * _FOLDS} that share no caption"
    )


def _problem(
    splits: Sequence[PairSet], vocabulary: int, fold: Int[np.ndarray, " pairs"]
) -> tuple[Problem, _Regions | None]:
    """Prepare mean regions and LSA vectors; with letters if the detector has read words."""
    pages, train = torch.cat([mean_regions(split) for split in splits]), splits[0]
    mean, scale = centre_and_scale(pages)
    pages = (pages - mean) / scale
    lsa = fit_lsa(train.captions, vocabulary, 64 if len(train) < _LARGE else 256, _SEED)
    captions = torch.cat([lsa.vectors(split.captions) for split in splits])
    nothing = torch.zeros_like(captions)
    if train.words is None:
        return Problem(pages, captions, fold, nothing, nothing[:, 0]), None
    splits = [with_texts(split) for split in splits]
    reading = fit_reading(splits[0])
    letters = torch.cat([reading.caption_vectors(split) for split in splits])
    read = torch.cat([reading.page_vectors(split) for split in splits])
    captions = torch.cat([letters, unit(captions)], 1)
    read = torch.cat([read * guess_scale(read, letters), nothing], 1)
    sketches = torch.cat([reading.caption_sketches(split) for split in splits])
    regions = _Regions(reading, splits, sketches)
    nearest = regions.of_each(torch.arange(len(pages))[:, None])[:, 0]
    return Problem(pages, captions, fold, read, nearest), regions


def info_nce_of_pairs(
    problem: Problem,
    penalty: float,
    drawn: Int[np.ndarray, " drawn"],
    same: Bool[Tensor, "pairs drawn"],
    near: Float[Tensor, "rows columns"],
) -> Float[np.ndarray, " pairs"]:
    """Return the loss of each pair against drawn captions; ``same`` marks its own caption."""
    predicted, captions = problem.predict(penalty), unit(problem.captions)
    positive = (predicted * captions).sum(1) + problem.nearest
    others = predicted.float() @ captions[drawn].float().T + near
    others.masked_fill_(same, -torch.inf)
    against = torch.logsumexp(others.div_(_TEMPERATURE), 1).double()
    loss = torch.logaddexp(positive / _TEMPERATURE, against).sub(positive / _TEMPERATURE)
    return np.asarray(loss.numpy())


def nearest_better(
    problem: Problem, penalty: float, regions: _Regions | None, number: Int[Tensor, " pairs"]
) -> Int[np.ndarray, " pairs"]:
    """Return the pair whose caption fits each page best, and better than its own; -1 if none does.

    The fit alone lists candidates; regions are compared with these.
    """
    predicted, captions = problem.predict(penalty), unit(problem.captions)
    positive = (predicted * captions).sum(1) + problem.nearest
    cosines, rows = _nearest(predicted, captions, number, _LISTED)
    score = cosines + regions.of_each(rows) if regions else cosines
    score, place = score.max(1)
    nearest = rows.gather(1, place[:, None])[:, 0]
    return torch.where(score > positive + 1e-5, nearest, -1).numpy()  # more than rounding


def _nearest(
    queries: Float[Tensor, "pairs dim"],
    keys: Float[Tensor, "pairs dim"],
    group: Int[Tensor, " pairs"],
    count: int,
) -> tuple[Float[Tensor, "pairs count"], Int[Tensor, "pairs count"]]:
    """Return cosines and rows of the keys nearest to each query, without keys of its group."""
    queries, keys, tops = queries.float(), keys.float(), []
    blocks = cut(np.arange(len(keys)), 256)
    for block in bar(blocks, "neighbours", len(blocks)):
        cosines = queries[block] @ keys.T
        cosines.masked_fill_(group[block][:, None] == group, -torch.inf)
        tops.append(cosines.topk(min(count, len(keys) - 1)))
    values, rows = (torch.cat(part) for part in zip(*tops, strict=True))
    return values.double(), rows


def lemon_scores(
    images: Float[Tensor, "pairs dim"], captions: Float[Tensor, "pairs dim"]
) -> Float[np.ndarray, " pairs"]:
    r"""Score pairs by their multimodal neighbours; high means mismatched.

    The score is :math:`d(x, y) + \beta s_n + \gamma s_m`, with :math:`d` one less the cosine.
    :math:`s_n` is the mean over the nearest images :math:`x_i` of
    :math:`d(y, y_i) e^{-\tau_1 d(x, x_i) - \tau_2 d(x_i, y_i)}`: their captions are far from this
    one, most of all those of near images that match their own captions. :math:`s_m` is the same
    over the nearest captions, with the distances of their images.

    Args:
        images: Unit vectors in the space of captions; here those that ridge regression predicts.
        captions: Unit vectors.

    Source:
        LEMoN (Zhang et al., ICML 2025), with its fixed hyperparameters.

    Differs:
        Their vectors are CLIP's. Here all pairs are neighbours of each other, without a
        validation set.
    """
    distance = 1 - (images * captions).sum(1)
    score, rows = distance.clone(), torch.arange(len(distance))
    for space, other in ((images, captions), (captions, images)):
        cosines, neighbours = _nearest(space, space, rows, _NEIGHBOURS)
        weight = torch.exp(_DECAY * (cosines - 1) - _TRUST * distance[neighbours])
        for block in cut(rows.numpy(), 256):
            far = 1 - torch.einsum("pd,pnd->pn", other[block], other[neighbours[block]])
            score[block] += _WEIGHT * (weight[block] * far).mean(1)
    return np.asarray(score.numpy())
