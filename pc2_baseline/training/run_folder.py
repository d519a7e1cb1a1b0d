"""Create, read and check the folder of a run."""

import os
import shutil
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field

from leaderboard.core.rounds import round_of
from now_builder.config import Strict, build, read_toml, to_toml
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import remove_leftovers, write_text
from now_builder.formats.noise import Noise
from now_builder.formats.release import features_hashes
from now_builder.formats.split import Split
from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.data.readers import DataIdentity, hash_of_texts, hash_of_vocabulary, make_reader
from pc2_baseline.data.release_reader import ReleaseReader
from pc2_baseline.process_groups import local_gpu
from pc2_baseline.training.method import Sizes

BEST, LAST = "best", "last"
TENSORBOARD, PICTURES = "tensorboard", "pictures"
LOG, CURVES, FAILURE = "log.jsonl", "curves.png", "failure.json"


class ReleaseRecord(Strict):
    """Data that a run was trained on, and its :class:`Sizes`."""

    path: Path
    fingerprints: dict[Split, str]
    features_sha256: dict[Split, str] = Field(default_factory=dict)
    """Hashes of the feature files; empty without a manifest."""
    pairs: int
    features: int
    vocabulary: int
    vocabulary_sha256: str
    """See :func:`~pc2_baseline.data.readers.hash_of_vocabulary`."""
    texts_sha256: dict[Split, str] = Field(default_factory=dict)
    """Hashes of the captions as texts, if the method reads them."""
    encoder_sha256: str | None = None
    """Hash of the pre-trained model that training started from."""
    noise: Noise | None = None
    truth_sha256: str | None = None
    """Hash of the truth file if the method trains on it."""

    @property
    def sizes(self) -> Sizes:
        """Input sizes of the method."""
        return Sizes(self.pairs, self.features, self.vocabulary)

    @property
    def identity(self) -> DataIdentity:
        """Hashes that identify these data."""
        return DataIdentity(
            self.fingerprints, self.features_sha256, self.vocabulary_sha256, self.texts_sha256,
            self.encoder_sha256,
        )  # fmt: skip

    def difference(self, other: DataIdentity) -> str | None:
        """Return how other data differ from these; ``None`` if no difference is known."""
        if self.fingerprints != other.fingerprints:
            return f"another release ({self.path})"
        features = self.features_sha256.items()
        changed = [split for split, value in features if other.features_sha256.get(split) != value]
        if changed:
            return f"other features of {', '.join(changed)}"
        if self.texts_sha256 != other.texts_sha256:
            return "other texts of the captions"
        if self.vocabulary_sha256 != other.vocabulary_sha256:
            return "another vocabulary"
        if self.encoder_sha256 != other.encoder_sha256:
            return "another content of model.encoder"
        return None


class RunRecord(Strict):
    """``RUN/run.toml``."""

    format: str = "pc2-run/1"
    division_precision: Literal["fp32", "bf16"] | None = None
    release: ReleaseRecord
    settings: Settings

    @property
    def resolved(self) -> Settings:
        """The settings, with the division's precision that was chosen when the run began."""
        if self.division_precision is None:
            return self.settings
        chosen = {"division_precision": self.division_precision}
        return self.settings.model_copy(
            update={"model": self.settings.model.model_copy(update=chosen)}
        )


def start_run(run: Path, record: RunRecord, *, force: bool) -> None:
    """Write ``run.toml`` to a new run folder, or check that it is the same in an existing one.

    A run with other settings is replaced if it has no checkpoint.

    Raises:
        ConfigError: If the folder contains a run with other settings or data, or other files.
    """
    remove_leftovers(run)
    path = run / "run.toml"
    if path.exists() and not force:
        problem = _difference(read_run(run), record)
        if problem is None:
            return
        if (run / LAST).exists() or (run / BEST).exists():
            raise ConfigError(f"{path}: {problem}; give another folder, or --force to start over")
    if path.exists():
        outputs = {file.parent for file in run.glob(f"*/{'[0-9]' * 5}.safetensors")}
        for part in {run / LAST, run / BEST, run / TENSORBOARD, run / PICTURES, *outputs}:
            shutil.rmtree(part, ignore_errors=True)
        for name in (LOG, CURVES, FAILURE):
            (run / name).unlink(missing_ok=True)
        path.unlink()
    if run.exists() and any(run.iterdir()):
        raise ConfigError(f"{run}: not empty and not a run; give a new folder")
    write_text(path, to_toml(record))


