"""A shortlist: the cells of a block that pooled vectors choose, scored in full; the others are not.

Both encoders give a pooled vector anyway, and its cosines cost next to nothing.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pc2_baseline.networks.active_cells import BlockScores
from pc2_baseline.networks.codes import CaptionCodes, ImageCodes


def shortlisted(
    cosines: Float[Tensor, "images captions"],
    number: int,
    own: Int[Tensor, " images"] | None = None,
) -> Bool[Tensor, "images captions"]:
    """Mark the captions nearest to each image, and the images nearest to each caption.

    Args:
        cosines: The cosines of the pooled vectors of images and captions.
        number: How many of each.
        own: Column of each image's own caption, which is marked besides.
    """
    mine = torch.zeros_like(cosines, dtype=torch.bool)
    if own is not None:
        mine[torch.arange(len(own), device=own.device), own] = True
    others = cosines.masked_fill(mine, -torch.inf)
    by_image = others.topk(min(number, others.shape[1]), 1).indices
    by_caption = others.topk(min(number, others.shape[0]), 0).indices
    return mine.scatter(1, by_image, value=True).scatter(0, by_caption, value=True)


def score_listed(
    scores: BlockScores,
    listed: Bool[Tensor, "images captions"],
    images: ImageCodes,
    captions: CaptionCodes,
) -> Float[Tensor, "images captions"]:
    """Score the marked cells of a block, whose captions are sorted by length.

    The others are minus infinity: never a hardest negative, and plain to see in any other loss.
    """
    columns, rows = listed.T.nonzero(as_tuple=True)
    found = [
        scores.cells(images[rows[start:stop]], captions[columns[start:stop]])
        for start, stop in scores.runs(captions.lengths[columns.cpu()])
    ]
    values = torch.cat(found)
    return values.new_full(listed.shape, -torch.inf).index_put((rows, columns), values)
