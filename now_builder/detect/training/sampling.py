"""The order of pages in training: shuffled each epoch, with rare classes repeated."""

from collections import Counter
from collections.abc import Collection, Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor


def repeat_factors(classes: Sequence[Collection[int]], threshold: float) -> Float[Tensor, " pages"]:
    r"""Compute how often each page is seen in an epoch: more than once if a class on it is rare.

    :math:`r(I) = \max_{c \in I} \max(1, \sqrt{t / f(c)})`, with f(c) the share of pages that show
    class c.

    Args:
        classes: Classes on each page.
        threshold: t; a class on a larger share of the pages is not rare. 0: every page once.

    Source:
        Repeat-factor sampling: LVIS (Gupta et al., CVPR 2019), Sec. 5.1 and Appendix B.
    """
    shown = Counter(kind for page in classes for kind in set(page))
    wanted = {kind: (threshold * len(classes) / count) ** 0.5 for kind, count in shown.items()}
    factors = [max([1.0, *(wanted[kind] for kind in page)]) for page in classes]
    return torch.tensor(factors, dtype=torch.float64)


class RepeatSampler:
    """An endless sequence of page numbers, a pure function of the seed: it has no state to save.

    In each epoch a page comes as often as its factor says, rounded up or down at random (but so
    that all epochs are of one length), in an order of the epoch's own.

    Differs:
        LVIS rounds each page by itself, and epochs differ in length. Here one draw rounds them all
        (systematic resampling), so that any place of the sequence can be computed by itself.
    """

    def __init__(self, factors: Float[Tensor, " pages"], seed: int) -> None:
        self._ends = factors.double().cumsum(0)
        self._seed = seed
        self._length = round(float(self._ends[-1]))
        self._epoch, self._pages = -1, torch.zeros(0, dtype=torch.int64)

    def __len__(self) -> int:
        """Return the length of an epoch."""
        return self._length

    def page(self, place: int) -> int:
        """Return the page at a place of the sequence."""
        epoch, offset = divmod(place, self._length)
        if epoch != self._epoch:
            self._epoch, self._pages = epoch, self._draw(epoch)
        return int(self._pages[offset])

    def _draw(self, epoch: int) -> Int64[Tensor, " length"]:
        generator = torch.Generator().manual_seed(self._seed * 7_919 + epoch)
        order = torch.randperm(self._length, generator=generator)
        start = torch.rand(1, generator=generator, dtype=torch.float64)
        steps = torch.arange(self._length, dtype=torch.float64) + start
        places = steps * (self._ends[-1] / self._length)
        pages = torch.searchsorted(self._ends, places, right=True)
        return pages.clamp(max=len(self._ends) - 1)[order]
