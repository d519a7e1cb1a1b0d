"""The trained detector as it runs: candidates, ranking, filling up to 36 regions, export."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from now_builder.detect import boxes as geometry
from now_builder.detect.base import Page, Proposals
from now_builder.detect.model.apt import PROPOSALS, AptDetector
from now_builder.detect.model.proposals import PageMaps
from now_builder.detect.model.text_boxes import page_text
from now_builder.detect.model.text_encoder import TextEncoder
from now_builder.detect.regions.rows import DETECTOR, NMS, RELAXED, PageRegions, to_batch
from now_builder.detect.regions.sources import RegionSource
from now_builder.formats.features import REGIONS, SOURCES, FeatureBatch

_LEAST = 0.2
"""Score from which a proposal counts as a region of the page: on 201 pages of unseen real sites one
in ten of those below lay on an element, 2.6 % of those that did."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Boxes of one page that may become rows, in detector input px, by index of their source."""

    boxes: Float[Tensor, "n 4"]
    scores: Float[Tensor, " n"]
    origin: Int64[Tensor, " n"]


class AptExtractor:
    """Extract 36 regions a page with a trained detector, which is set to evaluation mode."""

    def __init__(
        self,
        model: AptDetector,
        encoder: TextEncoder,
        attributes: Mapping[str, str],
        source: RegionSource | None = None,
        proposals: int = PROPOSALS,
    ) -> None:
        self.model = model.eval()
        self.encoder = encoder
        self.source = source
        self._kind = SOURCES.index(source.kind) if source else DETECTOR
        self.attributes: Mapping[str, str] = dict(attributes)
        self._limit = proposals

    @property
    def input_size(self) -> tuple[int, int]:
        """Width and height, in px, of the screenshots that :meth:`extract` takes."""
        return self.model.config.input_size

    @torch.inference_mode()
    def extract(
        self, pages: Sequence[Page], screenshots: UInt8[Tensor, "pages 3 height width"]
    ) -> FeatureBatch:
        """Find and embed 36 regions a page.

        Regions are ranked by the geometric mean of class probability and the source's score, after
        class-agnostic suppression at 0.5, which is relaxed until 36 are left; where there are too
        few candidates, windows of a grid follow. Proposals with a score below 0.2 fill a page up,
        as relaxed ones do, but are none of its ``n_regions``. Features are those of the candidates;
        boxes of the model's own proposals are regressed, as in bottom-up attention and RegionCLIP,
        those of other sources stay as they are and come before the model's own.
        """
        device, size = self.model.centre.device, self.model.config.input_size
        screenshots = screenshots.to(device)
        maps = self.model.maps(screenshots)
        candidates = self._candidates(pages, screenshots, maps)
        pooled = self.model.pool(maps, [page.boxes for page in candidates]).float()
        windows = geometry.windows(size).to(device)
        ranked, kept = zip(*self._rank(candidates, pooled, pages), strict=True)
        missing = [windows[: REGIONS - len(page.scores)] for page in ranked]
        filled = self.model.pool(maps, missing).float() if any(map(len, missing)) else pooled
        counts = [len(page) for page in missing]
        fill = torch.split(self.model.projection(filled[: sum(counts)]), counts)
        rows = [page.fill(*more) for page, *more in zip(ranked, missing, fill, strict=True)]
        seen = [torch.cat(boxes) for boxes in zip(kept, missing, strict=True)]
        regions = self.model.export(torch.cat([page.embedded for page in rows]), screenshots, seen)
        return to_batch(pages, rows, regions.reshape(len(rows), REGIONS, -1), size, self._kind)

    def _candidates(
        self, pages: Sequence[Page], screenshots: UInt8[Tensor, "n 3 h w"], maps: PageMaps
    ) -> list[Candidates]:
        """Return the boxes of the source, and after too few of them the model's own proposals."""
        own = self.model.propose(maps, self._limit)
        if self.source is None:
            return [_candidates((page, DETECTOR)) for page in own]
        found = self.source.propose(pages, screenshots, self.model.config.input_size)
        return [
            _candidates(
                (_first(page, self._limit), self._kind),
                (_first(more, self._limit - len(page.boxes)), DETECTOR),
            )
            for page, more in zip(found, own, strict=True)
        ]

    def _rank(
        self,
        candidates: Sequence[Candidates],
        pooled: Float[Tensor, "all outputs"],
        pages: Sequence[Page],
    ) -> list[tuple[PageRegions, Tensor]]:
        counts = [len(page.boxes) for page in candidates]
        size = self.model.config.input_size
        embedded = self.model.projection(pooled)
        text = page_text(self.encoder, pages, [page.boxes for page in candidates], size)
        seen = torch.cat([page.boxes for page in candidates])
        origin = torch.cat([page.origin for page in candidates])
        probabilities = self.model.classify(embedded, text, seen).softmax(dim=1)[:, :-1]
        best, classes = probabilities.max(dim=1)
        regressed = geometry.decode(self.model.regression(pooled), seen)
        everything = (
            torch.where((origin == DETECTOR)[:, None], geometry.clip(regressed, size), seen),
            (best * torch.cat([page.scores for page in candidates])).sqrt(),
            classes,
            embedded,
            seen,
            origin,
        )
        return [
            _select(*page)
            for page in zip(*(torch.split(values, counts) for values in everything), strict=True)
        ]


def _first(found: Proposals, count: int) -> Proposals:
    """Return the best boxes, at least as many as make up a page."""
    count = max(count, REGIONS)
    return Proposals(found.boxes[:count], found.scores[:count])


def _candidates(*found: tuple[Proposals, int]) -> Candidates:
    return Candidates(
        torch.cat([page.boxes for page, _ in found]),
        torch.cat([page.scores for page, _ in found]),
        torch.cat([
            torch.full((len(page.boxes),), origin, device=page.boxes.device)
            for page, origin in found
        ]),
    )  # fmt: skip


def _select(
    boxes: Tensor, scores: Tensor, classes: Tensor, embedded: Tensor, seen: Tensor, origin: Tensor
) -> tuple[PageRegions, Tensor]:
    """Return the rows of a page, and the boxes whose pixels were embedded."""
    priority = scores + (origin != DETECTOR)
    kept, strict = geometry.select(boxes, priority, REGIONS, NMS)
    sure = strict & ((origin[kept] != DETECTOR) | (scores[kept] >= _LEAST))
    source = torch.where(sure, origin[kept], RELAXED)
    rows = PageRegions(boxes[kept], scores[kept], classes[kept], embedded[kept], source)
    return rows, seen[kept]
