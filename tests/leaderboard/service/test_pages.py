"""Pages of a live store follow its files, and hold nothing of what has left it."""

import gc
import weakref

from leaderboard.service.pages import Pages
from leaderboard.store.entries import find_result
from tests.leaderboard.conftest import file_entry, filed_on

BOARD = "boards/jieba.html"


def test_what_left_the_store_is_forgotten_and_the_pages_are_those_of_the_rest(release, tmp_path):
    store = tmp_path / "store"
    first, second = (
        file_entry(store, release, name, 2.0 + day, filed_on(day), seed=day)
        for day, name in enumerate(("First", "Second"))
    )
    pages = Pages(store)
    before = pages.get(BOARD)
    cache = weakref.ref(pages.state()[1]._cache)
    third = file_entry(store, release, "Third", 4.0, filed_on(2), seed=2)
    assert pages.get(BOARD) == Pages(store).get(BOARD) != before
    assert pages.state()[1]._cache is cache(), "with one more entry nothing is compared again"
    find_result(store, third.name).unlink()
    (store / "filings" / f"{third.name}.json").unlink()
    assert pages.get(BOARD) == before
    assert pages.get(f"entries/{third.name}.html") is None
    assert {first.name, second.name} == set(pages.snapshot().entries)
    gc.collect()
    assert cache() is None
