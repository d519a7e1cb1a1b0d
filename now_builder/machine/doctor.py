"""Check what the stages need on this machine, and install it where that is allowed."""

import json
import logging
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

_log = logging.getLogger(__name__)

_PROBE_S = 60
_INSTALL_S = 1800


@dataclass(frozen=True, slots=True)
class Finding:
    """The state of one thing that a stage needs.

    Attributes:
        found: Whether it is there and works.
        detail: Version and place, or the consequence of its absence.
        remedy: How to get it.
        packages: Debian packages that bring it; the first that is available is enough.
        needed: Whether the crawl needs it.
    """

    name: str
    found: bool
    detail: str
    remedy: str = ""
    packages: tuple[str, ...] = ()
    needed: bool = False

    def __str__(self) -> str:
        state = "ok     " if self.found else "MISSING" if self.needed else "absent "
        remedy = "" if self.found or not self.remedy else f"; {self.remedy}"
        return f"{state} {self.name}: {self.detail}{remedy}"


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
"""Scripts that pages are written in: name, sample, whether the crawl needs it, Debian package."""

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
"""Name of the finding about one."""

_READ = (("chi_sim", "Chinese"), ("eng", "English"))
"""Languages that `detect --text-source ocr` reads by default."""

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
    """Look for what the stages need: Chromium, glyphs, data of OCR and NLTK, packages, a GPU."""
    path = find_chromium()
    browser = _check_chromium(path)
    glyphs = _drawn(path) if path is not None and browser.found else None
    driver = [_check_driver()] if find_spec("playwright") else []
    ocr = [_check_ocr(language, name) for language, name in _READ]
    python = [_check_python(*package) for package in _PYTHON]
    return [browser, *driver, *_check_glyphs(glyphs), *ocr, *python, _check_punkt(), _check_gpu()]


def mend() -> list[Finding]:
    """Install what may be installed here, then look again.

    On Debian as root or with sudo: the system's packages. Else Playwright's own headless shell,
    which needs no rights; fonts then stay as they are.
    """
    findings = check()
    lacking = [finding for finding in findings if not finding.found and finding.packages]
    if not lacking:
        return findings
    apt = _apt()
    if apt:
        _quietly([*apt, "update"])
        for packages in dict.fromkeys(finding.packages for finding in lacking):
            any(
                _quietly([*apt, "install", "--yes", "--no-install-recommends", package])
                for package in packages
            )
    if find_chromium() is None and find_spec("playwright"):
        command = [sys.executable, "-m", "playwright", "install", "chromium", "--only-shell"]
        _quietly([*command, "--with-deps"] if os.geteuid() == 0 else command)
    findings = check()
    lacking = [finding for finding in findings if not finding.found and finding.packages]
    if lacking and findings[0].found and not apt:
        detail = "neither root nor sudo on a Debian system"
        remedy = "ask an administrator for the packages named above"
        findings.append(Finding("rights to install", found=False, detail=detail, remedy=remedy))
    return findings


def _check_chromium(path: Path | None) -> Finding:
    found, detail = False, "none"
    if path is not None:
        try:
            detail = f"{_output([path, '--version']).strip()} at {path}"
            found = True
        except (OSError, subprocess.SubprocessError) as error:
            detail = f"{path} does not run ({error})"
    remedy = "apt install chromium-headless-shell, or playwright install chromium --only-shell"
    packages = ("chromium-headless-shell", "chromium")
    return Finding("Chromium", found, detail, remedy, packages, needed=True)


def _check_driver() -> Finding:
    """Start Playwright's own program, for which a library may be missing."""
    found, remedy = True, ""
    packages: tuple[str, ...] = ()
    try:
        detail = _output([sys.executable, "-m", "playwright", "--version"]).strip()
    except (OSError, subprocess.SubprocessError) as error:
        told = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1]
        found, detail = False, f"does not run ({told:.200})"
        remedy = "install the library that it names"
        if "libatomic" in told:
            remedy, packages = f"apt install {_LIBATOMIC}", (_LIBATOMIC,)
    return Finding("Playwright's driver", found, detail, remedy, packages, needed=True)


_LIBATOMIC = "libatomic1"
"""Debian's package; a bare Debian has every other library that the driver needs."""


