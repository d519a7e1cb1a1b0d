"""The end of a training: the scale of the stored features, the figures, the weights on disk."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from now_builder.detect.model.apt import AptDetector
from now_builder.detect.model.weights import DetectorCard, find_weights, read_card, write_weights
from now_builder.detect.regions.extraction import AptExtractor
from now_builder.detect.training.data import Screenshots, TrainPage, TrainPages
from now_builder.detect.training.learner import Learner
from now_builder.detect.training.measure import Measures, find, measure
from now_builder.detect.training.recipe import identity
from now_builder.formats.features import REGIONS

_FITTED = 200
"""About how many pages the scale of the stored features is fitted on."""


def finish(weights: Path, learner: Learner, pages: TrainPages) -> Measures | None:
    """Fix the scale of the stored features, measure on held-out pages, and write the weights.

    Returns:
        Figures on the held-out pages; ``None`` where none has labelled elements.
    """
    model, settings = learner.model, learner.settings
    model.load_state_dict(learner.final.state_dict())
    model.eval()
    screenshots = Screenshots(model.config.input_size, 0, torch.get_num_threads())
    learned = pages.learn[:: max(1, len(pages.learn) // _FITTED)]
    fix_scale(model, learned, screenshots, settings.seed)
    if settings.half:
        model.half().float()
    names = pages.mapping.class_names
    extractor = AptExtractor(model, learner.encoder, {})
    [found] = find([extractor.extract], pages.held_out, screenshots)
    measures = measure(found, names)
    card = DetectorCard(
        model=learner.recipe.model,
        classes=list(names),
        mapping=pages.mapping,
        prompts=model.prompts.tolist(),
        text_encoder=learner.encoder.name,
        weights_sha256="",
        settings=identity(settings),
        trained_on={
            "pages": len(pages.learn),
            "sites": len({page.site for page in pages.learn}),
            "steps": learner.recipe.steps,
            "fingerprint": pages.fingerprint,
        },
        measured=measures.figures if measures else {},
        measured_by_class=measures.by_class if measures else {},
        words=read_card(find_weights(settings.from_)).words if settings.from_ else {},
    )
    stored = model.half() if settings.half else model
    write_weights(weights, {name: value.cpu() for name, value in stored.state_dict().items()}, card)
    return measures


@torch.inference_mode()
def fix_scale(
    model: AptDetector, pages: Sequence[TrainPage], screenshots: Screenshots, seed: int
) -> None:
    """Fit the scale of the stored features, and the patterns of the tiny size."""
    if model.patches is not None:
        model.patches.fit_patterns([screenshots.read([page])[0] for page in pages], seed)
    batches = zip(*_descriptions(model, pages, screenshots), strict=True)
    descriptions = [torch.cat(kind) for kind in batches]
    if model.patches is not None:
        model.patches.fit_blocks(descriptions)
        return
    centre, whiten = fit_scale(descriptions[0].double())
    model.centre.copy_(centre)
    model.whiten.copy_(whiten)


def _descriptions(
    model: AptDetector, pages: Sequence[TrainPage], screenshots: Screenshots
) -> Iterator[tuple[Tensor, ...]]:
    """Yield embeddings, and patch features if any, of the best proposals of some pages."""
    for start in range(0, len(pages), 8):
        shots = screenshots.read(pages[start : start + 8]).to(model.centre.device)
        maps = model.maps(shots)
        boxes = [page.boxes for page in model.propose(maps, REGIONS)]
        embedded = model.projection(model.pool(maps, boxes).float())
        yield (
            (embedded,) if model.patches is None else model.patches.describe(embedded, shots, boxes)
        )


def fit_scale(
    rows: Float[Tensor, "n 768"], power: float = 0.5, floor: float = 1e-3
) -> tuple[Float[Tensor, " 768"], Float[Tensor, "768 768"]]:
    """Fit the affine map that centres embeddings and partly evens out the spread of directions.

    The power 0 keeps the spreads as they are, 1 makes all alike (full whitening). Directions that
    spread less than the share ``floor`` of the widest are not scaled up further.

    Returns:
        The centre, and the matrix; mapped rows have a mean square of 1 per number.
    """
    centre = rows.mean(dim=0)
    centred = rows - centre
    spread, axes = torch.linalg.eigh(centred.T @ centred / len(rows))
    spread = spread.clamp(min=float(spread.max()) * floor + 1e-12)
    whiten = axes @ torch.diag(spread ** (-power / 2)) @ axes.T
    whiten = whiten / (centred @ whiten).square().mean().sqrt()
    return centre.float(), whiten.float()
