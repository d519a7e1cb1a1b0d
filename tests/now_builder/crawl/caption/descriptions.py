"""Read ``descriptions.toml``: odd pages with the caption, source and encoding expected of each."""

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.now_builder.crawl.cases import read_cases

UTF8 = "text/html; charset=utf-8"
CHINESE = "中文网页"


@dataclass(frozen=True, slots=True)
class Case:
    """A page and its expected description.

    Attributes:
        source: Expected source of the caption; ``None`` where there is no caption.
        charset: Expected encoding, ``None`` if it does not matter.
        header: Content type as served.
        judge: Whether Chromium is asked about the page too.
    """

    content: bytes
    caption: str | None
    source: str | None = "name"
    charset: str | None = "utf-8"
    header: str | None = UTF8
    judge: bool = True


def named(text: str) -> str:
    return f'<meta name="description" content="{text}">'


def _browser(data: dict) -> Iterator[tuple[str, Case]]:
    for group, cases in data["browser"].items():
        for name, (html, *caption) in cases.items():
            texts = [text.strip() for text in caption] or [None]
            content = html.encode()
            yield f"{group}: {name}", Case(content, texts[0], "name" if caption else None)


def _ours(data: dict) -> Iterator[tuple[str, Case]]:
    script = '<script type="application/ld+json">'
    og = "<meta property=og:description content=o>"
    cases = (
        data["ours"]
        | {f"{name} is empty": [named(x) + og, "o", "og"] for name, x in data["invisible"].items()}
        | {
            f"JSON-LD {name}": [f"{script}{block}</script>", *(text and [*text, "json-ld"])]
            for name, (block, *text) in data["json-ld"].items()
        }
    )
    for name, (html, *expected) in cases.items():
        caption, source = expected or (None, None)
        yield f"ours: {name}", Case(html.encode(), caption, source, judge=False)


def _labelled(data: dict) -> Iterator[tuple[str, Case]]:
    """Encodings that the header, or a tag of one form or the other, names in turn."""
    ways = (
        ("", "text/html; charset={}"),
        ('<meta charset="{}">', "text/html"),
        ("<meta http-equiv=content-type content='text/html;charset={}'>", "text/html"),
    )
    for number, (label, (codec, text, charset)) in enumerate(data["labels"].items()):
        declaration, header = (part.format(label) for part in ways[number % 3])
        caption = unicodedata.normalize("NFC", text)
        content = f"<html><head>{declaration}{named(text)}<title>t</title></head>".encode(codec)
        yield f"label {label}", Case(content, caption, charset=charset, header=header)


def _encoded(cases: dict[str, dict]) -> Iterator[tuple[str, Case]]:
    for name, case in cases.items():
        caption = case.get("caption", CHINESE) or None
        yield (
            name,
            Case(
                case["page"].encode(case.get("codec", "gbk")), caption,
                "name" if caption else None, case.get("charset", "gbk") or None,
                case.get("header", "text/html") or None, case.get("judge", True),
            ),
        )  # fmt: skip


def _read() -> dict[str, Case]:
    data = read_cases(Path(__file__).with_suffix(".toml"))
    encoded = data["declared"] | data["undeclared"]
    return dict([*_browser(data), *_ours(data), *_labelled(data), *_encoded(encoded)])


CASES = _read()
