"""The rules of a robots.txt that hold for one crawler."""

import re
import string
from dataclasses import dataclass, field
from urllib.parse import quote, unquote_to_bytes

_MARK = re.compile(rb"\A\xef(?:\xbb\xbf?)?")
_LONGEST_LINE = 8 * 2083 - 1
_NAMES = {
    b"user-agent": "agent", b"useragent": "agent", b"user agent": "agent",
    b"allow": "allow",
    b"disallow": "disallow", b"dissallow": "disallow", b"dissalow": "disallow",
    b"disalow": "disallow", b"diasllow": "disallow", b"disallaw": "disallow",
    b"crawl-delay": "delay", b"crawl delay": "delay",
}  # fmt: skip
"""Names of lines, with the slips that Google's parser forgives."""

_NO_COLON = re.compile(rb"(%s)[ \t]+(\S+)" % b"|".join(_NAMES), re.IGNORECASE)
_TOKEN = re.compile(rb"[a-z_-]+")
_ESCAPED_SLASH = re.compile(rb"%2f", re.IGNORECASE)
_AUTHORITY = re.compile(r"[a-z][a-z0-9+.-]*://[^/?;#]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Rule:
    allows: bool
    octets: int
    pieces: tuple[str, ...]
    to_the_end: bool

    def matches(self, path: str) -> bool:
        """Whether the pieces follow one another in a path, the first at its beginning."""
        first, *others = self.pieces
        if not path.startswith(first):
            return False
        at = len(first)
        last = others.pop() if others and self.to_the_end else None
        for piece in others:
            found = path.find(piece, at)
            if found < 0:
                return False
            at = found + len(piece)
        if last is not None:
            return path.endswith(last) and len(path) - len(last) >= at
        return at == len(path) or not self.to_the_end


@dataclass(slots=True)
class _Group:
    agents: set[bytes] = field(default_factory=set)
    rules: list[_Rule] = field(default_factory=list)
    delay_s: float = 0.0
    closed: bool = False


@dataclass(frozen=True, slots=True)
class RobotsRules:
    """What a robots.txt says to one crawler.

    Attributes:
        delay_s: Pause between two requests that the site asks for, 0 if none.
    """

    _rules: tuple[_Rule, ...]
    delay_s: float

    def allows(self, url: str) -> bool:
        """Whether a URL may be visited: the longest rule that matches decides, of equals Allow."""
        rest = _AUTHORITY.sub("", url.partition("#")[0], count=1)
        path = _normal((rest if rest.startswith("/") else f"/{rest}").encode())
        if path == "/robots.txt":
            return True
        return next((rule.allows for rule in self._rules if rule.matches(path)), True)


def parse_robots(content: bytes, product: str) -> RobotsRules:
    """Parse what a robots.txt says to the crawler with a product token.

    Groups that name the token count together; only where there is none do those for ``*``. A group
    ends at the first User-agent line behind a rule: lines of other names neither end nor begin one.

    Source:
        RFC 9309, section 2.2. Where it leaves a choice, as Google's parser: a token is read up to
        the first character that no token has (``name/1.0``, ``name crawler``), a byte-order mark is
        passed over, a colon may be missing, a line counts up to 16,663 bytes, and who allows
        ``/x/index.html`` allows ``/x/``.

    Differs:
        From Google's parser, as the RFC wants: ``%62`` in a path is ``b``, and a character beyond
        ASCII is its escape. ``Crawl-delay``, unknown to the RFC, holds for the whole group.
    """
    groups = _groups(content)
    ours = [group for group in groups if product.lower().encode() in group.agents]
    ours = ours or [group for group in groups if b"*" in group.agents]
    rules = [rule for group in ours for rule in group.rules]
    rules.sort(key=lambda rule: (rule.octets, rule.allows), reverse=True)
    return RobotsRules(tuple(rules), max((group.delay_s for group in ours), default=0.0))


def _groups(content: bytes) -> list[_Group]:
    groups: list[_Group] = []
    for line in _MARK.sub(b"", content).splitlines():
        name, value = _line(line[:_LONGEST_LINE])
        if name == "agent":
            if not groups or groups[-1].closed:
                groups.append(_Group())
            groups[-1].agents.add(product_token(value))
        elif name == "delay" and groups:
            groups[-1].delay_s = max(groups[-1].delay_s, _seconds(value))
        elif name and groups:
            groups[-1].closed = True
            groups[-1].rules += _rules(value, allows=name == "allow")
    return groups


def _line(line: bytes) -> tuple[str | None, bytes]:
    """Return what a line is, ``None`` for all that does not matter, and its value."""
    line = line.partition(b"#")[0].strip()
    name, colon, value = line.partition(b":")
    if colon and (known := _NAMES.get(name.strip().lower())):
        return known, value.strip()
    bare = _NO_COLON.fullmatch(line)
    return (_NAMES[bare[1].lower()], bare[2]) if bare else (None, b"")


def product_token(value: bytes) -> bytes:
    """Return the product token that a crawler's name begins with, or ``*``, in lower case."""
    if value.split()[:1] == [b"*"]:
        return b"*"
    token = _TOKEN.match(value.lower())
    return token[0] if token else b""


def _seconds(value: bytes) -> float:
    try:
        seconds = float(value)
    except ValueError:
        return 0.0
    return seconds if 0 < seconds < float("inf") else 0.0


def _rules(pattern: bytes, *, allows: bool) -> list[_Rule]:
    """Return the rules of a line: none without a path, two for an index page that is allowed."""
    if not pattern:
        return []
    to_the_end = pattern.endswith(b"$")
    path = pattern[:-1] if to_the_end else pattern
    pieces = tuple(_normal(piece) for piece in path.split(b"*"))
    rules = [_Rule(allows, len(quote(pattern, safe=string.printable)), pieces, to_the_end)]
    folder, slash, page = pattern.rpartition(b"/")
    if allows and slash and page in {b"index.html", b"index.htm"}:
        rules += _rules(folder + b"/$", allows=True)
    return rules


def _normal(path: bytes) -> str:
    """Return a path in which each octet is written in one way: an escaped slash is no slash."""
    return "%2F".join(
        quote(unquote_to_bytes(part), safe="/") for part in _ESCAPED_SLASH.split(path)
    )
