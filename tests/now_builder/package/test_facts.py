"""The numbers: hand-worked values and the obvious slow way of getting them."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from now_builder.formats.release import ceiling
from now_builder.package.card import language_codes, size_category
from now_builder.package.facts import _share_unknown, _spread


def brute_force(images: list[str], captions: list[tuple[int, ...]]) -> float:
    """Try every order of caption texts for every image; count hits at one with ties by luck."""
    texts = sorted(set(captions))
    total = 0.0
    for image in sorted(set(images)):
        queries = [i for i, found in enumerate(images) if found == image]
        best = 0.0
        for order in itertools.permutations(texts):
            first = order[0]
            tied = captions.count(first)
            best = max(best, sum((captions[i] == first) / tied for i in queries))
        total += best
    return 100 * total / len(images)


@settings(max_examples=80, deadline=None)
@given(
    pairs=st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from([(1,), (2,), (3, 1), (4,)])),
        min_size=1,
        max_size=7,
    )
)
def test_the_ceiling_is_what_trying_everything_gives(pairs: list) -> None:
    images, captions = [image for image, _ in pairs], [caption for _, caption in pairs]
    found = ceiling(images, captions)
    assert found.i2t == pytest.approx(brute_force(images, captions))
    mirrored = brute_force([str(c) for c in captions], [(ord(i),) for i in images])
    assert found.t2i == pytest.approx(mirrored)


def test_with_distinct_images_the_ceiling_is_the_share_of_distinct_captions() -> None:
    """853 distinct captions among 1000 pairs allow 85.3 %."""
    captions = [(min(number, 852),) for number in range(1000)]
    found = ceiling([str(number) for number in range(1000)], captions)
    assert found.i2t == pytest.approx(85.3)
    assert found.t2i == pytest.approx(85.3)


def test_identical_pairs_can_only_be_told_apart_by_luck() -> None:
    """Two pairs of the same image and caption: one in two, both ways; the third is free."""
    found = ceiling(["a", "a", "b"], [(1,), (1,), (2,)])
    assert found.i2t == pytest.approx(100 * 2 / 3)
    assert found.t2i == pytest.approx(100 * 2 / 3)


def test_a_spread_by_hand() -> None:
    found = _spread([1, 2, 3, 4, 10])
    assert (found.mean, found.median, found.largest) == (4.0, 3.0, 10)
    assert found.p90 == pytest.approx(7.6)


def test_unknown_tokens_are_counted_over_all_tokens() -> None:
    assert _share_unknown([[4, 3, 5], [3]]) == pytest.approx(50.0)


@pytest.mark.parametrize(
    ("pairs", "word"),
    [(1, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (99_999, "10K<n<100K"), (10**5, "100K<n<1M")],
)
def test_sizes_are_named_as_the_hub_does(pairs: int, word: str) -> None:
    assert size_category(pairs) == word


def test_only_codes_are_languages_of_the_hub() -> None:
    assert language_codes(["zh", "und", "en", "zh-Hans", "no", ""]) == ["zh", "en", "no"]