def _difference(stored: RunRecord, new: RunRecord) -> str | None:
    """Return how a stored run differs from a new one, if it does."""
    if stored.settings != new.settings:
        return settings_mismatch(stored.settings, new.settings)
    if difference := stored.release.difference(new.release.identity):
        return f"a run on {difference}"
    if stored.release.noise != new.release.noise:
        return f"a run with another content of {stored.settings.data.noise_file}"
    if stored.release.truth_sha256 != new.release.truth_sha256:
        return f"a run trained on another content of {stored.settings.data.truth}"
    return None


def settings_mismatch(stored: Settings, new: Settings) -> str:
    """Return a message about the different settings of a stored and a new run."""
    there, now = stored.model_dump(mode="json"), new.model_dump(mode="json")
    differences = [
        f"{section}.{key}: {there[section].get(key)} there, {now[section].get(key)} now"
        for section in now
        for key in {**there[section], **now[section]}
        if there[section].get(key) != now[section].get(key)
    ]
    return f"a run of other settings ({'; '.join(differences)})"


def read_run(run: Path) -> RunRecord:
    """Read ``RUN/run.toml``.

    Raises:
        FormatError: If the folder is not a run.
        ConfigError: If a field is unknown or missing.
    """
    path = run / "run.toml"
    if not path.exists():
        raise FormatError(path, "file not found; `pc2-baseline train` writes it")
    return build(RunRecord, read_toml(path), str(path))


def pick_device(name: str) -> torch.device:
    """Return the device that a setting names; ``auto`` is CUDA if available.

    Under ``torchrun`` each process on a machine has its own GPU, or all share the only one.

    Raises:
        ConfigError: If the device does not exist.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{local_gpu()}"
    try:
        device = torch.device(name)
        torch.empty(1, device=device).item()  # fails without storage (meta)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"--device or train.device: {name!r} cannot be used ({reason})") from None
    return device


def locate_release(run: Path, record: RunRecord, release: Path | None) -> Path:
    """Return the folder of a run's release, by default where it was at training.

    Raises:
        FormatError: If the folder does not exist.
    """
    folder = release or record.release.path
    if not folder.is_dir():
        raise FormatError(run / "run.toml", f"release not found at {folder}; set --release")
    return folder


def check_split_is_the_runs(
    run: Path, record: RunRecord, release: Path, split: Split, pairs: PairSet
) -> None:
    """Check that a split is the one that the run was made for.

    Raises:
        FormatError: If its fingerprint, features or texts, or the run's dual encoder, differ.
    """
    trained, features, settings = record.release, features_hashes(release), record.settings
    reader, texts = make_reader(release, settings.data, settings.model), "unknown"
    if isinstance(reader, ReleaseReader):
        if split in trained.texts_sha256:
            texts = hash_of_texts(reader, split) or texts
        if reader.encoder_sha256 != trained.encoder_sha256:
            problem = f"the model {reader.encoder} has changed since the training"
            raise FormatError(run / "run.toml", problem)
    for name, expected, actual in (
        ("fingerprint", trained.fingerprints.get(split), pairs.fingerprint),
        ("features of hash", trained.features_sha256.get(split), features.get(split, "unknown")),
        ("texts of hash", trained.texts_sha256.get(split), texts),
    ):
        if expected is not None and expected != actual:
            raise FormatError(
                run / "run.toml",
                f"the release's {split} split has {name} {actual[:12]}…, expected "
                f"{expected[:12]}…: it is another release than at training",
            )


def check_reads_round(run: Path, record: RunRecord, release: Path, features: int) -> None:
    """Check that a run's networks can read a blind round drawn from another release.

    Raises:
        FormatError: If vocabulary or features are not as at training.
    """
    data, trained = record.settings.data, record.release
    if features != trained.features:
        raise FormatError(release, f"features {features} wide, {run} has {trained.features}")
    if hash_of_vocabulary(make_reader(release, data).vocabulary) != trained.vocabulary_sha256:
        problem = f"a blind round whose {data.tokenizer} vocabulary is not that of {run}"
        raise FormatError(
            release, f"{problem}; train on its train split (`blind make --with-train`)"
        )


def refuse_round(release: Path, split: Split) -> None:
    """Check that a split is not a blind round, whose rows are no pairs.

    Raises:
        FormatError: If it is one.
    """
    if round_of(release, split) is not None:
        problem = f"its {split} split is a blind round: rows are no pairs"
        raise FormatError(release, f"{problem}; `pc2-baseline predict` makes a submission")
