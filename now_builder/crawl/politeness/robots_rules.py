"""The rules of a robots.txt for one crawler, and preferences about training."""

import re
import string
from dataclasses import dataclass, field
from urllib.parse import quote, unquote_to_bytes

PRODUCT = "noise-of-web"
"""Name of this crawler in robots.txt."""

_MARK = re.compile(rb"\A\xef(?:\xbb\xbf?)?")
_LONGEST_LINE = 8 * 2083 - 1
_NAMES = {
    b"user-agent": "agent", b"useragent": "agent", b"user agent": "agent",
    b"allow": "allow",
    b"disallow": "disallow", b"dissallow": "disallow", b"dissalow": "disallow",
    b"disalow": "disallow", b"diasllow": "disallow", b"disallaw": "disallow",
    b"crawl-delay": "delay", b"crawl delay": "delay",
    b"content-signal": "content-signal", b"content-signals": "content-signal",
    b"content-usage": "content-usage",
    b"disallowaitraining": "disallowaitraining", b"allowaitraining": "allowaitraining",
}  # fmt: skip
"""Names of lines, with the slips that Google's parser forgives."""

_NO_COLON = re.compile(rb"(%s)[ \t]+(\S+)" % b"|".join(_NAMES), re.IGNORECASE)
_TOKEN = re.compile(rb"[a-z_-]+")
_STATEMENT = re.compile(rb"(?:([/*]\S*)[ \t]+)?(.*)", re.DOTALL)
_SHOWN = 200
_ESCAPED_SLASH = re.compile(rb"%2f", re.IGNORECASE)
_AUTHORITY = re.compile(r"[a-z][a-z0-9+.-]*://[^/?;#]*", re.IGNORECASE)

_TRAINING = ("train-ai", "ai-train", "train-genai", "genai", "ai", "tdm", "bots")
"""Names of training, the narrowest first: ``train-ai`` is the IETF's, the names after ``ai-train``
(of contentsignals.org) are wider ones of its earlier drafts, which include training."""

_ANSWERS = {"n": True, "no": True, "y": False, "yes": False}
_QUOTED = re.compile(r'"([^"]*)"')
_STATED = re.compile(rf"(?<![\w.*-])({'|'.join(_TRAINING)})\s*=\s*(\w+)")


@dataclass(frozen=True, slots=True)
class Rule:
    """A line's pattern, with ``*`` and a last ``$``, and whether it allows the paths that match."""

    allows: bool
    octets: int
    pieces: tuple[str, ...]
    to_the_end: bool
    said: str

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
    rules: list[Rule] = field(default_factory=list)
    preferences: list[tuple[str, Rule]] = field(default_factory=list)
    delay_s: float = 0.0
    closed: bool = False


@dataclass(frozen=True, slots=True)
class RobotsRules:
    """Rules of a robots.txt for one crawler, with the pause that it asks for (0 if none)."""

    _rules: tuple[Rule, ...]
    _preferences: tuple[tuple[str, Rule], ...]
    delay_s: float

    def allows(self, url: str) -> bool:
        """Whether a URL may be visited: the longest rule that matches decides, of equals Allow."""
        return self.disallowed_by(url) is None

    def disallowed_by(self, url: str) -> str | None:
        """Return the line that disallows a URL; ``None`` if none does."""
        path = path_of(url)
        if path == "/robots.txt":
            return None
        rule = next((rule for rule in self._rules if rule.matches(path)), None)
        return None if rule is None or rule.allows else rule.said

    def opt_outs(self, url: str) -> dict[str, str]:
        """Return the opt-outs from training that hold for a URL, and the line of each.

        Of lines of one kind the one with the longest path that matches decides, of equals that
        which refuses.

        Source:
            draft-ietf-aipref-attach, section 3; contentsignals.org;
            draft-canel-robots-ai-control for ``DisallowAITraining``.
        """
        path = path_of(url)
        decisive: dict[str, Rule] = {}
        for kind, rule in self._preferences:
            if kind not in decisive and rule.matches(path):
                decisive[kind] = rule
        return {kind: rule.said for kind, rule in decisive.items() if not rule.allows}


