"""A pre-trained dual encoder, from captures and release to a submission that the board takes."""

import io
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file

from leaderboard.blind import RoundPlan, make_round
from leaderboard.scoring.evaluate import score
from leaderboard.submission.archive import open_submission
from leaderboard.submission.gallery import read_gallery
from now_builder.dual_encoder import hash_of_encoder
from now_builder.formats.release import read_pairs, write_pairs
from now_builder.formats.shard import read_captures
from pc2_baseline.config import ZeroShotSettings
from pc2_baseline.runs.zero_shot import zero_shot
from tests.pc2_baseline.commands import call, failed
from tests.pc2_baseline.painted import WORDS, write_painted


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Release and captures; read only. One caption is longer than a text tower takes."""
    root = write_painted(tmp_path_factory.mktemp("data"), {"dev": 2, "test": 12})
    change(root / "release", lambda pair: {"caption": "a1 b2 " * 8} if pair.pair_index == 7 else {})
    return root / "release", root / "captures"


def change(release, fields):
    """Change fields of the pairs of a release."""
    pairs = [replace(pair, **fields(pair)) for pair in read_pairs(release)]
    write_pairs(release / "pairs.parquet", pairs)


@pytest.fixture
def settings(data, small_clip):
    return ZeroShotSettings(captures=data[1], model=str(small_clip), device="cpu", batch_size=5)


def scored(release, settings, out):
    """The submission's description and its matrix."""
    zero_shot(release, out, settings)
    with open_submission(out) as submission:
        matrix = submission.read(read_gallery(release, settings.split, "jieba"))
        return submission.meta, matrix


def pictures_and_texts(release, captures):
    shots = {capture.key: capture.screenshot for capture in read_captures(captures)}
    pairs = [pair for pair in read_pairs(release) if pair.split == "test"]
    shown = [Image.open(io.BytesIO(shots[pair.key])).convert("RGB") for pair in pairs]
    return shown, [pair.caption for pair in pairs]


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_scores_are_the_cosines_of_the_model_itself_and_the_board_takes_them(
    data, settings, encoders, tmp_path, kind
):
    release, captures = data
    folder = encoders.save(getattr(encoders, kind), tmp_path / kind, WORDS)
    own = settings.model_copy(update={"model": str(folder)})
    meta, matrix = scored(release, own, tmp_path / "x.zip")
    model = transformers.AutoModel.from_pretrained(folder).eval()
    processor = transformers.AutoProcessor.from_pretrained(folder)
    shown, texts = pictures_and_texts(release, captures)
    with torch.inference_mode():
        pixels = processor.image_processor(images=shown, return_tensors="pt")
        images = model.get_image_features(**pixels).pooler_output
        captions = [
            model.get_text_features(
                **processor.tokenizer(
                    [text], padding="max_length" if kind == "siglip" else False, truncation=True,
                    max_length=12, return_tensors="pt",
                )
            ).pooler_output
            for text in texts
        ]  # fmt: skip
    expected = torch.cosine_similarity(images[:, None], torch.cat(captions)[None], dim=2)
    np.testing.assert_allclose(matrix, expected, atol=1e-5)
    assert expected.std(0).min() > 1e-4, "pictures are told apart"
    assert 0 <= score(tmp_path / "x.zip", release).rsum <= 600
    assert meta.method.name == f"{kind} (zero-shot)"
    assert meta.method.version == hash_of_encoder(folder)[:12]
    assert hash_of_encoder(folder) in meta.method.abstract
    assert meta.training.pretrained_backbones == (kind,)
    parameters = sum(value.numel() for value in load_file(folder / "model.safetensors").values())
    assert meta.compute.params_m == pytest.approx(parameters / 1e6, abs=5e-4)
    assert meta.links.model_card is None, "a folder is no page of the hub"


@pytest.mark.parametrize("kind", ["colpali", "colqwen2"])
def test_models_of_many_vectors_are_compared_by_max_sim(data, settings, encoders, tmp_path, kind):
    release, captures = data
    folder = encoders.save(getattr(encoders, kind), tmp_path / kind, WORDS)
    own = settings.model_copy(update={"model": str(folder)})
    meta, matrix = scored(release, own, tmp_path / "x.zip")
    model = transformers.AutoModelForPreTraining.from_pretrained(folder).eval()
    processor = transformers.AutoProcessor.from_pretrained(folder)
    shown, texts = pictures_and_texts(release, captures)
    with torch.inference_mode():
        images = [model(**processor.process_images(images=[one])).embeddings[0] for one in shown]
        queries = [model(**processor.process_queries(text=[one])).embeddings[0] for one in texts]
    expected = [[float((q @ i.T).amax(1).sum()) for q in queries] for i in images]
    np.testing.assert_allclose(matrix, expected, atol=1e-4)
    assert meta.method.name == f"{kind} (zero-shot)"


