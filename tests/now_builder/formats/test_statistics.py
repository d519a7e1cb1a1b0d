"""The numbers: hand-worked values and the obvious slow way of getting them."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from now_builder.formats.release import Pair
from now_builder.formats.shard import CaptureRow
from now_builder.formats.statistics import SplitStatistics, ceiling
from now_builder.package.card import capture_columns, language_codes, size_category


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


@settings(max_examples=40)
@given(
    pairs=st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from([(1,), (2,), (3, 1), (4,)])),
        min_size=1,
        max_size=7,
    )
)
def test_the_ceiling_equals_an_exhaustive_search(pairs: list) -> None:
    images, captions = [image for image, _ in pairs], [caption for _, caption in pairs]
    found = ceiling(images, captions)
    assert found.i2t == pytest.approx(brute_force(images, captions))
    mirrored = brute_force([str(c) for c in captions], [(ord(i),) for i in images])
    assert found.t2i == pytest.approx(mirrored)


def test_sizes_are_named_as_the_hub_does() -> None:
    sizes = {999: "n<1K", 1000: "1K<n<10K", 99_999: "10K<n<100K", 10**7: "10M<n<100M"}
    assert {pairs: size_category(pairs) for pairs in sizes} == sizes


def test_only_codes_are_languages_of_the_hub() -> None:
    assert language_codes(["zh", "und", "en", "zh-Hans", "no", ""]) == ["zh", "en", "no"]


def test_leaks_are_counted_by_caption_look_and_domain() -> None:
    """One train pair, four test pairs: b shares all, c looks similar, d has its final domain."""

    def page(key: str, split: str, host: str, caption: str, look: int, landed: str = "") -> tuple:
        url = f"http://{host}/{key}"
        pair = Pair(key, split, 0, url, host, caption, None, None, f"{look:016x}", key)
        final = f"http://{landed or host}/"
        return pair, CaptureRow(key, url, url, host, "ok", final_url=final, sha256=f"{look}")

    made = [
        page("a", "train", "www.example.co.uk", "Bread", 0b1111, "shop.example.org"),
        page("b", "test", "www.example.co.uk", "BREAD", 0b1111),
        page("c", "test", "m.example.co.uk", "Cake", 0b1),
        page("d", "test", "other.test", "Tea", 1 << 60, "example.org"),
        page("e", "test", "else.co.uk", "Milk", 0b11111 << 30, "[nonsense"),
    ]
    columns = capture_columns({pair.key: row for pair, row in made})
    train, test, dev = (SplitStatistics(columns) for _ in range(3))
    train.add_pair(made[0][0])
    for pair, _ in made[1:]:
        test.add_pair(pair)
    names = ("casefolded", "screenshot", "site", "domain", "landed")
    same = {name: test.columns[name].count_in(train.columns[name]) for name in names}
    assert same == {"casefolded": 1, "screenshot": 1, "site": 1, "domain": 2, "landed": 1}
    assert (test.phashes.count_in(train.phashes), test.count_similar(train)) == (1, 2)
    assert not any(found.count_in(train.columns[name]) for name, found in dev.columns.items())
    assert (dev.phashes.count_in(train.phashes), dev.count_similar(train)) == (0, 0)
