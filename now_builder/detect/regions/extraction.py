"""Extract 36 regions per page with a trained detector: candidates, ranking, features."""

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
"""Initial overlap (IoU) above which suppression drops the weaker of two regions."""
DETECTOR, RELAXED, GRID, DOM = map(SOURCES.index, ("detector", "relaxed", "grid", "dom"))

PROJECTION_SEED = 0
PROJECTION = f"orthonormal, seed {PROJECTION_SEED}"
"""Attribute of feature files whose regions were projected by :func:`to_768`."""
_LEAST = 0.2
"""Minimum score of a proposal that counts in ``n_regions``. On 201 pages of unseen real sites, 10 %
of the proposals below it lay on an element; these were 2.6 % of the proposals on elements."""

Candidates = tuple[Tensor, Tensor, Tensor]
"""Candidate boxes of one page in detector input px, their scores and sources."""


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
        """Append grid windows, which have neither score nor class."""
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
    origin: int,
) -> FeatureBatch:
    """Stack the rows of pages and scale boxes from a screen of ``size`` to image px.

    ``n_regions`` counts the rows whose source is ``origin``.
    """
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
        n_regions=(source == origin).sum(axis=1).astype(np.int16),
    )


@lru_cache(maxsize=4)
def orthonormal(width: int, seed: int = PROJECTION_SEED) -> Float[Tensor, "width 768"]:
    r"""Return a random projection of ``width`` numbers to 768, the same for the same seed.

    If ``width`` is above 768, its columns are orthonormal times :math:`\sqrt{width / 768}`, which
    preserves norms and inner products in expectation; if it is below, its rows are orthonormal,
    which preserves them exactly.

    Source:
        Johnson and Lindenstrauss (1984), with a random orthonormal frame as in their proof.
    """
    wide, narrow = max(width, DIMENSION), min(width, DIMENSION)
    draw = np.random.default_rng([seed, width]).standard_normal((wide, narrow))
    frame, triangle = np.linalg.qr(draw)
    # The signs of a QR decomposition depend on the library, so they are fixed here.
    frame = frame * np.where(np.diag(triangle) < 0, -1.0, 1.0)
    scaled = frame * np.sqrt(wide / DIMENSION) if width > DIMENSION else frame.T
    return torch.from_numpy(np.ascontiguousarray(scaled)).float()


def to_768(features: Float[Tensor, "n width"]) -> Float[Tensor, "n 768"]:
    """Project the pooled features of regions to 768 numbers each.

    Features that are all zero (as after a ReLU on a blank region) are replaced by a small constant.
    """
    features = features.nan_to_num()
    zero = features.abs().amax(dim=1, keepdim=True) == 0
    features = torch.where(zero, torch.full_like(features, 1e-3), features)
    width = features.shape[1]
    if width == DIMENSION:
        return features
    return features @ orthonormal(width).to(features.device)


class AptExtractor:
    """Extract 36 regions per page with a trained detector.

    Args:
        model: The detector; it is set to evaluation mode.
        encoder: Text encoder of the model.
        attributes: Attributes of the feature file.
        proposals: Maximum number of boxes per page that are embedded.
        dom: Whether to put the boxes of page elements before the proposals.
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
        """Width and height in px of the screenshots for :meth:`extract`."""
        return self.model.config.input_size

    @torch.inference_mode()
    def extract(
        self, pages: Sequence[Page], screenshots: UInt8[Tensor, "pages 3 height width"]
    ) -> FeatureBatch:
        """Find and embed 36 regions per page.

        Regions are ranked by the geometric mean of class probability and box score, after
        class-agnostic suppression at 0.5, which is relaxed until 36 remain; grid windows replace
        missing candidates. ``n_regions`` counts neither these nor relaxed ones nor proposals with a
        score below 0.2. Features are those of the candidates; boxes of proposals are regressed, as
        in bottom-up attention and RegionCLIP; boxes of page elements are kept and come first.
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
        origin = DOM if self._dom else DETECTOR
        return to_batch(pages, rows, regions.reshape(len(rows), REGIONS, -1), size, origin)

    def _candidates(self, pages: Sequence[Page], maps: PageMaps) -> list[Candidates]:
        """Return the boxes of page elements, with ``dom``, then the model's proposals."""
        proposals = self.model.propose(maps, self._limit)
        size = self.model.config.input_size
        factors = torch.tensor([size[0] / WIDTH, size[1] / HEIGHT]).repeat(2)
        candidates: list[Candidates] = []
        for page, proposed in zip(pages, proposals, strict=True):
            elements = torch.tensor(page.boxes if self._dom else [], dtype=torch.float32)
            boxes = geometry.clip(elements.reshape(-1, 4) * factors, size).to(proposed.boxes.device)
            boxes = boxes[: self._limit]
            rest = max(self._limit - len(boxes), REGIONS)
            together = torch.cat([boxes, proposed.boxes[:rest]])
            origin = torch.full((len(together),), DETECTOR, device=together.device)
            origin[: len(boxes)] = DOM
            scores = torch.cat([boxes.new_ones(len(boxes)), proposed.scores[:rest]])
            candidates.append((together, scores, origin))
        return candidates

    def _rank(
        self, candidates: Sequence[Candidates], pooled: Tensor, pages: Sequence[Page]
    ) -> list[tuple[PageRegions, Tensor]]:
        """Return the rows of each page, best first, and the boxes that were embedded."""
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
            box, score, label, vector, pooled_at = (each[page][kept] for each in values)
            ranked.append((PageRegions(box, score, label, vector, source), pooled_at))
        return ranked