def test_dev_can_be_scored_too_and_squeezed_screenshots_score_otherwise(data, settings, tmp_path):
    plain, squeezed = (
        scored(data[0], settings.model_copy(update={"split": "dev", "squeeze": how}), out)
        for how, out in ((False, tmp_path / "plain.zip"), (True, tmp_path / "squeezed.zip"))
    )
    assert plain[1].shape == (2, 2)
    assert np.abs(plain[1] - squeezed[1]).max() > 1e-3
    assert "squeezed" in squeezed[0].method.abstract
    assert "squeezed" not in plain[0].method.abstract


def command(release, captures, model, out, *more):
    return call(
        "zero-shot", release, "--captures", captures, "--model", model,
        "-o", out, "--device", "cpu", *more,
    )  # fmt: skip


def test_by_command_in_half_precision_the_same_bytes_every_time(data, small_clip, tmp_path):
    for name in ("a", "b"):
        done = command(*data, small_clip, tmp_path / f"{name}.zip", "--precision", "bf16")
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{tmp_path / name}.zip\n"
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "b.zip"]


def test_mistakes_end_in_one_line(data, small_clip, easy, tmp_path, monkeypatch):
    release, captures = data
    out = tmp_path / "x.zip"
    no, no_zip = tmp_path / "no", tmp_path / "x.npy"
    for given, problem in (
        ((release, captures, small_clip, no_zip), "expected the name of a .zip file"),
        ((tmp_path, captures, small_clip, out), "no folder now100k_precomp"),
        ((release, no, small_clip, out), "no such captures folder"),
        ((release, captures, no, out), "neither a folder nor a name"),
        ((release, captures, small_clip, out, "--device", "abacus"), "'abacus' cannot be used"),
        ((release, captures, small_clip, out, "--track", "bpe"), r"test_caps_bpe.txt: no such"),
        ((easy, captures, small_clip, out), "no screenshot of 40 of 40 pairs"),
    ):
        failed(command(*given), problem)
    (texts := tmp_path / "texts").mkdir()
    transformers.BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1).save_pretrained(
        texts
    )
    (texts / "model.safetensors").write_bytes(b"torn")
    failed(command(release, captures, texts, out), "not a usable dual encoder")
    shutil.rmtree(texts)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    failed(command(release, captures, "now/none", out), "run `hf download now/none`")
    monkeypatch.setattr("pc2_baseline.runs.zero_shot.find_spec", lambda _: None)
    failed(command(release, captures, small_clip, out), r"pip install 'noise-of-web\[zero-shot\]")
    assert not [*tmp_path.iterdir()], "a command that cannot start leaves nothing behind"


def test_captures_of_another_crawl_changed_ones_and_releases_without_texts_are_refused(
    data, small_clip, easy, settings, tmp_path
):
    release, out = data[0], tmp_path / "x.zip"
    other = shutil.copytree(release, tmp_path / "other")
    change(other, lambda pair: {"url": f"{pair.url}1"})
    failed(
        command(other, data[1], small_clip, out),
        r"no screenshot of 12 of 12 pairs, such as 00000_0002 \(http://site.*/1\): not the "
        r"captures that the release was packaged from\?",
    )
    captures = shutil.copytree(data[1], tmp_path / "captures")
    content = (tar := captures / "00000.tar").read_bytes()
    place = content.index(b"IDAT", content.index(b"00000_0003.png"))
    tar.write_bytes(content[: place + 40] + b"hurt" + content[place + 44 :])
    with pytest.raises(Exception, match="screenshot of 00000_0003 differs from its sha256"):
        zero_shot(release, out, settings.model_copy(update={"captures": captures}))
    make_round(easy, tmp_path / "round", RoundPlan(name="June"))
    failed(
        command(tmp_path / "round" / "participants", captures, small_clip, out),
        "test is blind round 'June', without screenshots and caption texts",
    )
    archive = shutil.copytree(release, tmp_path / "archive")
    (archive / "manifest.json").unlink()
    failed(command(archive, captures, small_clip, out), "no manifest.json and so no caption texts")
    swapped = shutil.copytree(release, tmp_path / "swapped")
    ids = swapped / "now100k_precomp" / "test_ids.txt"
    ids.write_text("".join(reversed(ids.read_text().splitlines(keepends=True))))
    failed(
        command(swapped, data[1], small_clip, out),
        "other keys than the captions of test, or in another order",
    )


def test_a_model_of_the_hub_is_named_with_its_page_and_commit(
    data, small_clip, settings, tmp_path, monkeypatch
):
    commit = "0123456789" * 4
    snapshot = shutil.copytree(small_clip, tmp_path / commit)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(snapshot))
    meta, _ = scored(data[0], settings.model_copy(update={"model": "now/clip"}), tmp_path / "x.zip")
    assert meta.method.name == "now/clip (zero-shot)"
    assert meta.method.version == commit
    assert meta.links.model_card == "https://huggingface.co/now/clip"
