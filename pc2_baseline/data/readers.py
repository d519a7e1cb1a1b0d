"""Choose the reader of a data set's layout, and identify its data."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from now_builder.errors import FormatError
from now_builder.formats.benchmarks import PRECOMP
from now_builder.formats.captions import Vocabulary
from now_builder.formats.release import data_folder, features_hashes
from now_builder.formats.split import SPLITS, Split
from pc2_baseline.config import DataSettings, DualEncoderSettings, ModelSettings
from pc2_baseline.data.pixels import PixelReader
from pc2_baseline.data.precomp import PrecompReader
from pc2_baseline.data.release_reader import ReleaseReader

Reader = ReleaseReader | PrecompReader
"""Reader of one layout; all have the same methods."""


def make_reader(release: Path, data: DataSettings, model: ModelSettings | None = None) -> Reader:
    """Return the reader of a data set's layout; for a dual encoder, that of its screenshots."""
    if isinstance(model, DualEncoderSettings):
        return PixelReader(release, data, model)
    if data.name in PRECOMP:
        return PrecompReader(release, data)
    return ReleaseReader(release, data)


def tracks_of(release: Path) -> list[str]:
    """Return the tracks of a release; empty for another layout."""
    try:
        folder = data_folder(release)
    except FormatError:
        return []
    return sorted({path.stem.partition("_caps_")[2] for path in folder.glob("*_caps_*.txt")})


def check_layout(release: Path, data: DataSettings) -> None:
    """Check that a folder contains the data set and the track of the settings.

    Raises:
        FormatError: If it does not; the message names the ones that it contains.
    """
    tracks, folder = tracks_of(release), release.resolve().name
    if data.name in PRECOMP:
        if tracks and not (release / data.name).is_dir():
            name = DataSettings().name
            raise FormatError(release, f"contains NoW; use --set data.name={name}, not {data.name}")
    elif not tracks:
        there = next(
            (name for name in PRECOMP if name == folder or (release / name).is_dir()), None
        )
        if there:
            raise FormatError(release, f"contains {there}; use --set data.name={there}")
    elif data.tokenizer not in tracks:
        problem = f"no track {data.tokenizer}, it has {', '.join(tracks)}"
        raise FormatError(release, f"{problem}; use --set data.tokenizer={tracks[0]}")


@dataclass(frozen=True, slots=True)
class DataIdentity:
    """Hashes that identify training data.

    Attributes:
        fingerprints: Fingerprint of each existing split.
        features_sha256: SHA-256 of each split's feature file, from the manifest; empty without one.
        vocabulary_sha256: Hash of the vocabulary, as :func:`hash_of_vocabulary` returns it;
            ``None`` if unknown.
        texts_sha256: Hash of each split's caption texts, for a method that reads them.
        encoder_sha256: Hash of the pre-trained model that training starts from.
    """

    fingerprints: dict[Split, str]
    features_sha256: dict[Split, str]
    vocabulary_sha256: str | None
    texts_sha256: dict[Split, str] = field(default_factory=dict)
    encoder_sha256: str | None = None


def identify(reader: Reader, *, reads: bool) -> DataIdentity:
    """Identify a data set without reading features; with ``reads``, by its texts, too."""
    prints = {
        split: reader.fingerprint(split) for split in SPLITS if reader.captions_path(split).exists()
    }
    vocabulary = hash_of_vocabulary(reader.vocabulary)
    features = features_hashes(reader.release)
    texts = {}
    if isinstance(reader, PixelReader) or (reads and isinstance(reader, ReleaseReader)):
        texts = {split: sha256 for split in prints if (sha256 := hash_of_texts(reader, split))}
    return DataIdentity(prints, features, vocabulary, texts, reader.encoder_sha256)


def hash_of_texts(reader: ReleaseReader, split: Split) -> str | None:
    """Return the hash of a split's texts in order; ``None`` if none are read."""
    texts = reader.texts(split) if isinstance(reader, PixelReader) or reader.words(split) else []
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest() if texts else None


def hash_of_vocabulary(vocabulary: Vocabulary) -> str:
    """Return the hash of a vocabulary's tokens and ids."""
    lines = (f"{index}\t{word}\n" for word, index in sorted(vocabulary.word2idx.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()
