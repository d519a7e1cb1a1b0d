"""Small repositories with whatever a commit can hold, and a list of them."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

LINK, SUBMODULE = "120000", "160000"
HEADER = "repository,commit,folder,host,pages,language,licence,size,kind\n"


def git(folder, *words, given=b""):
    done = subprocess.run(
        ["git", "--git-dir", folder, *words], input=given, capture_output=True, check=True
    )
    return done.stdout.decode().strip()


def page(text, more=""):
    return f'<!doctype html><meta name=description content="{text}">{more}<p>{text}</p>'


@dataclass
class Mirrors:
    """A folder of repositories; ``listed`` is the list's text."""

    folder: Path
    listed: str = HEADER

    def add(self, name, files, folder="", *, pages=40, commit=None, host=None, at="{owner}+{name}"):
        """Make a repository, list it, return its commit; files are text or with a mode."""
        owner, _, last = name.partition("/")
        place = self.folder / at.format(owner=owner, name=last)
        place.mkdir(parents=True, exist_ok=True)
        git(place, "init", "-q", "--bare", "--initial-branch=main")
        stream = b"commit refs/heads/main\ncommitter T <t@example.org> 0 +0000\ndata 0\n"
        for path, what in files.items():
            mode, content = what if isinstance(what, tuple) else ("100644", what)
            content = content.encode() if isinstance(content, str) else content
            quoted = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            if mode == SUBMODULE:
                stream += f'M {mode} {"1" * 40} "{quoted}"\n'.encode()
            else:
                stream += f'M {mode} inline "{quoted}"\ndata {len(content)}\n'.encode()
                stream += content + b"\n"
        git(place, "fast-import", "--quiet", "--force", given=stream)
        found = git(place, "rev-parse", "main")
        host = host or f"{last}.{owner}.test".lower()
        self.listed += f"{name},{commit or found},{folder},{host},{pages},en,MIT,100,blog\n"
        return found

    def write(self, path):
        path.write_text(self.listed, encoding="utf-8")
        return path


@pytest.fixture
def mirrors(tmp_path):
    return Mirrors(tmp_path / "mirrors")
