"""A split of a release as a torch dataset, for your own training loop."""

import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from now_builder.errors import FormatError
from now_builder.formats.captions import Tokenizer
from now_builder.formats.release import data_folder, open_regions, read_split_captions
from now_builder.formats.split import Split
from pc2_baseline.config import DataSettings
from pc2_baseline.data.pairs import pad
from pc2_baseline.data.release_reader import ReleaseReader, frame


class ReleaseDataset(Dataset[dict[str, Tensor]]):
    """Pairs of a split, read from disk on access, for a ``DataLoader`` with any workers.

    Each worker opens the feature file itself. A batch is read at once::

        data = ReleaseDataset(release, "train")
        DataLoader(data, 128, shuffle=True, num_workers=2, collate_fn=ReleaseDataset.collate)

    A pair has ``regions`` (36, dim), ``tokens`` with ``<start>`` and ``<end>``, ``length`` and
    ``pair_index``; a batch has the same with one axis more, tokens padded with zeros.

    Args:
        release: Folder made by ``package``, or the authors' archive.
        split: ``train``, ``dev`` or ``test``.
        tokenizer: Track whose token ids are read.
        dtype: Type of the regions; default: as stored.

    Raises:
        FormatError: If captions or vocabulary are missing, or disagree.
    """

    def __init__(
        self,
        release: Path | str,
        split: Split,
        tokenizer: Tokenizer = "jieba",
        dtype: torch.dtype | None = None,
    ) -> None:
        release = Path(release).absolute()  # opened later, perhaps from another folder
        captions = read_split_captions(release, split, tokenizer)
        path = data_folder(release) / f"{split}_caps_{tokenizer}.txt"
        vocabulary = ReleaseReader(release, DataSettings(tokenizer=tokenizer)).vocabulary
        self.keys = captions.keys
        self._tokens = frame(path, captions, vocabulary, None)
        self._place, self._dtype = (release, split), dtype
        self._regions: Any = None

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, pair_index: int) -> dict[str, Tensor]:
        if not -len(self) <= pair_index < len(self):
            raise IndexError(pair_index)
        batch = self.__getitems__([pair_index % len(self)])
        return {name: values[0] for name, values in batch.items()}

    def __getitems__(self, pair_index: Sequence[int]) -> dict[str, Tensor]:
        """Read a batch; a loader calls this and passes the result on to :meth:`collate`."""
        rows = np.asarray(pair_index, dtype=np.int64)
        tokens, length = pad([self._tokens[row] for row in rows])
        regions = torch.from_numpy(self._read(rows))
        return {
            "regions": regions if self._dtype is None else regions.to(self._dtype),
            "tokens": tokens,
            "length": length,
            "pair_index": torch.from_numpy(rows),
        }

    @staticmethod
    def collate(batch: dict[str, Tensor] | Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return a batch unchanged, or stack pairs that a ``ConcatDataset`` read one by one."""
        if isinstance(batch, dict):
            return batch
        tokens, length = pad([pair["tokens"].numpy() for pair in batch])
        regions, rows = (
            torch.stack([pair[name] for pair in batch]) for name in ("regions", "pair_index")
        )
        return {"regions": regions, "tokens": tokens, "length": length, "pair_index": rows}

    def _read(self, rows: np.ndarray) -> np.ndarray:
        if self._regions is None:
            with ExitStack() as stack:
                regions = stack.enter_context(open_regions(*self._place))
                if regions.shape[0] != len(self):
                    problem = f"{regions.shape[0]} images for {len(self)} captions"
                    file = data_folder(self._place[0]) / self._place[1]
                    raise FormatError(file, f"{problem}, expected as many")
                self._regions = regions
                # Also at exit: HDF5 must be closed before the interpreter unloads modules.
                weakref.finalize(self, stack.pop_all().close)
        order, back = np.unique(rows, return_inverse=True)
        return np.asarray(self._regions[order])[back]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the open file: a worker opens its own."""
        return {**self.__dict__, "_regions": None}
