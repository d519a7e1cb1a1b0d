"""From a run's best epoch to a submission."""

from pathlib import Path

from leaderboard.core.rounds import round_of
from leaderboard.submission.archive import Compute, Training, new_submission, pack
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.benchmarks import BENCHMARKS
from now_builder.formats.release import check_split
from pc2_baseline.config import DataSettings
from pc2_baseline.data.pairs import open_pairs
from pc2_baseline.methods import Method
from pc2_baseline.modules.onednn_products import fast_float32
from pc2_baseline.training.checkpoint import read_tensors
from pc2_baseline.training.run_folder import (
    BEST,
    check_reads_round,
    check_split_is_the_runs,
    locate_release,
    pick_device,
    read_run,
)
from pc2_baseline.training.trainer import make_method


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
    record = read_run(run)
    data = record.settings.data.model_copy(update={"dev_images": 0})  # the board has all of dev
    folder = locate_release(run, record, release)
    device = pick_device(device_name or record.settings.train.device)
    method = make_method(record, device)
    parameters = load_best(run, method)
    name = check_split(split)
    training = Training(
        seeds=(record.settings.train.seed,),
        ensemble_size=method.ensemble_size,
        checkpoint_selection="dev",
        noise=record.release.noise,
    )
    with fast_float32(), open_pairs(folder, name, data, device) as pairs:
        if round_of(folder, name) is None:
            check_split_is_the_runs(run, record, name, pairs.fingerprint)
        else:
            check_reads_round(run, record, folder, pairs.features)
        title = record.settings.method.name.upper()
        meta = new_submission(folder, _track(data), split, title, training)
        similarity = method.similarity(pairs)
    compute = Compute(params_m=round(parameters / 1e6, 3))
    pack(output, similarity, meta.model_copy(update={"compute": compute}))


def _track(data: DataSettings) -> str:
    """Name the board's track; a tokenizer that it does not have is refused before the work."""
    named = (track for track, found in BENCHMARKS.items() if found.folder == data.name)
    return next(named, data.tokenizer)


def load_best(run: Path, method: Method) -> int:
    """Take the best epoch's networks; give the number of their values.

    Raises:
        FormatError: If they are not of this method's networks.
    """
    tensors = read_tensors(run / BEST, {"networks"})
    try:
        method.load_state_dict(tensors)
    except (ValueError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise FormatError(run / BEST, f"not of this run's network ({reason})") from None
    return sum(value.numel() for value in tensors["networks"].values())
