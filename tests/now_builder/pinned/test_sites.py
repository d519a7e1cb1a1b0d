"""A list is read strictly; an error names file, line and field."""

import re
from collections import Counter

import pytest

from now_builder.errors import FormatError
from now_builder.pinned.sites import LIST, MOST_PAGES, read_sites
from tests.now_builder.pinned.conftest import HEADER

ROW = {
    "repository": "Ann/site.github.io", "commit": "0" * 40, "folder": "docs/html",
    "host": "site.ann.test", "pages": "3", "language": "zh-Hant", "licence": "MIT", "size": "9",
    "kind": "shop",
}  # fmt: skip


def line(**changed):
    return ",".join({**ROW, **changed}.values()) + "\n"


def test_the_list_of_the_package_is_a_list():
    rows = read_sites()
    owners = Counter(row.repository.lower().partition("/")[0] for row in rows)
    assert max(owners.values()) <= 3
    assert len({row.repository.lower() for row in rows}) == len(rows)
    assert all(row.pages <= MOST_PAGES and row.size <= 60_000_000 for row in rows)
    assert LIST.parent.name == "pinned"


def test_columns_may_have_another_order_or_case_and_more_of_them(tmp_path):
    path = tmp_path / "list.csv"
    path.write_text(HEADER + line())
    (plain,) = read_sites(path)
    names = [name for name in reversed(ROW) if name != "kind"]
    cells = [ROW[name] for name in names]
    path.write_text(",".join(["note", *names]).upper() + "\n" + ",".join(["x", *cells]) + "\n")
    (other,) = read_sites(path)
    assert (other.repository, other.size, other.kind) == (plain.repository, 9, "")


WRONG = (
    [
        ("", "empty"), (HEADER, "no site below the header"),
        ("repository,commit\n" + "a/b,c\n", "line 1: columns repository,commit, expected"),
        (HEADER + line() + line(repository="a/c"), "line 3: host site.ann.test is also on line 2"),
        (HEADER + line(repository="site"), "line 2: repository is 'site', expected owner/name"),
        *((HEADER + line(repository=name), "line 2: repository")
          for name in ("a/..", "--upload-pack=x/y")),
        (HEADER + line(commit="main"), "line 2: commit is 'main', expected 40 hex"),
        (HEADER + line(commit="A" * 40), "line 2: commit"),
        *((HEADER + line(folder=folder), "line 2: folder")
          for folder in ("/docs", "docs/", "..", "a/../b", "a//b", "./a", "a\\b")),
        *((HEADER + line(host=host), "line 2: host")
          for host in ("ann.test", "site.ann.com", "Site.ann.test", "-a.ann.test", "../.ann.test")),
        (HEADER + line(pages="101"), "line 2: pages is 101, expected at most 100"),
        (HEADER + line(pages="0"), "line 2: pages is 0, expected 1 to 100"),
        (HEADER + line(pages="-1"), "line 2: pages"), (HEADER + line(size="1e6"), "line 2: size"),
        (HEADER + line(pages="٣"), "line 2: pages"),
        (HEADER + line(language="english!"), "line 2: language"),
        (HEADER + line() + "a/b\n", "line 3: commit is ''"),
    ]
)  # fmt: skip


def test_what_is_wrong_is_named(tmp_path):
    path = tmp_path / "list.csv"
    for text, problem in WRONG:
        path.write_text(text)
        with pytest.raises(FormatError, match=re.escape(problem)) as caught:
            read_sites(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)
