"""Readers of many kinds of files: a small folder in which one file is changed at a time.

The first byte of an input says which file it is; the others are its content.
"""

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import mkdtemp

from changes import (
    Change,
    change_gzip,
    change_json,
    change_table,
    change_tar,
    change_tensors,
    change_zip,
)

from now_builder.errors import ConfigError, FormatError

Readers = Mapping[str, Callable[[Path], object]]


class Kinds:
    """Files of a folder and their readers.

    Args:
        write: Writes every file into a folder.
        files: Readers that take the path of the file, by its name.
        folders: Readers that take the folder.
        errors: What a reader may raise.
        longest: Maximum bytes of an input.
    """

    def __init__(
        self,
        write: Callable[[Path], None],
        files: Readers,
        folders: Readers | None = None,
        *,
        errors: tuple[type[Exception], ...] = (ConfigError, FormatError),
        longest: int = 2**14,
    ) -> None:
        self.ERRORS, self.LONGEST = errors, longest
        self._folder, self._files, self._folders = Path(mkdtemp()), files, folders or {}
        self._names = [*self._files, *self._folders]
        write(self._folder)
        self._whole = {name: (self._folder / name).read_bytes() for name in self._names}

    def seeds(self) -> list[bytes]:
        """Return each file unchanged."""
        return [bytes([at]) + self._whole[name] for at, name in enumerate(self._names)]

    def read(self, content: bytes) -> None:
        """Read the file of this kind; the others of its folder are whole."""
        name = self._name(content)
        path = self._folder / name
        path.write_bytes(content[1:])
        try:
            if name in self._files:
                self._files[name](path)
            else:
                self._folders[name](self._folder)
        finally:
            path.write_bytes(self._whole[name])

    def mutate(self, content: bytes, longest: int, seed: int) -> bytes:
        """Change bytes of the file, or something inside that leaves the file whole."""
        import atheris

        chance = random.Random(seed)
        first, rest = content[:1] or b"\0", content[1:]
        if chance.random() < 0.3:
            return first + atheris.Mutate(rest, longest - 1)

        def inside(member: str) -> Change:
            if member.endswith(".json") and chance.random() < 0.6:
                return lambda old: change_json(chance, old)
            return lambda old: atheris.Mutate(old, len(old) + 64)

        name = self._name(content)
        frames: dict[str, Change] = {
            ".parquet": lambda old: change_table(chance, old),
            ".tar": lambda old: change_tar(chance, old, inside),
            ".gz": lambda old: change_gzip(chance, old, inside("")),
            ".zip": lambda old: change_zip(chance, old, inside),
            ".pt": lambda old: change_zip(chance, old, inside),
            ".checkpoint": lambda old: change_zip(chance, old, inside),
            ".safetensors": lambda old: change_tensors(old, inside(".json")),
        }
        change = frames.get(Path(name).suffix, inside(name))
        return first + change(rest)[: longest - 1]

    def _name(self, content: bytes) -> str:
        return self._names[content[0] % len(self._names)] if content else self._names[0]
