"""Pack the similarities of one or several runs as a submission."""

from collections.abc import Sequence
from pathlib import Path

from leaderboard.submission.archive import Compute, Submission, Training, new_submission, pack
from now_builder.dual_encoder import encoder_name
from now_builder.formats.benchmarks import BENCHMARKS
from now_builder.formats.io import check_output
from now_builder.formats.release import check_split
from pc2_baseline.config import DualEncoderSettings, Settings
from pc2_baseline.methods.triplet import OneNetworkSettings
from pc2_baseline.runs.open_run import OpenRun, mean_similarity, open_runs

_TITLES = {
    "bicro": "BiCro",
    "contrastive": "Softmax loss",
    "crossfit": "Cross-fit division",
    "pc2-crossfit": "PC2, cross-fit division",
    "ridge": "Ridge regression",
}
"""Titles of methods that are not their names in capitals."""

_LONGEST = 60
"""Maximum length of a pre-trained model's name."""


def predict(
    run: Path | str | Sequence[Path | str],
    split: str,
    output: Path | str,
    *,
    release: Path | str | None = None,
    device_name: str | None = None,
    bank: int | None = None,
) -> None:
    """Score a split with a run's best epoch and pack the matrix.

    Args:
        run: The run folder, or several: their similarities are averaged, each counting once.
        split: ``dev`` or ``test``.
        output: The submission to write.
        release: Folder of the release; default: where it was at training.
        device_name: Device; default: the run's setting.
        bank: Number of training pairs for the hub correction; default: ``data.bank`` of the runs.

    Raises:
        FormatError: If the run, the release or the checkpoint cannot be read, or the release is
            neither that of the training nor a blind round of the same vocabulary.
        ConfigError: If ``output`` is not a ``.zip`` file, the board has no track for the data set,
            or several runs are not of the same data.
    """
    output = Path(output)
    check_output(output, ".zip")
    name = check_split(split)
    opened = open_runs(run, release=release, device=device_name, bank=bank)
    meta = describe(opened, name)
    similarity, _ = mean_similarity(opened, name, whole=True)  # the board has all of dev
    pack(output, similarity, meta)


def describe(opened: Sequence[OpenRun], split: str, title: str | None = None) -> Submission:
    """Describe a submission of the best epochs of one or several runs.

    ``title`` is the method's name on the board; a note on the use of known matched pairs is added.
    """
    first, every = opened[0], [run.record.settings for run in opened]
    encoders = tuple(dict.fromkeys(name for settings in every if (name := _encoder(settings))))
    training = Training(
        external_data="The data of the pre-trained model." if encoders else None,
        pretrained_backbones=encoders,
        seeds=tuple(dict.fromkeys(settings.train.seed for settings in every)),
        ensemble_size=sum(run.method.ensemble_size for run in opened),
        checkpoint_selection="dev",
        noise=first.record.release.noise,
    )
    name = title or " + ".join(dict.fromkeys(method_title(settings) for settings in every))
    if title:
        name += _notes(every)
    # new_submission rejects a track that the board does not have, before any scoring
    data = every[0].data
    tracks: dict[str, str] = {one.folder: track for track, one in BENCHMARKS.items()}
    track = tracks.get(data.name, data.tokenizer)
    meta = new_submission(first.release, track, split, name, training)
    compute = Compute(params_m=round(sum(run.parameters for run in opened) / 1e6, 3))
    return meta.model_copy(update={"compute": compute})


def method_title(settings: Settings) -> str:
    """Return a method's name as in papers; for the triplet loss, that of its network.

    A star marks a mismatch threshold; networks other than SGR and the use of the truth are named.
    """
    method = settings.method
    encoder = _encoder(settings).rpartition("/")[2]
    network = encoder or settings.model.similarity.upper().replace("_", " ")
    notes = _notes([settings])
    if isinstance(method, OneNetworkSettings):
        plain = settings.model.similarity in {"pooled", "reading"}
        name = f"Triplet loss, {network.lower()} network" if plain else network
        return f"{name}{'-C' if _is_bound(settings) else ''}{notes}"
    title = _TITLES.get(method.name, method.name.upper())
    if method.name == "ridge" and settings.reads:
        title = "Words read on the page, ridge regression"
    star = "*" if getattr(method, "mismatch_threshold", 0) else ""
    if encoder:
        return f"{title}{star}, {encoder}{notes}"
    other = network != "SGR" and method.name != "ridge"
    return f"{title}{star}{f', {network.lower()} network' if other else ''}{notes}"


def _notes(every: Sequence[Settings]) -> str:
    """Return the note on the use of known matched pairs."""
    if any(_is_bound(settings) for settings in every):
        return " (trained on matched pairs alone)"
    taught = any(settings.method.takes_matched for settings in every)
    return " (taught by pairs known to match)" if taught else ""


def _encoder(settings: Settings) -> str:
    """Return the name of the pre-trained model that a run started from, or ""."""
    model = settings.model
    name = model.encoder if isinstance(model, DualEncoderSettings) else ""
    return encoder_name(name)[-_LONGEST:] if name else ""


def _is_bound(settings: Settings) -> bool:
    """Whether a run was trained only on pairs that the truth calls matched."""
    return isinstance(settings.method, OneNetworkSettings) and settings.method.matched_only
