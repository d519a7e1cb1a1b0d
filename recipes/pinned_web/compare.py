"""Print how alike two crawls of one list are, and the pages that differ.

PYTHONPATH=. python -m recipes.pinned_web.compare captures-of-one-day captures-of-another
"""

import argparse
from collections.abc import Collection
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from now_builder.formats.shard import CaptureRow, read_captures, read_rows


def pixels(content: bytes) -> np.ndarray:
    """Return the pixels of a screenshot."""
    return np.asarray(Image.open(BytesIO(content)).convert("RGB"))


def captured(captures: Path) -> dict[str, CaptureRow]:
    """Return the rows of a crawl by URL."""
    return {row.url: row for row in read_rows(captures)}


def screenshots(
    captures: Path, rows: dict[str, CaptureRow], urls: Collection[str]
) -> dict[str, bytes]:
    """Return the screenshots of some URLs as they are stored."""
    keys = {rows[url].key: url for url in urls}
    return {keys[one.key]: one.screenshot for one in read_captures(captures) if one.key in keys}


def main() -> None:
    """Compare statuses, captions and screenshots of the URLs that both crawls have."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    options = parser.parse_args()
    first, second = captured(options.first), captured(options.second)
    urls = sorted(first.keys() & second.keys())
    both = [url for url in urls if first[url].status == second[url].status == "ok"]
    unlike = [url for url in both if first[url].sha256 != second[url].sha256]
    shots = screenshots(options.first, first, unlike)
    share = dict.fromkeys(both, 1.0)
    for url, right in screenshots(options.second, second, unlike).items():
        same = pixels(shots[url]) == pixels(right)
        share[url] = float(same.all(-1).mean())
    captions = [url for url in urls if first[url].caption != second[url].caption]
    statuses = [url for url in urls if first[url].status != second[url].status]
    alike = sum(part == 1 for part in share.values())
    for url in statuses:
        print(f"status {first[url].status} {second[url].status} {url}")
    for url in captions:
        print(f"caption {url}")
    for url, part in share.items():
        if part < 1:
            print(f"pixels {part:.4f} {first[url].load_state} {second[url].load_state} {url}")
    print(f"{len(urls)} pages in both, {len(statuses)} with another status")
    if both:
        print(f"captions the same: {1 - len(captions) / len(urls):.2%}")
        print(f"screenshots the same: {alike} of {len(both)}, {alike / len(both):.2%}")
        print(f"pixels the same: {np.mean(list(share.values())):.3%}")


if __name__ == "__main__":
    main()
