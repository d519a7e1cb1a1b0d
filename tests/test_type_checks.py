"""`make test-types` enforces the types and shapes that signatures promise."""

import os

import pytest
import torch
from jaxtyping import TypeCheckError

from now_builder.formats.release import check_split
from now_builder.formats.shard import Planned
from pc2_baseline.modules.losses import triplet_mean

pytestmark = pytest.mark.skipif("NOW_TEST_TYPES" not in os.environ, reason="no types are checked")


def test_wrong_arguments_fields_and_shapes_are_refused():
    with pytest.raises(TypeCheckError):
        check_split(5)
    with pytest.raises(TypeCheckError):
        Planned("00000_0000", "0", "http://a.test/", "http://a.test/", "a.test")
    triplet_mean(torch.zeros(4, 4), torch.zeros(4))
    for rows, margins in ((3, 4), (4, 3)):
        with pytest.raises(TypeCheckError):
            triplet_mean(torch.zeros(rows, 4), torch.zeros(margins))
