"""The reader of feature files: HDF5 of our own writer in which some bytes are others.

A feature file is mostly numbers, and any numbers are good. An input therefore is a list of changes
to those bytes of a whole file that are not numbers: which file, then four bytes a change (place,
kind of change, value).
"""

import tempfile
from pathlib import Path

import numpy as np

from now_builder.errors import FormatError
from now_builder.formats.features import FeatureBatch, open_features, write_features

ERRORS = (FormatError,)
LONGEST = 128
_FOLDER = Path(tempfile.mkdtemp(prefix="now-fuzz-"))
_NUMBERS = [0, 1, 2, 0x7F, 0xFF, 0x100, 0xFFFF, 0x10000, 0x7FFFFFFF, 0xFFFFFFFF, 2**40, 2**63 - 1]


def _batch(pages: int) -> FeatureBatch:
    return FeatureBatch(
        [f"{page:04d}" for page in range(pages)],
        np.zeros((pages, 36, 768), np.float32),
        np.zeros((pages, 36, 4), np.float32),
        np.zeros((pages, 36), np.float32),
        np.zeros((pages, 36), np.int16),
        np.zeros((pages, 36), np.int8),
        np.zeros(pages, np.int16),
    )


def _written(pages: int, *, known: bool) -> bytes:
    path = _FOLDER / "seed.h5"
    attributes = {"detector": "tiny"}
    write_features(path, [_batch(pages)], attributes, half=True, pages=pages if known else None)
    return path.read_bytes()


_FILES = [_written(1, known=True), _written(2, known=False), _written(0, known=False)]


def _places(content: bytes) -> np.ndarray:
    """Return the places that are not zero, and the eight beside each.

    Without the first heap, which has the attributes' texts, and what refers to it: there HDF5 goes
    round in circles or takes 4 GiB, as ``docs/formats.md`` says, and nothing else would be found.
    """
    marked = np.frombuffer(content, np.uint8) != 0
    near = np.convolve(marked, np.ones(17), "same") > 0
    heap = content.index(b"GCOL")
    near[heap - 8 : heap + 4096] = False
    reference = heap.to_bytes(8, "little")
    at = -1
    while (at := content.find(reference, at + 1)) >= 0:
        near[at - 12 : at + 12] = False
    return np.flatnonzero(near[: len(content) - 8])


_PLACES = [_places(content) for content in _FILES]


def seeds() -> list[bytes]:
    """Return each file unchanged."""
    return [bytes([number]) for number in range(len(_FILES))]


def changed(content: bytes) -> bytes:
    """Return the file that an input stands for."""
    number = content[0] % len(_FILES) if content else 0
    file, places = bytearray(_FILES[number]), _PLACES[number]
    for start in range(1, len(content) - 3, 4):
        at = int(places[int.from_bytes(content[start : start + 2], "little") % len(places)])
        kind, value = content[start + 2] % 4, content[start + 3]
        if kind == 0:
            file[at] = value
        elif kind == 1:
            file[at] ^= 1 << value % 8
        elif kind == 2:
            file[at : at + 8] = _NUMBERS[value % len(_NUMBERS)].to_bytes(8, "little")
        else:
            other = int(places[(value * 131) % len(places)])
            file[at : at + 8] = file[other : other + 8]
    return bytes(file)


def read(content: bytes) -> None:
    """Read all of a changed file."""
    path = _FOLDER / "input.h5"
    path.write_bytes(changed(content))
    with open_features(path) as features:
        for batch in features.batches(2):
            batch.take(slice(0, 1))
        features.column("boxes", slice(0, 2))
        np.asarray(features.dataset[0:1])


mutate = None
