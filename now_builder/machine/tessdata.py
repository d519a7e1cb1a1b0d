"""Where Tesseract's language data are on this machine."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

_FOLDERS = (
    "usr/share/tesseract-ocr/*/tessdata",
    "usr/share/tessdata",
    "usr/share/tesseract/tessdata",
    "usr/local/share/tessdata",
    "opt/homebrew/share/tessdata",
)


def find_tessdata(languages: Sequence[str]) -> Path | None:
    """Find a folder with the data of all of some languages, such as ``chi_sim`` and ``eng``.

    ``TESSDATA_PREFIX`` stands for all other places where it is set.
    """
    named = os.environ.get("TESSDATA_PREFIX")
    folders = [Path(named)] if named else [Path(sys.prefix, "share", "tessdata"), *_system()]
    return next((folder for folder in folders if _has(folder, languages)), None)


def debian_package(language: str) -> str:
    """Name the Debian package that brings the data of a language."""
    return "tesseract-ocr-" + language.lower().replace("_", "-").replace("/", "-")


def _system() -> list[Path]:
    root = Path("/")
    return [path for pattern in _FOLDERS for path in sorted(root.glob(pattern), reverse=True)]


def _has(folder: Path, languages: Sequence[str]) -> bool:
    return all((folder / f"{language}.traineddata").is_file() for language in languages)
