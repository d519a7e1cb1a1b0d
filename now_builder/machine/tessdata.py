"""Find Tesseract's language data on this machine."""

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
    """Find a folder with the data of all languages, such as ``chi_sim`` and ``eng``.

    If ``TESSDATA_PREFIX`` is set, only that folder is searched.
    """
    folders = [Path(sys.prefix, "share", "tessdata")]
    folders += [path for name in _FOLDERS for path in sorted(Path("/").glob(name), reverse=True)]
    if prefix := os.environ.get("TESSDATA_PREFIX"):
        folders = [Path(prefix)]
    for folder in folders:
        if all((folder / f"{language}.traineddata").is_file() for language in languages):
            return folder
    return None


def debian_package(language: str) -> str:
    """Return the Debian package with the data of a language."""
    return "tesseract-ocr-" + language.lower().replace("_", "-").replace("/", "-")
