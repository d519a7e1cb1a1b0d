"""Captures as a folder of pictures with their labels in COCO JSON: carried anywhere, no Parquet.

python -m benchmarks.gpu.screenshots CAPTURES FOLDER
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

from now_builder.detect.labels.coco import CocoWriter, scratch
from now_builder.detect.labels.elements import label
from now_builder.detect.labels.mapping import DEFAULT
from now_builder.formats.shard import Capture, read_captures, read_rows

LABELS = "labels.json"


def write_screenshots(pages: Iterable[tuple[str, Capture]], folder: Path) -> int:
    """Write pages that have labels, and last their COCO file; give their number.

    Args:
        pages: The site and the capture of each.
        folder: Made if it is not there.
    """
    (folder / "pages").mkdir(parents=True, exist_ok=True)
    count = 0
    with scratch(folder) as images, scratch(folder) as annotations:
        draft = CocoWriter(images, annotations, DEFAULT)
        for site, capture in pages:
            labels = label(capture.elements, DEFAULT)
            if labels is None or not labels.boxes:
                continue
            name = f"pages/{capture.key}.{capture.extension}"
            (folder / name).write_bytes(capture.screenshot)
            draft.add(name, labels, site=site)
            count += 1
        draft.write(folder / LABELS, {"description": "Labelled pages of the simulated web"})
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("captures", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    sites = {row.key: row.site for row in read_rows(options.captures)}
    pages = ((sites[capture.key], capture) for capture in read_captures(options.captures))
    print(f"{write_screenshots(pages, options.folder)} labelled pages")


if __name__ == "__main__":
    main()
