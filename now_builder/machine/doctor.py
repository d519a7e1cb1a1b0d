"""Check the requirements of the stages on this machine and name the command that installs them."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from now_builder.machine.chromium import find_chromium
from now_builder.machine.tessdata import debian_package, find_tessdata
from now_builder.program.missing_package import INSTALL_DETECTRON2, install_extra

_PROBE_S = 60


@dataclass(frozen=True, slots=True)
class Finding:
    """The state of one requirement of a stage.

    Attributes:
        found: Whether it is installed and works.
        detail: Version and path, or the effect of its absence.
        remedy: How to install it; by default the Debian package.
        package: Debian package that contains it.
        needed: Whether the crawl requires it.
    """

    name: str
    found: bool
    detail: str
    remedy: str = ""
    package: str = ""
    needed: bool = False

    def __str__(self) -> str:
        state = "ok     " if self.found else "MISSING" if self.needed else "absent "
        remedy = self.remedy or (f"apt install {self.package}" if self.package else "")
        end = f"; {remedy}" if remedy and not self.found else ""
        return f"{state} {self.name}: {self.detail}{end}"


_SCRIPTS = (
    ("Chinese glyphs", "中", True, "fonts-noto-cjk"),
    ("Japanese glyphs", "か", True, "fonts-noto-cjk"),
    ("Korean glyphs", "한", True, "fonts-noto-cjk"),
    ("Arabic glyphs", "ع", False, "fonts-noto-core"),
    ("Hindi glyphs", "क", False, "fonts-noto-core"),
    ("Bengali glyphs", "ক", False, "fonts-noto-core"),
    ("Tamil glyphs", "க", False, "fonts-noto-core"),
    ("Thai glyphs", "ก", False, "fonts-noto-core"),
    ("Emoji", "🍜", False, "fonts-noto-color-emoji"),
)
"""Scripts of web pages: name, sample, whether the crawl requires it, Debian package."""

_PYTHON = (
    ("playwright", "crawl", True, install_extra("crawl")),
    ("torch", "detect and pc2-baseline", False, install_extra("detect,baseline")),
    ("jieba", "tokenize", False, install_extra("tokenize")),
    ("tokenizers", "tokenize", False, install_extra("tokenize")),
    ("transformers", "tokenize and detect", False, install_extra("tokenize")),
    ("tesserocr", "detect --text-source ocr", False, install_extra("ocr")),
    ("detectron2", "an optional detector", False, INSTALL_DETECTRON2),
)

GPU = "GPU"
"""Name of the finding about the GPU."""

_OCR_LANGUAGES = (("chi_sim", "Chinese"), ("eng", "English"))
"""Default languages of `detect --text-source ocr`."""

_PROBE = """<meta charset=utf-8><body><script>
const draw = (text) => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 48;
  const pen = canvas.getContext("2d");
  pen.font = "32px sans-serif";
  pen.fillText(text, 4, 36);
  return canvas.toDataURL();
};
const missing = [draw("\\u{10FFFE}"), draw("\\uFFFE"), draw("\\u{EFFFE}"), draw("")];
document.body.textContent = "BEGIN" + JSON.stringify(
  SAMPLES.map((sample) => !missing.includes(draw(sample)))) + "END";
</script>"""


def check() -> list[Finding]:
    """Check for Chromium, glyphs, data of OCR and NLTK, Python packages and a GPU."""
    path = find_chromium()
    browser = _check_chromium(path)
    glyphs = _drawn(path) if path is not None and browser.found else None
    driver = [_check_driver()] if find_spec("playwright") else []
    ocr = [_check_ocr(language, name) for language, name in _OCR_LANGUAGES]
    python = [_check_python(*package) for package in _PYTHON]
    return [browser, *driver, *_check_glyphs(glyphs), *ocr, *python, _check_punkt(), _check_gpu()]


def install_command(findings: Sequence[Finding]) -> str:
    """Return the Debian command that installs missing packages; empty if no package would help."""
    packages = {finding.package for finding in findings if not finding.found} - {""}
    command = ["sudo apt-get install --yes --no-install-recommends", *sorted(packages)]
    return " ".join(command) if packages else ""


def _check_chromium(path: Path | None) -> Finding:
    runs, detail = False, "none"
    if path is not None:
        try:
            detail = f"{_output([path, '--version']).strip()} at {path}"
            runs = True
        except (OSError, subprocess.SubprocessError) as error:
            detail = f"{path} does not run ({error})"
    remedy = "apt install chromium-headless-shell, or playwright install chromium --only-shell"
    return Finding("Chromium", runs, detail, remedy, "chromium-headless-shell", needed=True)


def _check_driver() -> Finding:
    """Start Playwright's driver, which may lack a library."""
    name = "Playwright's driver"
    try:
        detail = _output([sys.executable, "-m", "playwright", "--version"]).strip()
    except (OSError, subprocess.SubprocessError) as error:
        problem = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1]
        detail = f"does not run ({problem:.200})"
        # A minimal Debian has every other library that the driver needs.
        package = "libatomic1" if "libatomic" in problem else ""
        remedy = "" if package else "install the library in the message"
        return Finding(name, False, detail, remedy, package, needed=True)  # noqa: FBT003
    return Finding(name, True, detail, needed=True)  # noqa: FBT003


