"""The commands that the documentation shows."""

import re
import shlex
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HOW_TO = sorted((DOCS / "how-to").glob("*.md"))
PAGES = [
    ROOT / "README.md",
    *HOW_TO,
    *(DOCS / f"{name}.md" for name in ("tutorial", "new-method", "results-repository")),
    *(DOCS / f"{name}.md" for name in ("commands", "tiny-web", "gpu", "pinned-web")),
]
MAINS = {
    "now-builder": "now_builder.cli",
    "pc2-baseline": "pc2_baseline.cli",
    "now-leaderboard": "leaderboard.cli",
}
ONLY_PARSED = {
    r"sbatch": "needs Slurm",
    r"torchrun": "two processes: tests/pc2_baseline/test_process_groups.py",
    r"--engine ray": "needs a cluster: tests/now_builder/crawl/test_dispatch.py",
    r"cuda": "needs a GPU; `make gpu-check` rehearses on the CPU",
    r"--config clip": "downloads a model; tests/pc2_baseline/runs/test_pixels.py has a small one",
    r"builder ocr captures": "tests/now_builder/detect/test_read_screens.py",
    r"hf:|google/": "downloads a model; tests/pc2_baseline/runs/test_zero_shot.py has a small one",
    r"detectron2:": "detectron2 is on no registry: make test-detectron2",
    r"leaderboard withdraw": "needs the name of an entry: tests/leaderboard/test_cli.py",
    r"now-builder doctor": "looks at the whole machine: tests/now_builder/machine/test_doctor.py",
    r"builder audit release": "served for a person: tests/now_builder/inspect/test_audit.py",
    r"--stats truth|--suspects": "no captures there: tests/now_builder/inspect/test_audit.py",
    r"fetch-now|builder publish": "needs the hub: tests/now_builder/hub has a small one",
    r"^python ": "the page's own program, run by the page's test",
    r"builder pinned|--only '\*": "fetches from GitHub: tests/now_builder/pinned has a small web",
    r"noise_index/": "the field's data: tests/pc2_baseline/data/test_noise.py has small ones",
    r"gpu.check": "tests/benchmarks/test_gpu_check.py",
}
"""Commands that no test of the documentation runs, and why; their options are checked."""
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


def runnable(page: Path) -> list[str]:
    """Return the lines of a page's shell blocks that a test runs."""
    return [line for line in lines(page) if not any(re.search(item, line) for item in ONLY_PARSED)]


def command(program: str, *arguments: str | Path) -> list[str]:
    """Return a call of a program for another process, whether or not it is installed."""
    code = f"from {MAINS[program]} import main; main()"
    return [sys.executable, "-c", code, *map(str, arguments)]


def run(line: str, smaller: dict[str, str]) -> None:
    """Run a command in this process with the options of each pattern that it has."""
    more = " ".join(options for pattern, options in smaller.items() if re.search(pattern, line))
    program, *rest = shlex.split(f"{line} {more}".replace("~", str(Path.home())))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [program, *rest])
        with pytest.raises(SystemExit) as ended:
            import_module(MAINS[program]).main()
    assert ended.value.code in {0, None}, line
