"""robots.txt by RFC 9309, line by line: whom a group means, where it ends, which rule decides."""

import re
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from now_builder.crawl.politeness.robots import PRODUCT
from now_builder.crawl.politeness.robots_rules import parse_robots
from tests.now_builder.crawl.cases import read_cases

SITE = "https://a.test"


def allows(robots: str | bytes, path: str) -> bool:
    content = robots if isinstance(robots, bytes) else robots.encode()
    return parse_robots(content, PRODUCT).allows(SITE + path)


CASES = read_cases(Path(__file__).with_name("robots.toml"))
MEANT, NOT_MEANT = CASES["meant"], CASES["not-meant"]


@pytest.mark.parametrize("name", MEANT)
def test_a_group_means_us(name: str) -> None:
    assert not allows(f"User-agent: {MEANT[name]}\nDisallow: /x\n", "/x")


@pytest.mark.parametrize("name", NOT_MEANT)
def test_a_group_does_not_mean_us(name: str) -> None:
    assert allows(f"User-agent: {NOT_MEANT[name]}\nDisallow: /x\n", "/x")


ALL = "User-agent: *\nDisallow: /x\n"
US = "User-agent: noise-of-web\n"

FORBIDS_X: dict[str, str | bytes] = CASES["forbids"] | {
    "half a byte-order mark": b"\xef\xbb" + ALL.encode(),
    "lines that are not in UTF-8": b"# caf\xe9\nNote: \xff\xfe\n" + ALL.encode(),
}


@pytest.mark.parametrize("name", FORBIDS_X)
def test_a_file_forbids_a_path(name: str) -> None:
    assert not allows(FORBIDS_X[name], "/x")
    assert allows(FORBIDS_X[name], "/")


@pytest.mark.parametrize("name", CASES["allows"])
def test_a_file_does_not_forbid_a_path(name: str) -> None:
    assert allows(CASES["allows"][name], "/x")


def test_the_file_itself_may_always_be_asked_for() -> None:
    assert allows("User-agent: *\nDisallow: /\n", "/robots.txt")


@pytest.mark.parametrize(("rules", "allowed", "forbidden"), CASES["rules"]["longest"])
def test_the_longest_rule_decides(rules: str, allowed: list[str], forbidden: list[str]) -> None:
    robots = f"User-agent: *\n{rules}\n"
    assert [allows(robots, path) for path in allowed] == [True] * len(allowed)
    assert [allows(robots, path) for path in forbidden] == [False] * len(forbidden)


@pytest.mark.parametrize(("rule", "paths"), CASES["rules"]["same"])
def test_one_path_can_be_written_in_many_ways(rule: str, paths: list[str]) -> None:
    """RFC 9309, section 2.2.2: octets are compared, however they are escaped."""
    robots = f"User-agent: *\nDisallow: {rule}\n"
    assert [path for path in paths if allows(robots, path)] == []


@pytest.mark.parametrize(
    ("rule", "path"),
    [("/a/b", "/a%2Fb"), ("/a%2Fb", "/a/b"), ("/a%252Fb", "/a%2Fb"), ("/%d6%d0", "/%b9%fa")],
)
def test_other_paths_are_other_paths(rule: str, path: str) -> None:
    """An escaped slash is none, an escaped escape is none, and GBK's octets are not all alike."""
    assert allows(f"User-agent: *\nDisallow: {rule}\n", path)


def test_octets_that_are_not_utf_8_count_as_they_are() -> None:
    robots = "User-agent: *\nDisallow: /中".encode("gbk")
    assert not allows(robots, "/%D6%D0")
    assert allows(robots, "/中")


def test_the_delay_is_that_of_our_groups_and_the_longest_of_several() -> None:
    both = f"User-agent: *\nCrawl-delay: 9\nDisallow:\n{US}Crawl-delay: 2\nAllow: /\n"
    assert parse_robots(both.encode(), PRODUCT).delay_s == 2
    assert parse_robots((both + US + "crawl delay: 4.5\n").encode(), PRODUCT).delay_s == 4.5
    shared = f"{US}Crawl-delay: 3\nUser-agent: other\nDisallow: /x\n"
    assert parse_robots(shared.encode(), "other").delay_s == 3
    assert parse_robots(f"{US}Crawl-delay: 0.5\n".encode(), PRODUCT).delay_s == 0.5
    assert parse_robots(b"", PRODUCT).delay_s == 0


