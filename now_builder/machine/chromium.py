"""Find a Chromium on this machine."""

import os
import shutil
import sys
from pathlib import Path

SHELL = "chromium-headless-shell"
_OTHERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_FALLBACK_PATH = "/usr/local/bin:/usr/bin:/bin:/snap/bin"


def find_chromium() -> Path | None:
    """Find a Chromium, best first: a system's headless shell, Playwright's own, any other.

    The headless shell takes a third of the processor time of a whole browser.
    """
    return _on_path(SHELL) or _playwrights_own() or next(filter(None, map(_on_path, _OTHERS)), None)


def _on_path(name: str) -> Path | None:
    found = shutil.which(name) or shutil.which(name, path=_FALLBACK_PATH)
    return Path(found) if found else None


def _playwrights_own() -> Path | None:
    folder = os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or (
        Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "ms-playwright"
    )
    names = ("headless_shell", "chrome-headless-shell")
    found = [
        path
        for version in sorted(Path(folder).glob("chromium_headless_shell-*"), reverse=True)
        for path in sorted(version.glob("*/*"))
        if path.name in names and os.access(path, os.X_OK)
    ]
    return found[0] if found else None
