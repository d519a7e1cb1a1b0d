"""Find the encoding that a page's ``<meta>`` tags declare, before its text can be read."""

import re
from collections.abc import Iterator

_UNCONDITIONAL = 1024
_HEAD = frozenset(
    {b"html", b"head", b"meta", b"link", b"base", b"title", b"script", b"noscript", b"style",
     b"object"}
)  # fmt: skip
_HEAD_ENDS = frozenset({b"html", b"head"})
_RAW = frozenset({b"title", b"textarea", b"style", b"iframe", b"xmp", b"noembed", b"noframes"})

# Possessive, and no two branches begin alike: a page of any bytes is read in one pass.
_S = rb"\t\n\f\r "
_ATTRIBUTE = (
    rb"[/%(S)s]*+([^/>%(S)s][^/>=%(S)s]*+)"
    rb"(?:[%(S)s]*+=[%(S)s]*+"
    # The last: a value whose quote never ends takes the rest of the page, the tag's end as well.
    rb"(?:\"([^\"]*+)\"|'([^']*+)'|([^>\"'%(S)s][^>%(S)s]*+|(?=>)|\Z)|[\"'][\s\S]*+))?+"
) % {b"S": _S}
_ATTRIBUTES = re.compile(_ATTRIBUTE)
_TAG = re.compile(
    rb"<(/?)([a-zA-Z][^/>%(S)s]*+)((?:%(A)s)*+)[/%(S)s]*+>" % {b"S": _S, b"A": _ATTRIBUTE}
)
_MARKUP = re.compile(
    rb"<(?:(?P<tag>/?[a-zA-Z])|!--(?:-?>|[\s\S]*?(?:--!?>|\Z))|(?:[!?]|/(?!\Z))[^>]*+(?:>|\Z))"
)
_SCRIPT = re.compile(rb"<!--|-->|<(/?)script(?=[/>%s])" % _S, re.IGNORECASE)
_CONTENT = re.compile(
    rb"charset[\0-\x20]*+=[\0-\x20]*+(?:\"([^\"]*+)\"|'([^']*+)'|([^\"';\0-\x20]++)|)",
    re.IGNORECASE,
)


def declared_labels(content: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield the labels in ``<meta>`` tags, in order, and whether Chromium looks that far.

    Chromium looks at tags which begin in the first 1,024 bytes, and further as long as it sees
    nothing but what belongs into ``<head>``.

    Source:
        WHATWG HTML, "Prescan a byte stream to determine its encoding" and "Extracting a character
        encoding from a meta element".

    Differs:
        Reads tags as Chromium does, which runs its tokenizer where the standard describes a scan of
        its own: a ``<meta>`` in a script, style, title or text area declares nothing, comments
        also end at ``--!>``, a later attribute wins over an earlier one of the same name.
    """
    if not re.search(rb"charset", content, re.IGNORECASE):
        return
    in_head = True
    for start, tag in _tags(content):
        ends, name = bool(tag[1]), tag[2].lower()
        in_reach = in_head or start < _UNCONDITIONAL
        if name == b"meta" and not ends and (label := _label(tag[3])):
            yield label, in_reach
        in_head = in_head and name in _HEAD and not (ends and name in _HEAD_ENDS)


def _tags(content: bytes) -> Iterator[tuple[int, re.Match[bytes]]]:
    """Yield the tags of a page and where they begin; text of scripts, styles and titles has none.

    A tag that never ends is none.
    """
    at = 0
    while markup := _MARKUP.search(content, at):
        at = markup.end()
        if not markup["tag"]:
            continue
        tag = _TAG.match(content, markup.start())
        if tag is None:
            return
        yield markup.start(), tag
        at = tag.end() if tag[1] else _after_text(content, tag[2].lower(), tag.end())


def _after_text(content: bytes, name: bytes, at: int) -> int:
    """Return where tags begin again after the start tag of an element that holds text alone."""
    if name == b"plaintext":
        return len(content)
    if name == b"script":
        return _after_script(content, at)
    if name not in _RAW:
        return at
    end = re.compile(rb"</%s(?=[/>%s])" % (name, _S), re.IGNORECASE).search(content, at)
    return end.start() if end else len(content)


def _after_script(content: bytes, at: int) -> int:
    """Return where a script's end tag begins; in ``<!-- <script>`` an end tag ends the inner one.

    Source:
        WHATWG HTML, "Script data escaped state" and "Script data double escaped state".
    """
    escaped = nested = False
    while found := _SCRIPT.search(content, at):
        at = found.end()
        if found[0] == b"<!--":
            escaped, at = True, at - 2  # these two hyphens can begin the "-->"
        elif found[0] == b"-->":
            escaped = nested = False
        elif not found[1]:
            nested = escaped
        elif nested:
            nested = False
        else:
            return found.start()
    return len(content)


def _label(attributes: bytes) -> bytes | None:
    """Return the label that the attributes of a ``<meta>`` declare."""
    charset = content = None
    pragma = False
    for found in _ATTRIBUTES.finditer(attributes):
        name = found[1].lower()
        value = found[2] or found[3] or found[4] or b""
        if name == b"http-equiv":
            pragma = pragma or value.lower() == b"content-type"
        elif name == b"charset":
            charset = value
        elif name == b"content":
            content = _of_content(value) or content
    label = charset if charset is not None else content if pragma else None
    return label.strip() if label else None


def _of_content(value: bytes) -> bytes | None:
    """Return the label in a content type; a quote that never ends makes it none."""
    found = _CONTENT.search(value)
    return (found[1] or found[2] or found[3]) if found else None