def _check_glyphs(drawn: Sequence[bool] | None) -> list[Finding]:
    findings = []
    for place, (name, sample, needed, package) in enumerate(_SCRIPTS):
        found = drawn is not None and drawn[place]
        detail = "drawn" if found else f"{sample} shows as an empty box in screenshots"
        if drawn is None:
            detail = "cannot be checked without Chromium"
        remedy = f"apt install {package}"
        findings.append(Finding(name, found, detail, remedy, (package,), needed))
    return findings


def _check_ocr(language: str, name: str) -> Finding:
    folder, package = find_tessdata([language]), debian_package(language)
    detail = f"{language}.traineddata in {folder}"
    if folder is None:
        detail = f"no {language}.traineddata; detect --text-source ocr uses it"
    remedy = f"apt install {package}"
    return Finding(f"OCR of {name}", folder is not None, detail, remedy, (package,))


def _check_python(module: str, stage: str, needed: bool, remedy: str) -> Finding:  # noqa: FBT001
    found = find_spec(module) is not None
    detail = f"for {stage}" if found else f"not installed; {stage} uses it"
    return Finding(f"python {module}", found, detail, remedy, needed=needed)


def _check_punkt() -> Finding:
    """Look for the data by which NLTK splits captions into words, without importing NLTK."""
    remedy = "python -m nltk.downloader punkt_tab"
    named = filter(None, os.environ.get("NLTK_DATA", "").split(os.pathsep))
    roots = [Path(root) for root in (sys.prefix, "/usr", "/usr/local")]
    folders = [*map(Path, named), Path.home() / "nltk_data"]
    folders += [root / part / "nltk_data" for root in roots for part in ("share", "lib")]
    for folder in folders:
        place = folder / "tokenizers" / "punkt_tab"
        if place.is_dir() or place.with_suffix(".zip").is_file():
            return Finding("NLTK's punkt", found=True, detail=f"at {place}")
    detail = "none; Flickr30K, MS-COCO and CC152K are cut into words by it"
    return Finding("NLTK's punkt", found=False, detail=detail, remedy=remedy)


def _check_gpu() -> Finding:
    """Ask the NVIDIA driver, which torch needs too."""
    if shutil.which("nvidia-smi") is None:
        detail = "no NVIDIA driver; detect and train run on the CPU"
        return Finding(GPU, found=False, detail=detail)
    wanted = "--query-gpu=name,memory.total,driver_version"
    try:
        answer = _output(["nvidia-smi", wanted, "--format=csv,noheader"])
    except (OSError, subprocess.SubprocessError) as error:
        detail = " ".join(f"the driver does not answer ({error})".split())
        return Finding(GPU, found=False, detail=detail, remedy="reinstall the driver")
    cards = [line.strip() for line in answer.splitlines() if line.strip()]
    if not cards:
        return Finding(GPU, found=False, detail="a driver, and no GPU")
    return Finding(GPU, found=True, detail=f"{len(cards)} x {cards[0]} (driver last)")


def _drawn(chromium: Path) -> list[bool] | None:
    """Let Chromium draw a sample of each script; return which of them are not its empty box."""
    samples = json.dumps([sample for _, sample, _, _ in _SCRIPTS], ensure_ascii=False)
    page = "data:text/html;charset=utf-8," + quote(_PROBE.replace("SAMPLES", samples))
    command = [str(chromium), "--headless", "--disable-gpu", "--dump-dom", page]
    if os.geteuid() == 0:
        command.insert(1, "--no-sandbox")
    try:
        # The script's own text, too, is in the document; the answer stands last.
        answer = _output(command).rpartition("BEGIN[")[2].partition("]END")[0]
        drawn = json.loads(f"[{answer}]")
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return drawn if len(drawn) == len(_SCRIPTS) else None


def _apt() -> list[str]:
    """Return the command that installs Debian packages here; empty where there is none."""
    if shutil.which("apt-get") is None:
        return []
    if os.geteuid() == 0:
        return ["apt-get", "-qq"]
    if shutil.which("sudo") is None:
        return []
    sudo = ["sudo"] if sys.stdin is not None and sys.stdin.isatty() else ["sudo", "-n"]
    return [*sudo, "apt-get", "-qq"] if _quietly([*sudo, "true"]) else []


def _quietly(command: list[str]) -> bool:
    _log.info("doctor: %s", " ".join(command))
    stdin = None if sys.stdin is not None and sys.stdin.isatty() else subprocess.DEVNULL
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, stdin=stdin, stdout=subprocess.DEVNULL, timeout=_INSTALL_S, env=env,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def _output(command: Sequence[str | Path]) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=_PROBE_S, check=True
    ).stdout
