"""Repeat-factor sampling: rare classes come more often, and every place is found by itself."""

from collections import Counter

import pytest
import torch

from now_builder.detect.training.sampling import RepeatSampler, repeat_factors


def test_factors_are_those_of_the_paper():
    pages = [[0], [0, 0, 1], [0], [0, 2], [0], [0], [0], [0], [0], [0]]
    factors = repeat_factors(pages, 0.4).tolist()
    assert factors == pytest.approx([1, 2, 1, 2, *[1] * 6])  # √(0.4 / 0.1) = 2
    assert repeat_factors(pages, 0.0).tolist() == [1] * 10


def test_a_page_comes_as_often_as_its_factor_says_rounded_up_or_down():
    factors = torch.tensor([1.0, 2.5, 1.0, 1.25, 3.0], dtype=torch.float64)
    sampler = RepeatSampler(factors, seed=3)
    assert len(sampler) == 9
    totals = Counter()
    for epoch in range(400):
        seen = Counter(sampler.page(epoch * 9 + place) for place in range(9))
        share = 9 / 8.75
        for page, factor in enumerate(factors.tolist()):
            assert int(factor * share) <= seen[page] <= int(factor * share) + 1
        totals += seen
    for page, factor in enumerate(factors.tolist()):
        assert totals[page] / 400 == pytest.approx(factor * 9 / 8.75, rel=0.05)


def test_every_page_comes_once_where_no_class_is_rare():
    sampler = RepeatSampler(torch.ones(50, dtype=torch.float64), seed=0)
    first, second = ([sampler.page(start + i) for i in range(50)] for start in (0, 50))
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second


def test_a_place_has_the_same_page_whatever_was_asked_before():
    factors = torch.rand(20, generator=torch.Generator().manual_seed(0)).double() + 1
    sampler = RepeatSampler(factors, seed=1)
    forwards = [sampler.page(place) for place in range(200)]
    fresh = RepeatSampler(factors, seed=1)
    assert [fresh.page(place) for place in reversed(range(200))] == forwards[::-1]
    assert [RepeatSampler(factors, seed=2).page(place) for place in range(200)] != forwards