@pytest.mark.parametrize("delay", ["", "x", "-1", "nan", "inf", "1e999", "5 s"])
def test_a_delay_that_is_no_number_is_none(delay: str) -> None:
    assert parse_robots(f"{ALL}Crawl-delay: {delay}\n".encode(), PRODUCT).delay_s == 0


PATTERNS = st.text(["/", "a", "b", "*", "$", "?", "中"]) | st.lists(
    st.sampled_from(["/", "a", "b", "*", "*", "$", "%24", "%2A", "%2F", "%61", "中", "%-", "?"])
).map("".join)
PATHS = st.lists(
    st.sampled_from(["/", "a", "b", "*", "$", "%2f", "%62", "%E4%B8%AD", "%25-", "?", "ab"])
).map("".join)
SAME = (("%61", "a"), ("%62", "b"), ("%24", "$"), ("%2A", "*"), ("%E4%B8%AD", "中"))


@example("a**$", "a")
@example("a*a$", "a")
@given(PATTERNS, PATHS)
def test_a_pattern_matches_as_the_obvious_expression_does(pattern: str, path: str) -> None:
    """Escapes are undone by hand, but for the slash; ``*`` becomes ``.*``, a last ``$`` the end."""
    to_the_end = pattern.endswith("$")
    pieces = [undone(piece) for piece in (pattern[:-1] if to_the_end else pattern).split("*")]
    expression = ".*".join(map(re.escape, pieces)) + (r"\Z" if to_the_end else "")
    matches = re.match(expression, undone("/" + path)) is not None
    assert allows(f"User-agent: *\nDisallow: {pattern}\n", "/" + path) == (
        not pattern or not matches
    )


def undone(path: str) -> str:
    for escape, character in SAME:
        path = path.replace(escape, character)
    return path.replace("%2f", "%2F").replace("%25", "%")


@given(st.binary(max_size=200), st.text(max_size=30))
def test_any_file_can_be_read(content: bytes, path: str) -> None:
    assert parse_robots(b"User-agent: *\n" + content, PRODUCT).delay_s >= 0
    parse_robots(b"User-agent: *\nDisallow: " + content, PRODUCT).allows(f"{SITE}/{path}")


def test_no_pattern_takes_long() -> None:
    robots = b"User-agent: *\n" + b"Disallow: /" + b"*a" * 8000 + b"b$\n" + b"Disallow: /*a*b\n" * 9
    rules = parse_robots(robots, PRODUCT)
    began = time.process_time()
    assert rules.allows(f"{SITE}/{'a' * 4000}")
    assert time.process_time() - began < 2


ON = "Content-Usage: train-ai=n\n"
EVERYBODY = "User-agent: *\n"
OTHERS = "User-agent: otherbot\n"


@pytest.mark.parametrize("where", CASES["opt-outs"])
def test_a_preference_about_training_holds(where: str) -> None:
    robots, path, expected = CASES["opt-outs"][where]
    assert parse_robots(robots.encode(), PRODUCT).opt_outs(SITE + path).keys() == set(expected)


def test_an_opt_out_names_its_line() -> None:
    robots = f"# all\r\n{EVERYBODY}\r\nDisallow: /a\r\n{ON}".encode()
    rules = parse_robots(robots, PRODUCT)
    assert rules.opt_outs(SITE + "/x") == {"content-usage": "line 5: Content-Usage: train-ai=n"}
    assert rules.disallowed_by(SITE + "/a/b") == "line 4: Disallow: /a"


def test_preferences_before_all_groups_make_no_group_of_the_rules_there() -> None:
    rules = parse_robots(f"{ON}Disallow: /x\nCrawl-delay: 9\n{OTHERS}".encode(), PRODUCT)
    assert rules.allows(SITE + "/x")
    assert rules.delay_s == 0
