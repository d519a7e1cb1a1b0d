"""Print the shares of equal captions and screenshots of two crawls, and the pages that differ."""

import argparse
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from now_builder.formats.shard import read_captures, read_rows


def screenshots(captures: Path, keys: pd.Series) -> list[np.ndarray]:
    """Return the pixels of some pages' screenshots, in the order of their keys."""
    files = {one.key: one.screenshot for one in read_captures(captures) if one.key in {*keys}}
    return [np.asarray(Image.open(BytesIO(files[key])).convert("RGB")) for key in keys]


def main() -> None:
    """Compare statuses, captions and screenshots of the URLs that both crawls have."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    options = parser.parse_args()
    one, other = (pd.DataFrame([*read_rows(path)]) for path in (options.first, options.second))
    pages = one.merge(other, on="url", suffixes=("", "_2")).sort_values("url")
    status = pages[pages.status != pages.status_2]
    caption = pages[pages.caption.fillna("") != pages.caption_2.fillna("")]
    ok = pages[(pages.status == "ok") & (pages.status_2 == "ok")].assign(pixels=1.0)
    unlike = ok.index[ok.sha256 != ok.sha256_2]
    left = screenshots(options.first, ok.loc[unlike, "key"])
    right = screenshots(options.second, ok.loc[unlike, "key_2"])
    ok.loc[unlike, "pixels"] = [
        float((a == b).all(-1).mean()) for a, b in zip(left, right, strict=True)
    ]
    for row in status.itertuples():
        print(f"status {row.status} {row.status_2} {row.url}")
    for url in caption.url:
        print(f"caption {url}")
    for row in ok[ok.pixels < 1].itertuples():
        print(f"pixels {row.pixels:.4f} {row.load_state} {row.load_state_2} {row.url}")
    print(f"{len(pages)} pages in both, {len(status)} with another status")
    if len(ok):
        same = int((ok.pixels == 1).sum())
        print(f"captions the same: {1 - len(caption) / len(pages):.2%}")
        print(f"screenshots the same: {same} of {len(ok)}, {same / len(ok):.2%}")
        print(f"pixels the same: {ok.pixels.mean():.3%}")


if __name__ == "__main__":
    main()
