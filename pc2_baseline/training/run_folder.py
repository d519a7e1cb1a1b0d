"""The folder of a run: which settings on which release, and where its parts lie."""

import os
import shutil
from pathlib import Path

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
    """Hashes of the feature files; of a release without a manifest, none."""
    pairs: int
    features: int
    vocabulary: int
    vocabulary_sha256: str
    """See :func:`~pc2_baseline.data.readers.hash_of_vocabulary`."""
    texts_sha256: dict[Split, str] = Field(default_factory=dict)
    """Hashes of the captions as texts, if the method reads them."""
    encoder_sha256: str | None = None
    """Hash of the pre-trained model that the training began with."""
    noise: Noise | None = None
    truth_sha256: str | None = None
    """Hash of the truth that the method was taught by; ``None`` where it only judges."""

    @property
    def sizes(self) -> Sizes:
        """Sizes from which a method is built."""
        return Sizes(self.pairs, self.features, self.vocabulary)

    @property
    def identity(self) -> DataIdentity:
        """Hashes that tell these data from others."""
        return DataIdentity(
            self.fingerprints, self.features_sha256, self.vocabulary_sha256, self.texts_sha256,
            self.encoder_sha256,
        )  # fmt: skip

    def difference(self, found: DataIdentity) -> str | None:
        """Return how other data differ from these; ``None`` if no difference is known."""
        if self.fingerprints != found.fingerprints:
            return f"another release ({self.path})"
        known = self.features_sha256.items()
        other = [split for split, value in known if found.features_sha256.get(split) != value]
        if other:
            return f"other features of {', '.join(other)}"
        if self.texts_sha256 != found.texts_sha256:
            return "other texts of the captions"
        if self.vocabulary_sha256 != found.vocabulary_sha256:
            return "another vocabulary"
        if self.encoder_sha256 != found.encoder_sha256:
            return "another content of model.encoder"
        return None


class RunRecord(Strict):
    """``RUN/run.toml``."""

    format: str = "pc2-run/1"
    release: ReleaseRecord
    settings: Settings


def start_run(run: Path, record: RunRecord, *, force: bool) -> None:
    """Open a run folder: write ``run.toml``, or check that its content is the same.

    A run of other settings that has no checkpoint, such as one refused for its folds, is replaced.

    Raises:
        ConfigError: If the folder holds a run of other settings or another release, or is not
            a run at all.
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


def _difference(found: RunRecord, wanted: RunRecord) -> str | None:
    """Return what a run differs in from the one wanted, if in anything."""
    if found.settings != wanted.settings:
        return settings_mismatch(found.settings, wanted.settings)
    if difference := found.release.difference(wanted.release.identity):
        return f"a run on {difference}"
    if found.release.noise != wanted.release.noise:
        return f"a run with another content of {found.settings.data.noise_file}"
    if found.release.truth_sha256 != wanted.release.truth_sha256:
        return f"a run taught by another content of {found.settings.data.truth}"
    return None


def settings_mismatch(found: Settings, wanted: Settings) -> str:
    """Return a message about a run folder of other settings than those wanted."""
    there, now = found.model_dump(mode="json"), wanted.model_dump(mode="json")
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
        FormatError: If the folder holds no run.
        ConfigError: If a field is unknown or missing.
    """
    path = run / "run.toml"
    if not path.exists():
        raise FormatError(path, "no such file; `pc2-baseline train` writes it")
    return build(RunRecord, read_toml(path), str(path))


def pick_device(name: str) -> torch.device:
    """Find the device that a setting names; ``auto`` is CUDA where there is one.

    Under ``torchrun`` each process on a machine has a GPU of its own, or all share the only one.

    Raises:
        ConfigError: If there is no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{local_gpu()}"
    try:
        device = torch.device(name)
        torch.empty(1, device=device).item()  # a device without values, as meta, has none to give
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"--device or train.device: {name!r} cannot be used ({reason})") from None
    return device


def locate_release(run: Path, record: RunRecord, release: Path | None) -> Path:
    """Return the release of a run: as given, or where it was at training.

    Raises:
        FormatError: If there is no such folder.
    """
    found = release or record.release.path
    if not found.is_dir():
        raise FormatError(
            run / "run.toml", f"the release is not at {found}; --release says where it is"
        )
    return found


def check_split_is_the_runs(
    run: Path, record: RunRecord, release: Path, split: Split, pairs: PairSet
) -> None:
    """Check that a split is the one that the run was made for.

    Raises:
        FormatError: If its fingerprint, its features or the texts that are read differ, or the
            dual encoder that the run began with.
    """
    known, found, settings = record.release, features_hashes(release), record.settings
    reader, texts = make_reader(release, settings.data, settings.model), "unknown"
    if isinstance(reader, ReleaseReader):
        if split in known.texts_sha256:
            texts = hash_of_texts(reader, split) or texts
        if reader.encoder_sha256 != known.encoder_sha256:
            problem = f"the model {reader.encoder} has changed since the training"
            raise FormatError(run / "run.toml", problem)
    for name, expected, given in (
        ("fingerprint", known.fingerprints.get(split), pairs.fingerprint),
        ("features of hash", known.features_sha256.get(split), found.get(split, "unknown")),
        ("texts of hash", known.texts_sha256.get(split), texts),
    ):
        if expected is not None and expected != given:
            raise FormatError(
                run / "run.toml",
                f"the release's {split} split has {name} {given[:12]}…, expected "
                f"{expected[:12]}…: it is another release than at training",
            )


def check_reads_round(run: Path, record: RunRecord, release: Path, features: int) -> None:
    """Check that a run's networks can read a blind round drawn from another release.

    Raises:
        FormatError: If vocabulary or features are not as at training.
    """
    data, known = record.settings.data, record.release.vocabulary_sha256
    if features != record.release.features:
        raise FormatError(
            release, f"features {features} wide, {run} has learned on {record.release.features}"
        )
    if hash_of_vocabulary(make_reader(release, data).vocabulary) != known:
        raise FormatError(
            release,
            f"a blind round whose {data.tokenizer} vocabulary is not that of {run}: its ids mean"
            " other words; train on the round's own train split (`blind make --with-train`)",
        )


def refuse_round(release: Path, split: Split) -> None:
    """Refuse to score a split of a blind round by row.

    Raises:
        FormatError: If the split is one.
    """
    if round_of(release, split) is not None:
        raise FormatError(
            release,
            f"its {split} split is a blind round: rows are no pairs; `pc2-baseline predict` makes a"
            " submission for its judge",
        )
