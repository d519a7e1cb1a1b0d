"""The commands that the documentation shows."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HOW_TO = sorted((DOCS / "how-to").glob("*.md"))
PAGES = [
    ROOT / "README.md",
    *HOW_TO,
    *(DOCS / f"{name}.md" for name in ("tutorial", "board", "new-method", "results-repository")),
    *(DOCS / f"{name}.md" for name in ("commands", "tiny-web", "gpu")),
]
MAINS = {
    "now-builder": "now_builder.cli",
    "pc2-baseline": "pc2_baseline.cli",
    "now-leaderboard": "leaderboard.cli",
}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LAUNCHED = re.compile(r".*--wrap '(.*)'$")
CALL = re.compile(rf"(?:^| )((?:{'|'.join(MAINS)}) .*?)(?: &)?$")


def lines(page: Path) -> list[str]:
    """Return the lines of a page's shell blocks, in order, without comments."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = [block for language, block in FENCE.findall(text) if language in {"", "sh"}]
    found = [re.sub(r"(^|\s)#.*", "", line) for block in blocks for line in block.split("\n")]
    return [" ".join(line.split()) for line in found if line.strip()]


def commands(page: Path) -> list[str]:
    """Return our programs' calls on a page: on lines, in what launches them, and amid the text."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]
    told = [LAUNCHED.sub(r"\1", line) for line in [*lines(page), *spans]]
    return [found[1] for line in told if (found := CALL.search(line))]
