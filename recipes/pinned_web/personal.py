"""List personal data in captions and on first screens, for a person to check."""

import argparse
import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from urllib.parse import urlsplit

from now_builder.formats.io import read_lines
from now_builder.formats.shard import read_plan, stream_elements, stream_rows
from now_builder.formats.tables import write_csv
from now_builder.formats.text import decode_entities
from now_builder.package.flags import personal_data
from now_builder.pinned.sites import read_made
from recipes.pinned_web.look import read_page

_KEPT = Path(__file__).with_name("personal.csv")
_UNSEEN = "below the first screen"
"""Reason that allows hits in the text of a page, but not on its first screen."""
_START = 2000  # characters of a page's text that its first screen may show
_AROUND = 60

Text = tuple[str, str, str, str]
"""URL and language of a page, ``host``, ``caption``, ``screen`` or ``text``, and that text."""


@dataclass(frozen=True, slots=True)
class Hit:
    """An e-mail address, telephone or ID number, with the text around it."""

    url: str
    where: str
    kind: str
    text: str
    around: str


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the hits that no row of ``personal.csv`` allows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="captures, or a folder made by pinned make")
    parser.add_argument(
        "out", type=Path, help="CSV to write; it has the personal data, so do not publish it"
    )
    options = parser.parse_args(arguments)
    is_web = (options.source / "urls.txt").exists()
    hits = find((read_texts if is_web else read_screens)(options.source))
    write_csv(options.out, (field.name for field in fields(Hit)), map(astuple, hits))
    sites = count_by_site(hits)
    print(f"{options.out}: {len(hits)} hits on {len(sites)} sites to check")


def find(texts: Iterable[Text]) -> list[Hit]:
    """Return each hit of a page once, except those that ``personal.csv`` allows."""
    with _KEPT.open(encoding="utf-8", newline="") as file:
        why = {(row["host"], row["kind"]): row["why"] for row in csv.DictReader(file)}
    hits: dict[tuple[str, str], Hit] = {}
    for url, lang, where, encoded in texts:
        host, text = urlsplit(url).netloc, decode_entities(encoded)
        for kind, match in personal_data(text, host, lang):
            if why.get((host, kind)) in {None, *([] if where == "text" else [_UNSEEN])}:
                start = text.find(match)
                around = text[max(0, start - _AROUND) : start + len(match) + _AROUND]
                hits.setdefault((url, match), Hit(url, where, kind, match, around))
    return [*hits.values()]


def count_by_site(hits: Iterable[Hit]) -> Mapping[str, int]:
    """Return the number of hits by host."""
    return Counter(urlsplit(hit.url).netloc for hit in hits)


def read_screens(captures: Path) -> Iterator[Text]:
    """Yield the captions and the texts of the first screens of a crawl."""
    rows = {row.key: row for row in stream_rows(captures) if row.status == "ok"}
    for row in rows.values():
        yield row.url, row.lang or "", "host", row.site.replace(".", " ")
        yield row.url, row.lang or "", "caption", row.caption or ""
    shards = sorted({line.shard for line in read_plan(captures) if line.key in rows})
    for key, elements in stream_elements(captures, frozenset(rows), shards):
        seen = " ".join(one.text for one in elements if one.visible and one.text)
        yield rows[key].url, rows[key].lang or "", "screen", seen


def read_texts(web: Path) -> Iterator[Text]:
    """Yield captions and beginnings of texts of a pinned web's pages, without a browser."""
    languages = {site.host: site.language for site in read_made(web)}
    for url in read_lines(web / "urls.txt", "file not found"):
        place = urlsplit(url)
        page = read_page(web / place.netloc, place.path, ())
        lang = languages[place.netloc]
        yield url, lang, "host", place.netloc.replace(".", " ")
        yield url, lang, "caption", page.about.caption or ""
        yield url, lang, "text", page.text[:_START]


if __name__ == "__main__":
    main()
