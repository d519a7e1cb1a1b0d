"""Rewrite the counts and pictures of docs/pinned-web.md, from the list and a crawl of it.

python docs/figures/pinned.py pinned-web/captures
"""

import csv
import hashlib
import io
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from PIL import Image

from now_builder.formats.io import write_text
from now_builder.formats.shard import CaptureRow, read_captures, read_rows
from now_builder.package.licences import is_free
from now_builder.pinned.sites import LIST, Site, read_sites

PAGE = Path(__file__).parents[1] / "pinned-web.md"
PICTURES = Path(__file__).with_name("pinned")
JUDGED = LIST.with_name("judged.csv")
BEGIN, END = "<!-- docs/figures/pinned.py writes from here -->", "<!-- to here -->"
SHOWN = 6
FEWEST = 10
"""Sites of a language that has a figure of its own."""
SIZE = (225, 400)
MOST_BYTES = 25_000
_SIGNS = re.compile(r"[\[\]|<>&*_`~\\]")
"""Characters with a meaning in Markdown."""

Judged = Mapping[str, Mapping[str, str]]


def counts(sites: Sequence[Site]) -> Iterator[str]:
    """Yield the numbers of sites and pages by language, kind and licence."""
    owners = {site.repository.partition("/")[0].lower() for site in sites}
    pages = sum(site.pages for site in sites)
    size = sum(site.size for site in sites) / 1e9
    yield f"{len(sites):,} sites of {len(owners):,} owners, {pages:,} pages, {size:.1f} GB."
    yield "\n| by | sites (pages) |\n|---|---|"
    for what in ("language", "kind", "licence"):
        numbers, listed = Counter[str](), Counter[str]()
        for site in sites:
            numbers[getattr(site, what)] += 1
            listed[getattr(site, what)] += site.pages
        ranked = numbers.most_common()
        rare = [name for name, sites_of in ranked if what == "language" and sites_of < FEWEST]
        cells = [f"{name} {n} ({listed[name]:,})" for name, n in ranked if name not in rare]
        if rare:
            sums = (sum(counter[name] for name in rare) for counter in (numbers, listed))
            cells.append("{} others {} ({:,})".format(len(rare), *sums))
        yield f"| {what} | {', '.join(cells)} |"


def noise(judged: Judged) -> Iterator[str]:
    """Yield the share of mismatched pairs and their kinds, from the verdicts."""
    yield "\n## Noise\n"
    if not judged:
        yield "No pair has been judged yet."
        return
    drawn = [row for row in judged.values() if row["drawn"] == "all"]
    verdicts = Counter(row["verdict"] for row in drawn)
    decided = verdicts["match"] + verdicts["mismatch"]
    share = verdicts["mismatch"] / decided
    error = 1.96 * (share * (1 - share) / decided) ** 0.5
    share_text = f"{share:.0%} ± {error:.0%} do not match"
    yield f"One model's verdicts: of {decided} [pairs drawn from all](#judged-pairs) {share_text}."
    kinds = Counter(row["kind"] for row in drawn if row["verdict"] == "mismatch")
    yield f"Kinds: {', '.join(f'{kind} {number}' for kind, number in kinds.most_common())}."


def shown(
    sites: Sequence[Site], rows: Iterable[CaptureRow], judged: Judged
) -> list[tuple[Site, CaptureRow]]:
    """Choose one page of each site with free texts: judged pages first, in many languages."""
    free = {
        site.host: site
        for site in sites
        if is_free(site.licence) and (site.licence.startswith("CC") or site.kind == "documentation")
    }  # elsewhere an MIT or Apache licence may be that of the code alone
    pages: dict[str, CaptureRow] = {}
    for row in sorted(rows, key=lambda row: _order(row.url, judged)):
        if row.status == "ok" and row.caption and row.site in free:
            pages.setdefault(row.site, row)
    seen = Counter[str]()
    chosen = []
    for host, row in pages.items():
        seen[free[host].language] += 1
        chosen.append((row.url not in judged, seen[free[host].language], free[host], row))
    return [(site, row) for *_, site, row in sorted(chosen, key=lambda one: one[:2])[:SHOWN]]


def _order(url: str, judged: Judged) -> tuple[bool, bytes]:
    return url not in judged, hashlib.sha256(url.encode()).digest()


def picture(screenshot: bytes) -> bytes:
    """Return a small WebP picture of a screenshot."""
    with Image.open(io.BytesIO(screenshot)) as image:
        small = image.convert("RGB").resize(SIZE, Image.Resampling.LANCZOS)
    for quality in range(80, 0, -10):
        file = io.BytesIO()
        small.save(file, "webp", quality=quality, method=6)
        if file.tell() <= MOST_BYTES:
            break
    return file.getvalue()


def gallery(captures: Path, sites: Sequence[Site], judged: Judged) -> Iterator[str]:
    """Write the pictures; yield a table of them with captions, verdicts and sources."""
    chosen = shown(sites, read_rows(captures), judged)
    keys = {row.key: place for place, (_, row) in enumerate(chosen, 1)}
    PICTURES.mkdir(exist_ok=True)
    for old in PICTURES.glob("*.webp"):
        old.unlink()
    for capture in read_captures(captures):
        if place := keys.get(capture.key):
            (PICTURES / f"{place}.webp").write_bytes(picture(capture.screenshot))
    yield f"\n## {len(chosen)} of its pages\n"
    yield "Their licences let others show them. They are smaller here, otherwise unchanged.\n"
    yield "| screenshot | caption | verdict | site |"
    yield "|---|---|---|---|"
    for site, row in chosen:
        verdict = judged.get(row.url, {"verdict": "", "kind": ""})
        cells = (
            f"![Page of {site.host}](figures/pinned/{keys[row.key]}.webp)",
            _SIGNS.sub(lambda sign: f"&#{ord(sign[0])};", row.caption or ""),
            f"{verdict['verdict']} {verdict['kind']}".strip(),
            (
                f"{site.kind}, {site.language}: [{site.repository} at {site.commit[:8]}]"
                f"(https://github.com/{site.repository}/tree/{site.commit[:12]}), {site.licence}"
            ),
        )
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Rewrite the page from the crawl in the folder that the command line names."""
    sites = read_sites()
    judged: Judged = {}
    if JUDGED.is_file():
        with JUDGED.open(encoding="utf-8", newline="") as file:
            judged = {row["url"]: row for row in csv.DictReader(file)}
    lines = [*counts(sites), *noise(judged), *gallery(Path(sys.argv[1]), sites, judged)]
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    write_text(PAGE, "\n".join([before + BEGIN, "", *lines, "", END]) + after)


if __name__ == "__main__":
    main()
