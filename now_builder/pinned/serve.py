"""Serve the pinned web on loopback like a static server, each site under its host name."""

import mimetypes
import os
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import quote, unquote

from now_builder.errors import FormatError
from now_builder.pinned.sites import read_made
from now_builder.program import web_server
from now_builder.program.web_server import Answer

_INDEXES = ("index.html", "index.htm")
_TYPES = mimetypes.MimeTypes(filenames=())  # without the machine's own tables
_OWN_TYPES = {
    ".atom": "application/atom+xml", ".avif": "image/avif", ".ico": "image/x-icon",
    ".js": "text/javascript", ".m4a": "audio/mp4", ".map": "application/json",
    ".mjs": "text/javascript", ".ogg": "audio/ogg", ".otf": "font/otf",
    ".rss": "application/rss+xml", ".ttf": "font/ttf", ".webp": "image/webp", ".woff": "font/woff",
    ".woff2": "font/woff2", ".xhtml": "application/xhtml+xml", ".xml": "application/xml",
}  # fmt: skip
"""Types that differ between versions of Python."""


@dataclass
class _Home:
    """A site's folder, and the first part of its paths on GitHub Pages."""

    folder: Path
    base: str

    @cached_property
    def files(self) -> frozenset[str]:
        """Paths of the files, except links."""
        paths = set()
        for place, _, names in os.walk(self.folder):
            below = os.path.relpath(place, self.folder)
            prefix = "" if below == "." else f"{below}/"
            paths |= {prefix + name for name in names if not Path(place, name).is_symlink()}
        return frozenset(paths)

    def find(self, name: str) -> str | None:
        """Return the file for a path, the path of a folder to redirect to, or ``None``."""
        tries = [name, f"{name}.html"] if name and name[-1] != "/" else [name + i for i in _INDEXES]
        for one in tries:
            if one in self.files:
                return one
        is_folder = any(f"{name}/{index}" in self.files for index in _INDEXES)
        return f"{name}/" if is_folder else None

    def absent(self) -> Answer:
        """Return the site's 404 page, or a line of text."""
        body = self.read("404.html") if "404.html" in self.files else None
        if body is not None:
            return Answer(404, "text/html", body)
        return Answer(404, "text/plain; charset=utf-8", b"not found\n")

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; ``None`` if it has been deleted."""
        with suppress(OSError):
            return (self.folder / name).read_bytes()
        return None


@dataclass(slots=True)
class PinnedAnswers:
    """Answer requests to a folder made by ``make``, which may add sites while it is served."""

    web: Path
    homes: dict[str, _Home] = field(default_factory=dict)
    _read_of: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._read()

    def _read(self) -> None:
        """Add new sites of the list."""
        self._read_of = self._time()
        for row in read_made(self.web):
            if row.status == "ok" and row.host not in self.homes:
                base = row.repository.partition("/")[2].lower()
                self.homes[row.host] = _Home(self.web / row.host, base)

    def _time(self) -> int:
        """Return the modification time of the list; 0 if it does not exist."""
        with suppress(FileNotFoundError):
            return (self.web / "sites.csv").stat().st_mtime_ns
        return 0

    def of(self, host: str, target: str) -> Answer:
        """Answer with a file, a redirect to a folder, or the site's 404 page.

        Pages of a project link to files under the project's name, as on GitHub Pages, so paths are
        found with and without that name. The name alone is a folder.
        """
        name = host.lower().partition(":")[0].rstrip(".")
        if name not in self.homes and self._time() not in {0, self._read_of}:
            self._read()
        home = self.homes.get(name)
        if home is None:
            return Answer(421, "text/plain; charset=utf-8", b"no such site\n")
        path, mark, query = target.partition("?")
        parts = [part for part in unquote(path).split("/") if part]
        name = "/".join(parts) + ("/" if parts and path.endswith("/") else "")
        first, below, rest = name.partition("/")
        file = home.find(name)
        if file is None and first.lower() == home.base:
            file = home.find(rest) if below else f"{name}/"
        if file is None:
            return home.absent()
        if file.endswith("/"):
            return Answer(301, headers=(("Location", quote(f"/{name}/") + mark + query),))
        body = home.read(file)
        return home.absent() if body is None else Answer(200, _type_of(file), body)


def serve(web: Path, port: int, *, ready_file: Path | None = None) -> None:
    """Serve until interrupted or terminated."""
    answers = PinnedAnswers(web)
    if not answers.homes:
        raise FormatError(web / "sites.csv", "no site is ok, so there are no pages to serve")
    web_server.serve(answers, f"{len(answers.homes)} sites", port, ready_file)


def _type_of(name: str) -> str:
    """Return the content type by file extension, without a charset, which the page declares."""
    suffix = Path(name).suffix.lower()
    guessed, packed = _TYPES.guess_type(f"x{suffix}", strict=False)
    content_type = _OWN_TYPES.get(suffix, guessed)
    return "application/octet-stream" if packed or content_type is None else content_type
