"""The crawl of all odd pages, made once."""

import pytest

from .odd import Odd, crawl_odd_pages


@pytest.fixture(scope="session")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Odd:
    """The crawl of all odd pages; do not change it."""
    return crawl_odd_pages(tmp_path_factory.mktemp("odd"))
