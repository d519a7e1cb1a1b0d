"""Parse the rules of a robots.txt for one crawler, and preferences about training."""

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
"""Line types by name, with the misspellings that Google's parser accepts."""

_NO_COLON = re.compile(rb"(%s)[ \t]+(\S+)" % b"|".join(_NAMES), re.IGNORECASE)
_TOKEN = re.compile(rb"[a-z_-]+")
_STATEMENT = re.compile(rb"(?:([/*]\S*)[ \t]+)?(.*)", re.DOTALL)
_SHOWN = 200
_ESCAPED_SLASH = re.compile(rb"%2f", re.IGNORECASE)
_AUTHORITY = re.compile(r"[a-z][a-z0-9+.-]*://[^/?;#]*", re.IGNORECASE)

_TRAINING = ("train-ai", "ai-train", "train-genai", "genai", "ai", "tdm", "bots")
"""Categories that include training, the narrowest first: ``train-ai`` of the IETF, ``ai-train`` of
contentsignals.org, then wider categories of earlier IETF drafts."""

_ANSWERS = {"n": True, "no": True, "y": False, "yes": False}
_QUOTED = re.compile(r'"([^"]*)"')
_STATED = re.compile(rf"(?<![\w.*-])({'|'.join(_TRAINING)})\s*=\s*(\w+)")


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern with ``*`` and a final ``$``, whether it allows matching paths, and its source."""

    allows: bool
    octets: int
    pieces: tuple[str, ...]
    to_the_end: bool
    source: str

    def matches(self, path: str) -> bool:
        """Return whether a path starts with the first piece and contains the others in order."""
        first, *others = self.pieces
        if not path.startswith(first):
            return False
        at = len(first)
        last = others.pop() if others and self.to_the_end else None
        for piece in others:
            start = path.find(piece, at)
            if start < 0:
                return False
            at = start + len(piece)
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
    """Rules of a robots.txt for one crawler, and its crawl delay (0 if there is none)."""

    _rules: tuple[Rule, ...]
    _preferences: tuple[tuple[str, Rule], ...]
    delay_s: float

    def allows(self, url: str) -> bool:
        """Return whether a URL is allowed; the longest matching rule decides, in a tie Allow."""
        return self.disallowed_by(url) is None

    def disallowed_by(self, url: str) -> str | None:
        """Return the line that disallows a URL; ``None`` if none does."""
        path = path_of(url)
        if path == "/robots.txt":
            return None
        rule = next((rule for rule in self._rules if rule.matches(path)), None)
        return None if rule is None or rule.allows else rule.source

    def opt_outs(self, url: str) -> dict[str, str]:
        """Return the opt-outs from training that apply to a URL, and the line of each.

        Of lines with the same name, the one with the longest matching path decides; in a tie, the
        one that refuses training.

        Source:
            draft-ietf-aipref-attach, section 3; contentsignals.org;
            draft-canel-robots-ai-control for ``DisallowAITraining``.
        """
        path = path_of(url)
        decisive: dict[str, Rule] = {}
        for name, rule in self._preferences:
            if name not in decisive and rule.matches(path):
                decisive[name] = rule
        return {name: rule.source for name, rule in decisive.items() if not rule.allows}


def parse_robots(content: bytes, product: str) -> RobotsRules:
    """Parse the rules of a robots.txt for the crawler with a product token.

    All groups with the token are combined; if there are none, those for ``*``. A group ends at the
    first User-agent line after a rule or a preference; lines with other names do not affect groups.
    Preferences before the first group apply to all crawlers, like those for ``*``.

    Source:
        RFC 9309, section 2.2. Details that it leaves open follow Google's parser: a token ends at
        the first invalid character (``name/1.0``, ``name crawler``), a byte-order mark is skipped,
        a colon may be missing, a line is cut after 16,663 bytes, and allowing ``/x/index.html``
        allows ``/x/``.

    Differs:
        From Google's parser, according to the RFC: ``%62`` in a path equals ``b``, and a non-ASCII
        character equals its escape. ``Crawl-delay``, not in the RFC, applies to the whole group.
    """
    groups = _groups(content)
    matching = [group for group in groups if product.lower().encode() in group.agents]
    matching = matching or [group for group in groups if b"*" in group.agents]
    rules = [rule for group in matching for rule in group.rules]
    rules.sort(key=lambda rule: (rule.octets, rule.allows), reverse=True)
    preferences = [preference for group in matching for preference in group.preferences]
    preferences.sort(key=lambda preference: (-preference[1].octets, preference[1].allows))
    delay_s = max((group.delay_s for group in matching), default=0.0)
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
            source = f"line {number}: {line[:_SHOWN].decode(errors='replace').strip()}"
            if name in {"allow", "disallow"}:
                group.rules += _rules(value, source, allows=name == "allow")
            else:
                group.preferences += _preferences(name, value, source)
    return groups


def _line(line: bytes) -> tuple[str | None, bytes]:
    """Return the type of a line (``None`` if irrelevant) and its value."""
    line = line.partition(b"#")[0].strip()
    name, colon, value = line.partition(b":")
    if colon and (line_type := _NAMES.get(name.strip().lower())):
        return line_type, value.strip()
    bare = _NO_COLON.fullmatch(line)
    return (_NAMES[bare[1].lower()], bare[2]) if bare else (None, b"")


def product_token(value: bytes) -> bytes:
    """Return the product token at the start of a crawler's name, or ``*``, in lower case."""
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