def parse_robots(content: bytes, product: str) -> RobotsRules:
    """Parse the rules of a robots.txt for the crawler with a product token.

    Groups that name the token count together; only where there is none do those for ``*``. A group
    ends at the first User-agent line behind a rule or a preference: lines of other names neither
    end nor begin one. Preferences before the first group are meant for all, as those for ``*``.

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
    preferences = [preference for group in ours for preference in group.preferences]
    preferences.sort(key=lambda found: (-found[1].octets, found[1].allows))
    delay_s = max((group.delay_s for group in ours), default=0.0)
    return RobotsRules(tuple(rules), tuple(preferences), delay_s)


def _groups(content: bytes) -> list[_Group]:
    groups = [_Group({b"*"}, closed=True)]  # for the preferences before the first group
    for number, line in enumerate(_MARK.sub(b"", content).splitlines(), 1):
        name, value = _line(line[:_LONGEST_LINE])
        group = groups[-1]
        if name == "agent":
            if group.closed:
                group = _Group()
                groups.append(group)
            group.agents.add(product_token(value))
        elif name in {"allow", "disallow", "delay"} and len(groups) == 1:
            continue
        elif name == "delay":
            group.delay_s = max(group.delay_s, _seconds(value))
        elif name:
            group.closed = True
            said = f"line {number}: {line[:_SHOWN].decode(errors='replace').strip()}"
            if name in {"allow", "disallow"}:
                group.rules += _rules(value, said, allows=name == "allow")
            else:
                group.preferences += _preferences(name, value, said)
    return groups


def _line(line: bytes) -> tuple[str | None, bytes]:
    """Return the name of a line, ``None`` for an irrelevant one, and its value."""
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


def _preferences(name: str, value: bytes, said: str) -> list[tuple[str, Rule]]:
    """Return the opt-out that a line is about, and where it refuses or allows training."""
    if name in {"disallowaitraining", "allowaitraining"}:
        refuses: bool | None = name == "disallowaitraining"
        pattern, name = value, "disallowaitraining"
    else:
        found = _STATEMENT.fullmatch(value)
        pattern, statement = (found[1] or b"*", found[2]) if found else (b"*", value)
        refuses = refuses_training(statement.decode(errors="replace"))
    if refuses is None or not pattern:
        return []
    return [(name, rule_of(pattern, said, allows=not refuses))]


def _rules(pattern: bytes, said: str, *, allows: bool) -> list[Rule]:
    """Return the rules of a line: none without a path, two for an index page that is allowed."""
    if not pattern:
        return []
    rules = [rule_of(pattern, said, allows=allows)]
    folder, slash, page = pattern.rpartition(b"/")
    if allows and slash and page in {b"index.html", b"index.htm"}:
        rules.append(rule_of(folder + b"/$", said, allows=True))
    return rules


def rule_of(pattern: bytes, said: str, *, allows: bool) -> Rule:
    """Parse the pattern of a line."""
    to_the_end = pattern.endswith(b"$")
    path = pattern[:-1] if to_the_end else pattern
    pieces = tuple(_normal(piece) for piece in path.split(b"*"))
    return Rule(allows, len(quote(pattern, safe=string.printable)), pieces, to_the_end, said)


def path_of(url: str) -> str:
    """Return path and query of a URL, as rules are compared with them."""
    rest = _AUTHORITY.sub("", url.partition("#")[0], count=1)
    return _normal((rest if rest.startswith("/") else f"/{rest}").encode())


def _normal(path: bytes) -> str:
    """Return a path in which each octet is written in one way: an escaped slash is no slash."""
    return "%2F".join(
        quote(unquote_to_bytes(part), safe="/") for part in _ESCAPED_SLASH.split(path)
    )


def refuses_training(statement: str) -> bool | None:
    """Return whether a statement of preferences refuses training; ``None`` if it does not say.

    Source:
        draft-ietf-aipref-vocab, section 6: a dictionary of structured fields (RFC 9651); of a name
        that stands there twice the last counts.

    Differs:
        From the draft, which ignores ill-formed statements: case and spaces do not matter, ``no``
        is ``n``, and a semicolon or a space may stand for a comma.
    """
    plain = _QUOTED.sub(lambda text: text[1] if text[1] in _ANSWERS else "", statement.lower())
    stated = dict(_STATED.findall(plain))
    answers = (_ANSWERS.get(stated.get(name, "")) for name in _TRAINING)
    return next((answer for answer in answers if answer is not None), None)
