"""Tests run with the types and shapes that signatures promise enforced."""

import pytest
import torch
from jaxtyping import TypeCheckError

from now_builder.formats.release import check_split
from now_builder.formats.shard import Planned
from pc2_baseline.modules.losses import triplet_mean


def test_a_wrong_argument_is_refused():
    with pytest.raises(TypeCheckError):
        check_split(5)


def test_a_wrong_field_of_a_dataclass_is_refused():
    with pytest.raises(TypeCheckError):
        Planned("00000_0000", "0", "http://a.test/", "http://a.test/", "a.test")


@pytest.mark.parametrize(("rows", "margins"), [(3, 4), (4, 3)])
def test_shapes_that_disagree_are_refused(rows, margins):
    triplet_mean(torch.zeros(4, 4), torch.zeros(4))
    with pytest.raises(TypeCheckError):
        triplet_mean(torch.zeros(rows, 4), torch.zeros(margins))
