"""From a run's best epoch to a submission."""

from pathlib import Path

from leaderboard.submission.archive import (
    Compute,
    Submission,
    Training,
    new_submission,
    pack,
)
from now_builder.errors import ConfigError
from now_builder.formats.benchmarks import BENCHMARKS
from now_builder.formats.release import check_split
from pc2_baseline.config import DataSettings
from pc2_baseline.runs.open_run import OpenRun, open_run


def predict(
    run: Path,
    split: str,
    output: Path,
    *,
    release: Path | None = None,
    device_name: str | None = None,
) -> None:
    """Score a split with a run's best epoch and pack the matrix.

    Args:
        run: The run folder.
        split: ``train``, ``dev`` or ``test``.
        output: The submission to write.
        release: Where the release lies; default: where it was at training.
        device_name: Default: as set for the run.

    Raises:
        FormatError: If the run, the release or the checkpoint cannot be read, or the release is
            another one than at training and no blind round of the same vocabulary.
        ConfigError: If ``output`` is no ``.zip``, or the board has no track for the data set.
    """
    if output.suffix != ".zip":
        raise ConfigError(f"-o {output}: expected the name of a .zip file")
    name = check_split(split)
    opened = open_run(run, release=release, device=device_name)
    with opened.open(name, whole=True) as pairs:  # the board has all of dev
        meta = describe(opened, name)
        similarity = opened.method.similarity(pairs)
    pack(output, similarity, meta)


def describe(opened: OpenRun, split: str, title: str | None = None) -> Submission:
    """Describe a submission of a run's best epoch.

    Args:
        opened: The run.
        split: ``dev`` or ``test``.
        title: Name on the board; default: that of the method.

    Raises:
        FormatError: If the release lacks the split.
        ConfigError: If the board has no track for the data set.
    """
    settings = opened.record.settings
    training = Training(
        seeds=(settings.train.seed,),
        ensemble_size=opened.method.ensemble_size,
        checkpoint_selection="dev",
        noise=opened.record.release.noise,
    )
    name = title or settings.method.name.upper()
    meta = new_submission(opened.release, track_of(settings.data), split, name, training)
    compute = Compute(params_m=round(opened.parameters / 1e6, 3))
    return meta.model_copy(update={"compute": compute})


def track_of(data: DataSettings) -> str:
    """Return the board's track; a tokenizer that it does not have is refused before the work."""
    named = (track for track, found in BENCHMARKS.items() if found.folder == data.name)
    return next(named, data.tokenizer)
