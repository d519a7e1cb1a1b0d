"""Parsing robots.txt by RFC 9309: agents of a group, its end, and the rule that decides."""

import re
import time
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from now_builder.crawl.politeness.robots_rules import PRODUCT, parse_robots, refuses_training
from tests.now_builder.crawl.cases import read_cases

SITE = "https://a.test"


def allows(robots: str | bytes, path: str) -> bool:
    content = robots if isinstance(robots, bytes) else robots.encode()
    return parse_robots(content, PRODUCT).allows(SITE + path)


CASES = read_cases(Path(__file__).with_name("robots.toml"))
MEANT, NOT_MEANT = CASES["meant"], CASES["not-meant"]


def test_a_group_applies_to_us_or_does_not() -> None:
    for name, allowed in [(name, False) for name in MEANT.values()] + [
        (name, True) for name in NOT_MEANT.values()
    ]:
        assert allows(f"User-agent: {name}\nDisallow: /x\n", "/x") == allowed, name


ANY = "User-agent: *\n"
ALL = f"{ANY}Disallow: /x\n"
US = "User-agent: noise-of-web\n"

FORBIDS_X: dict[str, str | bytes] = CASES["forbids"] | {
    "half a byte-order mark": b"\xef\xbb" + ALL.encode(),
    "lines that are not in UTF-8": b"# caf\xe9\nNote: \xff\xfe\n" + ALL.encode(),
}


def test_a_file_forbids_a_path_or_does_not() -> None:
    forbidden = {name: (allows(file, "/x"), allows(file, "/")) for name, file in FORBIDS_X.items()}
    assert forbidden == dict.fromkeys(FORBIDS_X, (False, True))
    assert [name for name, file in CASES["allows"].items() if not allows(file, "/x")] == []
    assert allows("User-agent: *\nDisallow: /\n", "/robots.txt")  # the file itself, always


def test_the_longest_rule_decides() -> None:
    for rules, allowed, forbidden in CASES["rules"]["longest"]:
        robots = f"User-agent: *\n{rules}\n"
        assert [allows(robots, path) for path in allowed] == [True] * len(allowed), rules
        assert [allows(robots, path) for path in forbidden] == [False] * len(forbidden), rules


def test_a_path_can_be_escaped_in_many_ways_and_other_paths_differ() -> None:
    """RFC 9309, section 2.2.2: octets are compared, however they are escaped.

    An escaped slash is none, an escaped escape is none, and GBK's octets are not all equal.
    """
    for rule, paths in CASES["rules"]["same"]:
        assert [path for path in paths if allows(f"{ANY}Disallow: {rule}\n", path)] == []
    for rule, path in [("/a/b", "/a%2Fb"), ("/a%2Fb", "/a/b"), ("/a%252Fb", "/a%2Fb"),
                       ("/%d6%d0", "/%b9%fa")]:  # fmt: skip
        assert allows(f"{ANY}Disallow: {rule}\n", path)
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
    for delay in ("", "x", "-1", "nan", "inf", "1e999", "5 s"):
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


def test_no_pattern_is_slow() -> None:
    robots = b"User-agent: *\n" + b"Disallow: /" + b"*a" * 8000 + b"b$\n" + b"Disallow: /*a*b\n" * 9
    rules = parse_robots(robots, PRODUCT)
    began = time.process_time()
    assert rules.allows(f"{SITE}/{'a' * 4000}")
    assert time.process_time() - began < 2


ON = "Content-Usage: train-ai=n\n"
OTHERS = "User-agent: otherbot\n"


def test_a_preference_about_training_holds() -> None:
    for where, (robots, path, expected) in CASES["opt-outs"].items():
        opt_outs = parse_robots(robots.encode(), PRODUCT).opt_outs(SITE + path)
        assert opt_outs.keys() == set(expected), where


def test_an_opt_out_names_its_line() -> None:
    robots = f"# all\r\n{ANY}\r\nDisallow: /a\r\n{ON}".encode()
    rules = parse_robots(robots, PRODUCT)
    assert rules.opt_outs(SITE + "/x") == {"content-usage": "line 5: Content-Usage: train-ai=n"}
    assert rules.disallowed_by(SITE + "/a/b") == "line 4: Disallow: /a"


def test_preferences_before_all_groups_make_no_group_of_the_rules_there() -> None:
    rules = parse_robots(f"{ON}Disallow: /x\nCrawl-delay: 9\n{OTHERS}".encode(), PRODUCT)
    assert rules.allows(SITE + "/x")
    assert rules.delay_s == 0


REFUSE = [
    "train-ai=n", "search=y, train-ai=n", "train-ai=n, search=y", "Train-AI=N", "train-ai = n",
    "train-ai=\tno", "train-ai=n;until=2030", 'train-ai=n;why="a, train-ai=y"', 'train-ai="n"',
    "train-ai=y, train-ai=n", "ai-train=no", "search=yes,ai-train=no,use=reference",
    "search=yes; ai-train=no", "search=yes ai-train=no", "AI-Train: yes, ai-train=No", "ai=n",
    "tdm=n, search=y", "bots=n", "genai=n", "ai=y, train-ai=n",
]  # fmt: skip
ALLOW = [
    "train-ai=y", "ai-train=yes", "train-ai=n, train-ai=y", "ai=n, train-ai=y", "bots=n, ai=y",
    "train-ai;allow=n, train-ai=y", "search=no, ai-train=yes", 'train-ai=y;why="train-ai=n"',
]  # fmt: skip
SILENT = [
    "", "search=n", "ai-input=no", "train-ai", "train-ai=?0", "train-ai=maybe", "no-ai-train=no",
    "x.train-ai=n", "train-ai-not=n", "=n", "use=reference", "train-ai=", "bots",
]  # fmt: skip


def test_a_statement_refuses_training_allows_it_or_does_not_say() -> None:
    """Statements as in the drafts and as people write them."""
    assert [text for text in REFUSE if refuses_training(text) is not True] == []
    assert [text for text in ALLOW if refuses_training(text) is not False] == []
    assert [text for text in SILENT if refuses_training(text) is not None] == []


def test_a_long_statement_is_not_slow() -> None:
    started = time.process_time()
    for piece in ("a", "ai", "ai ", "ai=", '"', '"=', "ai=n,", "ai" + " " * 99):
        refuses_training(piece * 50_000)
    assert time.process_time() - started < 10
