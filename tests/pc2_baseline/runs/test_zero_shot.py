"""A pre-trained dual encoder, from captures and release to a submission that the board takes."""

import hashlib
import io
import shutil

import numpy as np
import pytest
import torch
import transformers
from PIL import Image, ImageDraw
from safetensors.torch import load_file

from leaderboard.blind import RoundPlan, make_round
from leaderboard.scoring.evaluate import score
from leaderboard.submission.archive import open_submission
from leaderboard.submission.gallery import read_gallery
from now_builder.dual_encoder import hash_of_encoder
from now_builder.formats.captions import make_vocabulary, write_vocabulary
from now_builder.formats.io import write_text
from now_builder.formats.release import (
    Manifest,
    Pair,
    fingerprint,
    read_split_captions,
    write_manifest,
    write_pairs,
)
from now_builder.formats.shard import (
    HEIGHT,
    WIDTH,
    Capture,
    CaptureRow,
    Planned,
    read_captures,
    write_plan,
    write_shard,
)
from now_builder.formats.split import Shares, SplitPlan
from pc2_baseline.config import ZeroShotSettings
from pc2_baseline.runs.zero_shot import zero_shot
from tests.pc2_baseline.commands import call, failed

PAGES = 14
TEST = slice(2, 14)
"""Pages of the test split; the first two are dev's."""
WORDS = ["red", "news", "cats", "dogs", "music", "films", "cars", "houses", "food", "schools",
         "travel", "weather", "今天", "音楽"]  # fmt: skip


def caption(page):
    """A text of five tokens with its marks; page 7's is longer than a text tower takes."""
    more = {7: " and more" * 8}
    return f"{WORDS[page]} and {WORDS[page * 5 % PAGES]}{more.get(page, '')}"


def draw(page, seed):
    picture = Image.new("RGB", (WIDTH, HEIGHT), (17 * page % 256, 250 - 15 * page, 40 * seed))
    pen = ImageDraw.Draw(picture)
    pen.rectangle((40, 60 + 50 * page, 400, 300 + 60 * page), fill="white")
    pen.ellipse((40 * page, 500, 40 * page + 200, 700), fill="black")
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=1)
    return file.getvalue()


def write_captures(folder, seed=0):
    """Two shards, as a crawl writes them; another seed is another crawl."""
    plan, shots = [], {}
    for page in range(PAGES):
        shard, url = page % 2, f"http://site{page}.test/{seed}"
        plan.append(Planned(f"{shard:05d}_{page // 2:04d}", shard, url, url, f"site{page}.test"))
        shots[plan[-1].key] = draw(page, seed)
    folder.mkdir()
    write_plan(folder, sorted(plan, key=lambda line: line.key))
    for shard in (0, 1):
        lines = [line for line in plan if line.shard == shard]
        rows = [
            CaptureRow(
                line.key, line.url, line.url_canonical, line.site, "ok",
                sha256=hashlib.sha256(shots[line.key]).hexdigest(), phash=f"{seed:016x}",
            )
            for line in lines
        ]  # fmt: skip
        write_shard(
            folder,
            shard,
            rows,
            (Capture(line.key, shots[line.key], b"<html>", []) for line in lines),
        )
    return plan


def write_release(folder, plan):
    """What a release has of pairs and captions, by the formats' own writers."""
    data, pairs, prints = folder / "now100k_precomp", [], {}
    for split, rows in (("dev", slice(0, 2)), ("test", TEST)):
        lines, pages = plan[rows], range(PAGES)[rows]
        ids = [[4 + page, 4 + page * 5 % PAGES] for page in pages]
        for index, (line, page) in enumerate(zip(lines, pages, strict=True)):
            own = hashlib.sha256(line.key.encode()).hexdigest()
            pairs.append(
                Pair(line.key, split, index, line.url, line.site, caption(page), "name", "en",
                     f"{0:016x}", own)
            )  # fmt: skip
        write_text(data / f"{split}_ids.txt", "".join(f"{line.key}\n" for line in lines))
        tokens = "".join(f"{','.join(map(str, row))}\n" for row in ids)
        write_text(data / f"{split}_caps_jieba.txt", tokens)
        prints[split] = {"jieba": fingerprint([line.key for line in lines], ids)}
    write_pairs(folder / "pairs.parquet", pairs)
    vocabulary = make_vocabulary(WORDS, "jieba", "drawn", "train")
    write_vocabulary(folder / "vocab" / "now100k_precomp_vocab_jieba.json", vocabulary)
    write_manifest(
        folder,
        Manifest(
            name="small", created_at="2026-01-01", files={}, rejects={}, detector={}, versions={},
            split=SplitPlan(shares=Shares(train=0.5, dev=0.2, test=0.3)), settings={},
            counts={"dev": 2, "test": PAGES - 2}, fingerprints=prints,
        ),
    )  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Release and captures; read only."""
    root = tmp_path_factory.mktemp("data")
    write_release(root / "release", write_captures(root / "captures"))
    return root / "release", root / "captures"


@pytest.fixture(scope="module")
def clip(encoders, tmp_path_factory):
    return encoders.save(encoders.clip, tmp_path_factory.mktemp("m") / "clip", [*WORDS, "and"])


@pytest.fixture
def settings(data, clip):
    return ZeroShotSettings(captures=data[1], model=str(clip), device="cpu", batch_size=5)


def scored(release, settings, out):
    """The submission's description and its matrix."""
    zero_shot(release, out, settings)
    with open_submission(out) as submission:
        matrix = submission.read(read_gallery(release, settings.split, "jieba")).arrays
        return submission.meta, matrix


