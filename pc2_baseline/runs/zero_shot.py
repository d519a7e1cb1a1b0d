"""A pre-trained model, not trained here, from screenshots and captions to a submission."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from leaderboard.submission.archive import (
    Compute,
    Links,
    Method,
    Submission,
    Training,
    new_submission,
    pack,
)
from now_builder.dual_encoder import DualEncoder
from now_builder.errors import FormatError
from now_builder.formats.io import check_output, replacing
from now_builder.formats.reader import open_release
from now_builder.formats.release import Pair
from now_builder.formats.screenshots import Screenshot, find_screenshots
from now_builder.formats.shard import open_screenshot
from now_builder.multi_vector import MultiVectorEncoder, has_many_vectors
from pc2_baseline.config import EncoderSettings, ZeroShotSettings
from pc2_baseline.data.pixels import PackedScreenshots, pairs_with_texts
from pc2_baseline.progress import bar, say
from pc2_baseline.training.run_folder import pick_device

AnyEncoder = DualEncoder | MultiVectorEncoder

_MAX_NAME = 120
"""Characters of a method's name on the board."""


@dataclass(frozen=True, slots=True)
class ZeroShot:
    """Outcome of ``zero-shot``: the submission, and how many captions were cut to the limit."""

    output: Path
    pairs: int
    truncated: int
    text_limit: int

    def __str__(self) -> str:
        """Return one line for the terminal."""
        share = self.truncated / self.pairs
        return (
            f"{self.output}: {self.pairs} screenshots x {self.pairs} captions, {share:.1%} of the "
            f"captions cut to {self.text_limit} tokens"
        )


def zero_shot(release: Path | str, output: Path | str, settings: ZeroShotSettings) -> ZeroShot:
    """Score a split's screenshots against its caption texts by a pre-trained model.

    Features of finished batches wait in ``OUTPUT.parts/`` until the submission is written: the
    same call goes on after a stop. Scores of a dual encoder are cosines times the model's own
    scale, plus its bias; those of a late-interaction model are its MaxSim.

    Raises:
        ConfigError: If ``output`` is no ``.zip`` or a folder, the device or the track is none, or
            the model cannot be had or is of neither kind.
        FormatError: If the release has no caption texts, as the authors' archive and blind rounds
            have not, or the captures lack a screenshot of it or are another crawl's.
    """
    release, output = Path(release), Path(output)
    check_output(output, ".zip")
    open_release(release)
    pairs = pairs_with_texts(release, settings.split)
    screenshots = find_screenshots(settings.captures, pairs)
    encoder = _encoder(settings)
    texts = [pair.caption for pair in pairs]
    truncated = sum(count > encoder.text_limit for count in encoder.count_tokens(texts))
    done = ZeroShot(output, len(pairs), truncated, encoder.text_limit)
    meta = _describe(release, settings, encoder, done, [pair.key for pair in pairs])
    with embedded(output, pairs, screenshots, encoder, settings) as (images, captions):
        scores = encoder.scores(torch.from_numpy(images), torch.from_numpy(captions))
        pack(output, scores.numpy(), meta)
    return done


def make_encoder(model: str, settings: EncoderSettings) -> DualEncoder:
    """Load a dual encoder."""
    device = pick_device(settings.device)
    return DualEncoder(model, device, settings.precision, revision=settings.revision)


def _encoder(settings: ZeroShotSettings) -> AnyEncoder:
    if not has_many_vectors(settings.model, settings.revision):
        return make_encoder(settings.model, settings)
    device = pick_device(settings.device)
    return MultiVectorEncoder(settings.model, device, settings.precision, settings.revision)


