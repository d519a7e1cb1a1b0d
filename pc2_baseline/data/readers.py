"""The reader of each layout, and what identifies the data that it reads."""

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
    """Return the reader of a data set's layout, or of what a network sees of it."""
    if isinstance(model, DualEncoderSettings):
        return PixelReader(release, data, model)
    if data.name in PRECOMP:
        return PrecompReader(release, data)
    return ReleaseReader(release, data)


def tracks_of(release: Path) -> list[str]:
    """Return the tracks of a folder that holds NoW, none of another."""
    try:
        folder = data_folder(release)
    except FormatError:
        return []
    return sorted({path.stem.partition("_caps_")[2] for path in folder.glob("*_caps_*.txt")})


def check_layout(release: Path, data: DataSettings) -> None:
    """Check that a folder holds a data set and its track.

    Raises:
        FormatError: Naming the data set or the tracks that are there instead.
    """
    tracks, own = tracks_of(release), release.resolve().name
    if data.name in PRECOMP:
        if tracks and not (release / data.name).is_dir():
            name = DataSettings().name
            raise FormatError(
                release, f"holds NoW: --set data.name={name} reads it, not {data.name}"
            )
    elif not tracks:
        there = next((name for name in PRECOMP if name == own or (release / name).is_dir()), None)
        if there:
            raise FormatError(release, f"holds {there}: --set data.name={there} reads it")
    elif data.tokenizer not in tracks:
        problem = f"no track {data.tokenizer}, it has {', '.join(tracks)}"
        raise FormatError(release, f"{problem}: --set data.tokenizer={tracks[0]}")


@dataclass(frozen=True, slots=True)
class DataIdentity:
    """Hashes by which the data of a training differ from others.

    Attributes:
        fingerprints: Fingerprint of each split that is there.
        features_sha256: SHA-256 of each split's feature file, from the manifest; empty without one.
        vocabulary_sha256: Hash of the vocabulary, as :func:`hash_of_vocabulary` returns it;
            ``None`` where it is not known.
        texts_sha256: Hash of each split's captions as texts, for a method that reads them.
        encoder_sha256: Hash of the pre-trained model that a training begins with.
    """

    fingerprints: dict[Split, str]
    features_sha256: dict[Split, str]
    vocabulary_sha256: str | None
    texts_sha256: dict[Split, str] = field(default_factory=dict)
    encoder_sha256: str | None = None


def identify(reader: Reader, *, reads: bool) -> DataIdentity:
    """Return the identity of a data set, for a method that ``reads`` texts or not.

    No features are read.
    """
    prints = {
        split: reader.fingerprint(split) for split in SPLITS if reader.captions_path(split).exists()
    }
    vocabulary = hash_of_vocabulary(reader.vocabulary)
    features = features_hashes(reader.release)
    texts = {}
    if isinstance(reader, PixelReader) or (reads and isinstance(reader, ReleaseReader)):
        texts = {split: own for split in prints if (own := hash_of_texts(reader, split))}
    return DataIdentity(prints, features, vocabulary, texts, reader.encoder_sha256)


def hash_of_texts(reader: ReleaseReader, split: Split) -> str | None:
    """Identify the texts of a split, in their order; ``None`` if no text is read."""
    texts = reader.texts(split) if isinstance(reader, PixelReader) or reader.words(split) else []
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest() if texts else None


def hash_of_vocabulary(vocabulary: Vocabulary) -> str:
    """Identify a vocabulary by its tokens and their ids."""
    lines = (f"{index}\t{word}\n" for word, index in sorted(vocabulary.word2idx.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()