def _check_glyphs(drawn: Sequence[bool] | None) -> list[Finding]:
    findings = []
    for number, (name, sample, needed, package) in enumerate(_SCRIPTS):
        has_glyph = drawn is not None and drawn[number]
        detail = "drawn" if has_glyph else f"{sample} shows as an empty box in screenshots"
        if drawn is None:
            detail = "cannot be checked without Chromium"
        findings.append(Finding(name, has_glyph, detail, package=package, needed=needed))
    return findings


def _check_ocr(language: str, name: str) -> Finding:
    folder, package = find_tessdata([language]), debian_package(language)
    detail = f"{language}.traineddata in {folder}"
    if folder is None:
        detail = f"no {language}.traineddata; detect --text-source ocr uses it"
    return Finding(f"OCR of {name}", folder is not None, detail, package=package)


def _check_python(module: str, stage: str, needed: bool, remedy: str) -> Finding:  # noqa: FBT001
    is_installed = find_spec(module) is not None
    detail = f"for {stage}" if is_installed else f"not installed; {stage} uses it"
    return Finding(f"python {module}", is_installed, detail, remedy, needed=needed)


def _check_punkt() -> Finding:
    """Look for the data that NLTK uses to split captions into words, without importing NLTK."""
    remedy = "python -m nltk.downloader punkt_tab"
    paths = filter(None, os.environ.get("NLTK_DATA", "").split(os.pathsep))
    roots = [Path(root) for root in (sys.prefix, "/usr", "/usr/local")]
    folders = [*map(Path, paths), Path.home() / "nltk_data"]
    folders += [root / part / "nltk_data" for root in roots for part in ("share", "lib")]
    for folder in folders:
        path = folder / "tokenizers" / "punkt_tab"
        if path.is_dir() or path.with_suffix(".zip").is_file():
            return Finding("NLTK's punkt", found=True, detail=f"at {path}")
    detail = "none; it splits Flickr30K, MS-COCO and CC152K into words"
    return Finding("NLTK's punkt", found=False, detail=detail, remedy=remedy)


def _check_gpu() -> Finding:
    """Query the NVIDIA driver, which torch requires too."""
    if shutil.which("nvidia-smi") is None:
        detail = "no NVIDIA driver; detect and train run on the CPU"
        return Finding(GPU, found=False, detail=detail)
    query = "--query-gpu=name,memory.total,driver_version"
    try:
        answer = _output(["nvidia-smi", query, "--format=csv,noheader"])
    except (OSError, subprocess.SubprocessError) as error:
        detail = " ".join(f"the driver does not answer ({error})".split())
        return Finding(GPU, found=False, detail=detail, remedy="reinstall the driver")
    cards = [line.strip() for line in answer.splitlines() if line.strip()]
    if not cards:
        return Finding(GPU, found=False, detail="a driver, and no GPU")
    return Finding(GPU, found=True, detail=f"{len(cards)} x {cards[0]} (driver last)")


def _drawn(chromium: Path) -> list[bool] | None:
    """Draw a sample of each script in Chromium; return whether each one has a glyph."""
    samples = json.dumps([sample for _, sample, _, _ in _SCRIPTS], ensure_ascii=False)
    page = "data:text/html;charset=utf-8," + quote(_PROBE.replace("SAMPLES", samples))
    command = [str(chromium), "--headless", "--disable-gpu", "--dump-dom", page]
    if os.geteuid() == 0:
        command.insert(1, "--no-sandbox")
    try:
        # The document also contains the text of the script; the answer comes last.
        answer = _output(command).rpartition("BEGIN[")[2].partition("]END")[0]
        drawn = json.loads(f"[{answer}]")
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return drawn if len(drawn) == len(_SCRIPTS) else None


def _output(command: Sequence[str | Path]) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=_PROBE_S, check=True
    ).stdout
