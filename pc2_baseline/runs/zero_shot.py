"""Score screenshots and captions with a pre-trained model, and pack a submission."""

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from leaderboard.submission.archive import (
    Compute,
    Links,
    Method,
    Submission,
    Training,
    new_submission,
    pack,
)
from now_builder.dual_encoder import (
    DTYPES,
    LONGEST,
    encoder_name,
    find_encoder,
    hash_of_encoder,
    refused,
    squared,
    unusable,
)
from now_builder.errors import ConfigError
from now_builder.formats.io import check_output
from now_builder.formats.reader import open_release
from now_builder.formats.screenshots import find_screenshots
from now_builder.formats.shard import open_screenshot
from now_builder.program.missing_package import install_extra
from pc2_baseline.config import ZeroShotSettings
from pc2_baseline.data.pairs import full_batches
from pc2_baseline.data.pixels import check_keys, pairs_with_texts
from pc2_baseline.progress import bar
from pc2_baseline.training.run_folder import pick_device

_MAX_NAME = 120
"""Maximum length of a method's name on the board."""


def zero_shot(release: Path | str, output: Path | str, settings: ZeroShotSettings) -> None:
    """Score a split's screenshots against its caption texts with a sentence-transformers model.

    Captions are encoded as queries and screenshots as documents. The model's own similarity
    compares them: cosine, or MaxSim for a multi-vector model.

    Raises:
        ConfigError: If ``output`` is not a ``.zip`` file, the device or track does not exist, or
            the model cannot be loaded or does not encode images and texts.
        FormatError: If the release has no caption texts (the authors' archive, blind rounds), or
            the captures lack one of its screenshots or are from another crawl.
    """
    release, output = Path(release), Path(output)
    check_output(output, ".zip")
    open_release(release)
    pairs = pairs_with_texts(release, settings.split)
    shots = find_screenshots(settings.captures, pairs)
    device, folder = pick_device(settings.device), find_encoder(settings.model)
    meta = _describe(release, settings, folder)
    check_keys(release, settings.split, pairs, meta.image_ids or ())
    images: list[Any] = []
    options: dict[str, Any] = {"batch_size": settings.batch_size, "show_progress_bar": False}
    with unusable(settings.model):
        model = _load(settings, folder, str(device))
        blocks = full_batches(np.arange(len(pairs)), settings.batch_size)
        for block in bar(blocks, "screenshots", len(blocks)):
            shown = [open_screenshot(shots[pairs[row].key].read(), pairs[row].key) for row in block]
            shown = [squared(each) for each in shown] if settings.squeeze else shown
            images.extend(model.encode_document(shown, **options))
        captions = model.encode_query([pair.caption for pair in pairs], **options)
        scores = torch.as_tensor(model.similarity(captions, images)).T.float().cpu()
    if not scores.isfinite().all():
        raise refused(settings.model, "its similarities are not finite; precision fp32 may help")
    values = sum(value.numel() for value in model.parameters())
    compute = Compute(params_m=round(values / 1e6, 3))
    pack(output, scores.numpy(), meta.model_copy(update={"compute": compute}))


def _describe(release: Path, settings: ZeroShotSettings, folder: Path) -> Submission:
    name, sha256 = encoder_name(settings.model), hash_of_encoder(folder)
    commit = folder.name if re.fullmatch("[0-9a-f]{40}", folder.name) else None
    method = Method(
        name=f"{name} (zero-shot)"[-_MAX_NAME:],
        version=commit or sha256[:12],
        abstract="Zero-shot: pre-trained, not trained on this data; screenshots "
        f"{'squeezed to squares ' if settings.squeeze else ''}against caption texts. Computed in "
        f"{settings.precision}; sha256 of the model's files: {sha256}.",
    )
    training = Training(
        uses_external_data=True,
        external_data="The data of the pre-trained model; nothing of this release.",
        pretrained_backbones=(name[-_MAX_NAME:],),
        ensemble_size=1,
    )
    meta = new_submission(release, settings.track, settings.split, method, training)
    if Path(settings.model).is_dir():
        return meta
    return meta.model_copy(update={"links": Links(model_card=f"https://huggingface.co/{name}")})


def _load(settings: ZeroShotSettings, folder: Path, device: str) -> Any:
    """Load a single- or multi-vector model from its folder, without running code from it."""
    if find_spec("sentence_transformers") is None:
        raise ConfigError(f"sentence-transformers is missing; {install_extra('zero-shot')}")
    from sentence_transformers import MultiVectorEncoder, SentenceTransformer
    from transformers.utils import logging

    log: Any = logging  # untyped
    log.disable_progress_bar()
    about: dict[str, Any] = {}
    for file in (folder / "config.json", folder / "config_sentence_transformers.json"):
        about |= json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    architecture = f"{about.get('model_type')} {about.get('architectures')}"
    of_many = "MultiVector" in architecture or "ForRetrieval" in architecture
    model: Any = (MultiVectorEncoder if of_many else SentenceTransformer)(
        str(folder), device=device, local_files_only=True,
        model_kwargs={"dtype": DTYPES[settings.precision]},
    )  # fmt: skip
    if lacking := {"image", "text"} - set(model.modalities):
        raise ValueError(f"it does not encode {' and '.join(sorted(lacking))}")
    if "siglip" in architecture.lower():  # as in its training
        model[0].processing_kwargs = {"text": {"padding": "max_length"}}
    text = getattr(model.config, "text_config", model.config)
    positions = getattr(text, "max_position_embeddings", LONGEST)
    model.max_seq_length = min(model.max_seq_length or positions, positions)
    return model
