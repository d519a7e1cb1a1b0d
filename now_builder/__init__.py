"""Make the dataset: URL list, captures, region features, captions, release.

Functions that read a release are imported on first use (here a release with 42 test pairs):

>>> import now_builder
>>> release = now_builder.open_release(folder)
>>> release.splits
('train', 'dev', 'test')
>>> captions = release.captions("test", "bpe")
>>> len(captions.keys), len(captions.captions)
(42, 42)
>>> words = release.vocabulary("bpe").idx2word
>>> text = [words[str(number)] for number in captions.captions[0]]
>>> pair = next(release.pairs("test"))
>>> pair.key == captions.keys[0], pair.pair_index
(True, 0)
>>> with release.regions("test") as regions:
...     regions.shape
(42, 36, 768)
>>> with release.features("test") as features:
...     features.read(slice(0, 2)).boxes.shape
(2, 36, 4)

A user's mistake, such as a folder without a release, raises a :class:`NowError`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from now_builder.errors import NowError
    from now_builder.formats.captions import Vocabulary
    from now_builder.formats.reader import Release, open_release
    from now_builder.formats.release import Captions, Manifest, Pair

__version__ = "0.1.0"

__all__ = ["Captions", "Manifest", "NowError", "Pair", "Release", "Vocabulary", "open_release"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "errors" if name == "NowError" else "formats.reader"
    return getattr(import_module(f"{__name__}.{module}"), name)