@contextmanager
def embedded(
    output: Path,
    pairs: Sequence[Pair],
    screenshots: dict[str, Screenshot],
    encoder: AnyEncoder,
    settings: EncoderSettings,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Embed the screenshots and the captions of some pairs.

    Finished batches wait in ``OUTPUT.parts/`` until the context ends, when the output is written.
    """
    texts = [pair.caption for pair in pairs]
    finished = _Finished(output, _digest(encoder, settings, texts, screenshots))
    shots = [screenshots[pair.key] for pair in pairs]

    def embed_images(rows: slice) -> Tensor:
        if isinstance(encoder, MultiVectorEncoder):
            shown = [open_screenshot(shot.read(), shot.key) for shot in shots[rows]]
            return encoder.images(shown, squeeze=settings.squeeze)
        packed = PackedScreenshots(shots[rows], encoder, squeeze=settings.squeeze)
        return encoder.packed_images(torch.from_numpy(packed[:]).flatten(1))

    def embed_texts(rows: slice) -> Tensor:
        return encoder.texts(texts[rows])

    size = settings.batch_size
    images = finished.embed("images", len(pairs), size, embed_images)
    yield images, finished.embed("captions", len(pairs), size, embed_texts)
    finished.remove()


def _describe(
    release: Path,
    settings: ZeroShotSettings,
    encoder: AnyEncoder,
    done: ZeroShot,
    keys: Sequence[str],
) -> Submission:
    method = Method(
        name=f"{encoder.name} (zero-shot)"[-_MAX_NAME:],
        version=encoder.revision or encoder.sha256[:12],
        abstract=(
            "Zero-shot: pre-trained, not trained on this data; screenshots "
            f"{'squeezed to squares ' if settings.squeeze else ''}against caption texts, "
            f"{done.truncated / done.pairs:.1%} of them cut to {done.text_limit} tokens. "
            f"Computed in {settings.precision}; sha256 of the model's files: {encoder.sha256}."
        ),
    )
    training = Training(
        uses_external_data=True,
        external_data="The data of the pre-trained model; nothing of this release.",
        pretrained_backbones=(encoder.name[-_MAX_NAME:],),
        ensemble_size=1,
    )
    meta = new_submission(release, settings.track, settings.split, method, training)
    if meta.image_ids != tuple(keys):
        raise FormatError(
            release / "pairs.parquet", f"keys of {settings.split} are not those of its captions"
        )
    card = f"https://huggingface.co/{encoder.name}" if encoder.on_hub else None
    compute = Compute(params_m=round(encoder.parameters / 1e6, 3))
    return meta.model_copy(update={"links": Links(model_card=card), "compute": compute})


def _digest(
    encoder: AnyEncoder,
    settings: EncoderSettings,
    texts: Sequence[str],
    screenshots: dict[str, Screenshot],
) -> str:
    """Identify all that the features depend on."""
    own = settings.model_dump(include={"precision", "squeeze"})
    seen = {key: found.sha256 for key, found in screenshots.items()}
    tree = [encoder.sha256, encoder.text_limit, own, list(texts), seen]
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


class _Finished:
    """Features of finished batches beside an output, in files named by a digest and a first row.

    So those of another model or other data are never taken, though it be at work just then.
    """

    def __init__(self, output: Path, digest: str) -> None:
        self._folder = output.with_name(f"{output.name}.parts")
        self._digest = digest

    def embed(
        self, side: str, rows: int, batch_size: int, embed: Callable[[slice], Tensor]
    ) -> Float[np.ndarray, "rows ..."]:
        """Return the features of all rows; compute only those that are missing."""
        blocks = self._read(side)
        done = sum(map(len, blocks))
        say(f"{side}: {rows - done} to embed, {done} done")
        starts = range(done, rows, batch_size)
        for start in bar(starts, side, len(starts)):
            block = embed(slice(start, start + batch_size)).numpy()
            file = self._file(side, start)
            with replacing(file, durable=False) as temporary, temporary.open("wb") as stream:
                np.save(stream, block, allow_pickle=False)
            blocks.append(block)
        return _joined(blocks)

    def remove(self) -> None:
        """Remove all of them, also of other digests."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _read(self, side: str) -> list[Float[np.ndarray, "_ ..."]]:
        """Read the files that follow one another from the first row, up to one that is torn."""
        blocks: list[Float[np.ndarray, "_ ..."]] = []
        count = 0
        while (path := self._file(side, count)).is_file():
            try:
                block = np.load(path, allow_pickle=False)
            except (ValueError, OSError, EOFError):
                break
            blocks.append(block)
            count += len(block)
        return blocks

    def _file(self, side: str, start: int) -> Path:
        return self._folder / f"{self._digest}-{side}-{start:08d}.npy"


def _joined(blocks: Sequence[Float[np.ndarray, "_ ..."]]) -> Float[np.ndarray, "rows ..."]:
    """Put blocks together; vectors of fewer places get zeros behind."""
    longest = max(block.shape[1] for block in blocks)
    behind = [(0, 0)] * (blocks[0].ndim - 2)
    return np.concatenate(
        [np.pad(block, [(0, 0), (0, longest - block.shape[1]), *behind]) for block in blocks]
    )
