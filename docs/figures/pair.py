"""Draw the picture of the README: a matched and a mismatched pair with page elements.

now-builder simweb make web --pages 60 --sites 10 --awkward 0 --languages en --languages zh
now-builder simweb serve web --port 8765 &
now-builder crawl web/urls.txt captures --allow-private --resolve '*.test:127.0.0.1:8765'
python docs/figures/pair.py captures web/truth.parquet docs/figures/pair.png
"""

import base64
import html
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from playwright.sync_api import sync_playwright

from now_builder.formats.shard import HEIGHT, WIDTH, Capture, Element, read_captures, read_rows
from now_builder.machine.chromium import find_chromium

TAGS = {"img", "canvas", "svg", "h1", "h2", "h3", "p", "a", "button", "input", "li"}
REGIONS = 36
STYLE = """
body{margin:0;padding:28px;display:flex;gap:28px;width:1104px;background:#fff;
     font:17px/1.5 'Noto Sans','Noto Sans CJK SC',sans-serif;color:#1d2330}
section{flex:1;display:flex;gap:20px}
.screen{position:relative;flex:none;width:288px;height:512px;overflow:hidden;
        border:1px solid #b9c0cc}
.screen img{width:288px}.screen i{position:absolute;border:1.5px solid #d6006c;border-radius:2px}
b{display:block;font-size:13px;letter-spacing:.04em;text-transform:uppercase;color:#5a6475}
p{margin:2px 0 22px}.yes{color:#0a7a3d}.no{color:#c02020}.verdict{font-weight:700;font-size:21px}
"""


def regions(capture: Capture) -> Iterator[Element]:
    """Yield visible elements of the first screen that are large enough for a detector."""
    for element in capture.elements:
        left, top, right, bottom = element.box
        wide, high = right - left, bottom - top
        if element.tag in TAGS and element.visible and wide >= 24 and 16 <= high < HEIGHT / 2:
            yield element


def panel(capture: Capture, caption: str, *, matched: bool) -> str:
    """Return the HTML of one pair."""
    picture = base64.b64encode(capture.screenshot).decode()
    scale = 288 / WIDTH
    outlines = "".join(
        f'<i style="left:{x0 * scale:.1f}px;top:{y0 * scale:.1f}px;'
        f'width:{(x1 - x0) * scale:.1f}px;height:{(y1 - y0) * scale:.1f}px"></i>'
        for x0, y0, x1, y1 in [element.box for element in regions(capture)][:REGIONS]
    )
    verdict = "matched" if matched else "mismatched"
    colour = "yes" if matched else "no"
    return (
        f'<section><div class="screen"><img src="data:image/png;base64,{picture}">{outlines}</div>'
        f"<div><b>Screenshot</b><p>720 × 1280 px, 36 regions of 768 numbers</p>"
        f"<b>Meta description</b><p>{html.escape(caption)}</p>"
        f'<b>Truth</b><p class="verdict {colour}">{verdict}</p></div></section>'
    )


def main(captures: Path, truth: Path, output: Path) -> None:
    """Draw the first matched and the first mismatched pair in English."""
    with truth.open("rb") as file:
        truths = pd.read_parquet(file).set_index("url")
    rows = {row.key: row for row in read_rows(captures)}
    pages: dict[bool, str] = {}
    for capture in read_captures(captures):
        row = rows[capture.key]
        matched = bool(truths.loc[row.url, "matched"])
        if truths.loc[row.url, "lang"] == "en" and row.caption and matched not in pages:
            pages[matched] = panel(capture, row.caption, matched=matched)
    text = f"<!doctype html><meta charset=utf-8><style>{STYLE}</style>{pages[True]}{pages[False]}"
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1160, "height": 570})
        page.set_content(text)
        page.screenshot(path=output, full_page=True)
        browser.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