def pictures_and_texts(release, captures):
    shots = {capture.key: capture.screenshot for capture in read_captures(captures)}
    keys = read_split_captions(release, "test", "jieba").keys
    shown = [Image.open(io.BytesIO(shots[key])).convert("RGB") for key in keys]
    return shown, [caption(page) for page in range(PAGES)[TEST]]


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_scores_are_the_cosines_of_the_model_itself_and_the_board_takes_them(
    data, settings, encoders, tmp_path, kind
):
    release, captures = data
    folder = encoders.save(getattr(encoders, kind), tmp_path / kind, [*WORDS, "and"])
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
    folder = encoders.save(getattr(encoders, kind), tmp_path / kind, [*WORDS, "and"])
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


def test_by_command_in_half_precision_the_same_bytes_every_time(data, clip, tmp_path):
    for name in ("a", "b"):
        done = command(*data, clip, tmp_path / f"{name}.zip", "--precision", "bf16")
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{tmp_path / name}.zip: 12 screenshots x 12 captions\n"
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "b.zip"]


def test_mistakes_end_in_one_line(data, clip, easy, tmp_path, monkeypatch):
    release, captures = data
    out = tmp_path / "x.zip"
    failed(command(release, captures, clip, tmp_path / "x.npy"), "expected the name of a .zip file")
    failed(command(tmp_path, captures, clip, out), "no folder now100k_precomp")
    failed(command(release, tmp_path / "no", clip, out), "no such captures folder")
    failed(command(release, captures, tmp_path / "no", out), "neither a folder nor a name")
    failed(command(release, captures, clip, out, "--device", "abacus"), "'abacus' cannot be used")
    failed(command(release, captures, clip, out, "--track", "bpe"), r"test_caps_bpe.txt: no such")
    failed(command(easy, captures, clip, out), "no screenshot of 40 of 40 pairs")
    (texts := tmp_path / "texts").mkdir()
    transformers.BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1).save_pretrained(
        texts
    )
    (texts / "model.safetensors").write_bytes(b"torn")
    failed(command(release, captures, texts, out), "not a usable dual encoder")
    shutil.rmtree(texts)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    failed(command(release, captures, "now/none", out), "`hf download now/none` brings all of it")
    monkeypatch.setattr("pc2_baseline.runs.zero_shot.find_spec", lambda _: None)
    failed(command(release, captures, clip, out), r"pip install 'noise-of-web\[zero-shot\]")
    assert not [*tmp_path.iterdir()], "a command that cannot start leaves nothing behind"


def test_captures_of_another_crawl_changed_ones_and_releases_without_texts_are_refused(
    data, clip, easy, settings, tmp_path
):
    release, out = data[0], tmp_path / "x.zip"
    write_captures(tmp_path / "other", seed=1)
    failed(
        command(release, tmp_path / "other", clip, out),
        r"no screenshot of 12 of 12 pairs, such as 00000_0001 \(http://site2.test/0\): not the "
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
        command(tmp_path / "round" / "participants", captures, clip, out),
        "the test split of blind round 'June', which has neither screenshots nor caption texts",
    )
    archive = shutil.copytree(release, tmp_path / "archive")
    (archive / "manifest.json").unlink()
    failed(command(archive, captures, clip, out), "no manifest.json and so no caption texts")
    swapped = shutil.copytree(release, tmp_path / "swapped")
    ids = swapped / "now100k_precomp" / "test_ids.txt"
    ids.write_text("".join(reversed(ids.read_text().splitlines(keepends=True))))
    failed(command(swapped, data[1], clip, out), "keys of test are not those of its captions")


def test_a_model_of_the_hub_is_named_with_its_page_and_commit(
    data, clip, settings, tmp_path, monkeypatch
):
    commit = "0123456789" * 4
    snapshot = shutil.copytree(clip, tmp_path / commit)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(snapshot))
    meta, _ = scored(data[0], settings.model_copy(update={"model": "now/clip"}), tmp_path / "x.zip")
    assert meta.method.name == "now/clip (zero-shot)"
    assert meta.method.version == commit
    assert meta.links.model_card == "https://huggingface.co/now/clip"