def _preferences(name: str, value: bytes, source: str) -> list[tuple[str, Rule]]:
    """Return the opt-out of a line, with a rule that allows or refuses training."""
    if name in {"disallowaitraining", "allowaitraining"}:
        refuses: bool | None = name == "disallowaitraining"
        pattern, name = value, "disallowaitraining"
    else:
        match = _STATEMENT.fullmatch(value)
        pattern, statement = (match[1] or b"*", match[2]) if match else (b"*", value)
        refuses = refuses_training(statement.decode(errors="replace"))
    if refuses is None or not pattern:
        return []
    return [(name, rule_of(pattern, source, allows=not refuses))]


def _rules(pattern: bytes, source: str, *, allows: bool) -> list[Rule]:
    """Return the rules of a line: none without a path, two for an allowed index page."""
    if not pattern:
        return []
    rules = [rule_of(pattern, source, allows=allows)]
    folder, slash, page = pattern.rpartition(b"/")
    if allows and slash and page in {b"index.html", b"index.htm"}:
        rules.append(rule_of(folder + b"/$", source, allows=True))
    return rules


def rule_of(pattern: bytes, source: str, *, allows: bool) -> Rule:
    """Parse the pattern of a rule."""
    to_the_end = pattern.endswith(b"$")
    path = pattern[:-1] if to_the_end else pattern
    pieces = tuple(_normal(piece) for piece in path.split(b"*"))
    return Rule(allows, len(quote(pattern, safe=string.printable)), pieces, to_the_end, source)


def path_of(url: str) -> str:
    """Return path and query of a URL, normalized for comparison with rules."""
    rest = _AUTHORITY.sub("", url.partition("#")[0], count=1)
    return _normal((rest if rest.startswith("/") else f"/{rest}").encode())


def _normal(path: bytes) -> str:
    """Escape each octet of a path in a unique way; an escaped slash stays escaped."""
    return "%2F".join(
        quote(unquote_to_bytes(part), safe="/") for part in _ESCAPED_SLASH.split(path)
    )


def refuses_training(statement: str) -> bool | None:
    """Return whether a statement of preferences refuses training; ``None`` if it does not say.

    Source:
        draft-ietf-aipref-vocab, section 6: a dictionary of structured fields (RFC 9651); the last
        of several values of a name counts.

    Differs:
        The draft ignores ill-formed statements. Here case and spaces do not matter, ``no`` equals
        ``n``, and a semicolon or a space may replace a comma.
    """
    unquoted = _QUOTED.sub(lambda text: text[1] if text[1] in _ANSWERS else "", statement.lower())
    values = dict(_STATED.findall(unquoted))
    answers = (_ANSWERS.get(values.get(name, "")) for name in _TRAINING)
    return next((answer for answer in answers if answer is not None), None)
