"""The trained detector as it runs: candidates, ranking, 36 regions a page; features to 768."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from now_builder.detect import boxes as geometry
from now_builder.detect.base import Page
from now_builder.detect.model.apt import PROPOSALS, AptDetector
from now_builder.detect.model.proposals import PageMaps
from now_builder.detect.model.text_encoder import TextEncoder, page_text
from now_builder.formats.features import DIMENSION, REGIONS, SOURCES, FeatureBatch
from now_builder.formats.shard import HEIGHT, WIDTH

NMS = 0.5
"""Overlap (IoU) above which suppression drops the weaker of two regions at first."""
DETECTOR, RELAXED, GRID, DOM = map(SOURCES.index, ("detector", "relaxed", "grid", "dom"))

PROJECTION_SEED = 0
PROJECTION = f"orthonormal, seed {PROJECTION_SEED}"
"""Attribute of feature files whose regions went through :func:`to_768`."""
_LEAST = 0.2
"""Score from which a proposal counts as a region of the page: on 201 pages of unseen real sites one
in ten of those below lay on an element, 2.6 % of those that did."""

Candidates = tuple[Tensor, Tensor, Tensor]
"""Boxes of one page that may become rows, in detector input px, their scores and sources."""


@dataclass(frozen=True, slots=True)
class PageRegions:
    """Regions of one page."""

    boxes: Float[Tensor, "n 4"]
    scores: Float[Tensor, " n"]
    classes: Tensor
    embedded: Float[Tensor, "n 768"]
    source: Tensor

    def fill(
        self, windows: Float[Tensor, "m 4"], embedded: Float[Tensor, "m 768"]
    ) -> "PageRegions":
        """Append windows of a grid, which have neither score nor class."""
        count = len(windows)
        return PageRegions(
            torch.cat([self.boxes, windows]),
            torch.cat([self.scores, self.scores.new_zeros(count)]),
            torch.cat([self.classes, self.classes.new_full((count,), -1)]),
            torch.cat([self.embedded, embedded]),
            torch.cat([self.source, self.source.new_full((count,), GRID)]),
        )


def to_batch(
    pages: Sequence[Page],
    rows: Sequence[PageRegions],
    regions: Float[Tensor, "pages 36 768"],
    size: tuple[int, int],
    own: int,
) -> FeatureBatch:
    """Join the rows of some pages; their boxes, on a screen of ``size``, become image px."""
    factors = torch.tensor([WIDTH / size[0], HEIGHT / size[1]]).repeat(2)

    def stack(name: str) -> Tensor:
        return torch.stack([getattr(page, name) for page in rows]).cpu()

    source = stack("source").numpy().astype(np.int8)
    return FeatureBatch(
        [page.key for page in pages],
        regions=regions.float().cpu().numpy(),
        boxes=(stack("boxes").float() * factors).numpy(),
        scores=stack("scores").float().numpy(),
        classes=stack("classes").numpy().astype(np.int16),
        source=source,
        n_regions=(source == own).sum(axis=1).astype(np.int16),
    )


@lru_cache(maxsize=4)
def orthonormal(width: int, seed: int = PROJECTION_SEED) -> Float[Tensor, "width 768"]:
    r"""Return the projection of ``width`` numbers to 768: a function of width and seed alone.

    From more than 768 its columns are orthonormal times :math:`\sqrt{width / 768}`, so that norms
    and inner products keep their expected values; from fewer its rows are orthonormal and keep
    them exactly.

    Source:
        Johnson and Lindenstrauss (1984), with a random orthonormal frame as in their proof.
    """
    wide, narrow = max(width, DIMENSION), min(width, DIMENSION)
    draw = np.random.default_rng([seed, width]).standard_normal((wide, narrow))
    frame, triangle = np.linalg.qr(draw)
    # The signs of a QR decomposition are the library's choice; these are not.
    frame = frame * np.where(np.diag(triangle) < 0, -1.0, 1.0)
    scaled = frame * np.sqrt(wide / DIMENSION) if width > DIMENSION else frame.T
    return torch.from_numpy(np.ascontiguousarray(scaled)).float()


def to_768(features: Float[Tensor, "n width"]) -> Float[Tensor, "n 768"]:
    """Project the pooled features of regions to 768 numbers each, never all zero.

    Features that are all zero (as those of a blank region may be after a ReLU) are replaced by a
    small constant.
    """
    features = features.nan_to_num()
    zero = features.abs().amax(dim=1, keepdim=True) == 0
    features = torch.where(zero, torch.full_like(features, 1e-3), features)
    width = features.shape[1]
    if width == DIMENSION:
        return features
    return features @ orthonormal(width).to(features.device)


class AptExtractor:
    """Extract 36 regions a page with a trained detector, which is set to evaluation mode.

    Args:
        model: The detector.
        encoder: Encoder of the pages' strings, with which the model was trained.
        attributes: Attributes of the feature file.
        proposals: Maximum number of boxes that are embedded a page.
        dom: Whether the boxes of the page's elements come before the model's own proposals.
    """

    def __init__(
        self,
        model: AptDetector,
        encoder: TextEncoder,
        attributes: Mapping[str, str],
        proposals: int = PROPOSALS,
        *,
        dom: bool = False,
    ) -> None:
        self.model = model.eval()
        self.encoder = encoder
        self.attributes: Mapping[str, str] = dict(attributes)
        self._limit = proposals
        self._dom = dom

    @property
    def input_size(self) -> tuple[int, int]:
        """Width and height, in px, of the screenshots that :meth:`extract` takes."""
        return self.model.config.input_size

    @torch.inference_mode()
    def extract(
        self, pages: Sequence[Page], screenshots: UInt8[Tensor, "pages 3 height width"]
    ) -> FeatureBatch:
        """Find and embed 36 regions a page.

        Regions are ranked by the geometric mean of class probability and box score, after
        class-agnostic suppression at 0.5, which is relaxed until 36 are left; where there are too
        few candidates, windows of a grid follow. Proposals with a score below 0.2 fill a page up,
        as relaxed ones do, but are none of its ``n_regions``. Features are those of the candidates;
        boxes of the model's own proposals are regressed, as in bottom-up attention and RegionCLIP,
        those of page elements stay as they are and come first.
        """
        device, size = self.model.centre.device, self.model.config.input_size
        screenshots = screenshots.to(device)
        maps = self.model.maps(screenshots)
        candidates = self._candidates(pages, maps)
        pooled = self.model.pool(maps, [boxes for boxes, *_ in candidates]).float()
        windows = geometry.windows(size).to(device)
        ranked, kept = zip(*self._rank(candidates, pooled, pages), strict=True)
        missing = [windows[: REGIONS - len(page.scores)] for page in ranked]
        filled = self.model.pool(maps, missing).float() if any(map(len, missing)) else pooled
        counts = [len(page) for page in missing]
        fill = torch.split(self.model.projection(filled[: sum(counts)]), counts)
        rows = [page.fill(*more) for page, *more in zip(ranked, missing, fill, strict=True)]
        seen = [torch.cat(boxes) for boxes in zip(kept, missing, strict=True)]
        regions = self.model.export(torch.cat([page.embedded for page in rows]), screenshots, seen)
        kind = DOM if self._dom else DETECTOR
        return to_batch(pages, rows, regions.reshape(len(rows), REGIONS, -1), size, kind)

    def _candidates(self, pages: Sequence[Page], maps: PageMaps) -> list[Candidates]:
        """Return the boxes of page elements, if wanted, and after too few the model's proposals."""
        found = self.model.propose(maps, self._limit)
        size = self.model.config.input_size
        factors = torch.tensor([size[0] / WIDTH, size[1] / HEIGHT]).repeat(2)
        candidates: list[Candidates] = []
        for page, own in zip(pages, found, strict=True):
            elements = torch.tensor(page.boxes if self._dom else [], dtype=torch.float32)
            boxes = geometry.clip(elements.reshape(-1, 4) * factors, size).to(own.boxes.device)
            boxes = boxes[: self._limit]
            rest = max(self._limit - len(boxes), REGIONS)
            together = torch.cat([boxes, own.boxes[:rest]])
            origin = torch.full((len(together),), DETECTOR, device=together.device)
            origin[: len(boxes)] = DOM
            scores = torch.cat([boxes.new_ones(len(boxes)), own.scores[:rest]])
            candidates.append((together, scores, origin))
        return candidates

    def _rank(
        self, candidates: Sequence[Candidates], pooled: Tensor, pages: Sequence[Page]
    ) -> list[tuple[PageRegions, Tensor]]:
        """Return the rows of each page, best first, and the boxes whose pixels were embedded."""
        counts, size = [len(page[0]) for page in candidates], self.input_size
        text = page_text(self.encoder, pages, [page[0] for page in candidates], size)
        seen, proposed, origin = map(torch.cat, zip(*candidates, strict=True))
        embedded = self.model.projection(pooled)
        probabilities = self.model.classify(embedded, text, seen).softmax(dim=1)[:, :-1]
        best, classes = probabilities.max(dim=1)
        scores = (best * proposed).sqrt()
        regressed = geometry.clip(geometry.decode(self.model.regression(pooled), seen), size)
        boxes = torch.where((origin == DETECTOR)[:, None], regressed, seen)
        ranked, start = [], 0
        for count in counts:
            page = slice(start, start + count)
            start += count
            foreign = origin[page] != DETECTOR
            kept, strict = geometry.select(boxes[page], scores[page] + foreign, REGIONS, NMS)
            sure = strict & (foreign[kept] | (scores[page][kept] >= _LEAST))
            source = torch.where(sure, origin[page][kept], RELAXED)
            values = (boxes, scores, classes, embedded, seen)
            place, score, kind, vectors, pooled_at = (each[page][kept] for each in values)
            ranked.append((PageRegions(place, score, kind, vectors, source), pooled_at))
        return ranked
