"""RoIAlign, on CPUs as one weighted sum of rows."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from jaxtyping import Float, Int64
from torch import Tensor
from torchvision.ops import roi_align


def align(
    maps: Float[Tensor, "n c i j"],
    regions: Sequence[Float[Tensor, "_ 4"]],
    cells: int,
    scale: float,
    points: int,
) -> Float[Tensor, "all c cells cells"]:
    """Read regions of maps, bilinearly, averaged over ``points`` x ``points`` points a cell.

    Args:
        maps: Feature maps, one of each page.
        regions: Boxes of each page, in px.
        cells: A side of each region.
        scale: Map cells per px.
        points: A side of each cell.

    Source:
        Mask R-CNN (He et al., ICCV 2017), with the half-pixel shift of detectron2.

    Differs:
        Without gradients on a CPU, each cell is a sum over the 4 ``points``² map cells that its
        points lie between: ``embedding_bag``, which uses all cores, reads maps whose channels
        stand side by side, and writes crops that convolutions take as they are. torchvision's
        operator does the same on one core, channel by channel.
    """
    if maps.device.type != "cpu" or torch.is_grad_enabled():
        crops: Tensor = roi_align(maps.float(), list(regions), cells, scale, points, aligned=True)
        return crops
    count, channels, rows, columns = maps.shape
    boxes = torch.cat(list(regions)).float() * scale - 0.5
    lengths = torch.tensor([len(page) for page in regions])
    page = torch.repeat_interleave(torch.arange(count), lengths)[:, None, None, None, None]
    y, part_y = _between(boxes[:, 1], boxes[:, 3], rows, cells, points)
    x, part_x = _between(boxes[:, 0], boxes[:, 2], columns, cells, points)
    places = (page * rows + y[:, :, None, :, None]) * columns + x[:, None, :, None, :]
    parts = part_y[:, :, None, :, None] * part_x[:, None, :, None, :]
    each = (2 * points) ** 2
    summed = F.embedding_bag(
        places.reshape(-1, each),
        maps.permute(0, 2, 3, 1).reshape(-1, channels),
        mode="sum",
        per_sample_weights=parts.reshape(-1, each).to(maps.dtype),
    )
    return summed.reshape(len(boxes), cells, cells, channels).permute(0, 3, 1, 2)


def _between(
    low: Float[Tensor, " n"], high: Float[Tensor, " n"], length: int, cells: int, points: int
) -> tuple[Int64[Tensor, "n cells ends"], Float[Tensor, "n cells ends"]]:
    """Along one axis: the two map cells that each point lies between, and its share of each."""
    steps = (torch.arange(cells * points) + 0.5) / (cells * points)
    place = low[:, None] + steps * (high - low)[:, None]
    inside = (place >= -1) & (place <= length)
    place = place.clamp(0, length - 1)
    first = place.floor()
    share = place - first
    index = torch.stack([first, (first + 1).clamp(max=length - 1)], dim=2).long()
    weight = torch.stack([1 - share, share], dim=2) * inside[:, :, None] / points
    return index.reshape(len(low), cells, -1), weight.reshape(len(low), cells, -1)
