"""Take the tutorial's pictures: a report, some of its pairs, and a board.

python docs/figures/tutorial.py FOLDER docs/figures    # in FOLDER the tutorial's commands were run
"""

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from now_builder.machine.chromium import find_chromium


def main() -> None:
    """Take the pictures; arguments are the tutorial's folder and the output folder."""
    folder, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium())
        page = browser.new_page(
            viewport={"width": 1000, "height": 740},
            reduced_motion="reduce",  # scroll at once
        )
        page.goto((folder / "report.html").as_uri())
        page.screenshot(path=out / "report.png")
        page.evaluate("document.querySelector('#pairs').scrollIntoView()")
        page.wait_for_timeout(2000)  # pictures are drawn once they are near
        page.screenshot(path=out / "report-pairs.png")
        page.set_viewport_size({"width": 1000, "height": 1000})
        page.goto((folder / "site/boards/bert.html").as_uri())
        page.screenshot(path=out / "board.png")
        browser.close()


if __name__ == "__main__":
    main()
