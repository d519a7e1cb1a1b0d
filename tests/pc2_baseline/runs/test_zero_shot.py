"""A pre-trained dual encoder, from captures and release to a submission that the board takes."""

import hashlib
import io
import json
import shutil

import numpy as np
import pytest
import torch
import transformers
from PIL import Image, ImageDraw
from safetensors.torch import load_file, save_file

from leaderboard.blind import RoundPlan, make_round
from leaderboard.cli import main as judge
from leaderboard.scoring.evaluate import score
from leaderboard.submission.archive import open_submission
from leaderboard.submission.gallery import read_gallery
from now_builder.dual_encoder import DualEncoder, hash_of_encoder
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
from now_builder.multi_vector import MultiVectorEncoder
from pc2_baseline.config import ZeroShotSettings
from pc2_baseline.runs.zero_shot import _Finished, zero_shot
from tests.pc2_baseline.commands import call, failed, run

PAGES = 14
TEST = slice(2, 14)
"""Pages of the test split; the first two are dev's."""
WORDS = ["red", "news", "cats", "dogs", "music", "films", "cars", "houses", "food", "schools",
         "travel", "weather", "今天", "音楽"]  # fmt: skip


def caption(page):
    """A text of five tokens with its marks; page 7's is too long, page 9's just fits."""
    more = {7: " and more" * 8, 9: " and" * 7}
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


@pytest.fixture(scope="module")
def siglip(encoders, tmp_path_factory):
    """Random, with a scale and a bias that can be told from none."""
    folder = encoders.save(encoders.siglip, tmp_path_factory.mktemp("m") / "siglip", WORDS)
    state = load_file(folder / "model.safetensors")
    state["logit_scale"].fill_(2.0)
    state["logit_bias"].fill_(-7.0)
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture
def settings(data, clip):
    return ZeroShotSettings(captures=data[1], model=str(clip), device="cpu", batch_size=5)


def read(release, path, split="test"):
    with open_submission(path) as submission:
        matrix = submission.read(read_gallery(release, split, "jieba")).arrays
        return submission.meta, matrix


def by_the_model_itself(folder, captures, keys, texts):
    """Logits by a forward pass of the model for each pair of a screenshot and a caption alone."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    processor = transformers.AutoProcessor.from_pretrained(folder)
    shots = {capture.key: capture.screenshot for capture in read_captures(captures)}
    full = model.config.model_type == "siglip"
    shown = [Image.open(io.BytesIO(shots[key])).convert("RGB") for key in keys]
    seen = [processor.image_processor(images=[image], return_tensors="pt") for image in shown]
    logits = np.zeros((len(keys), len(texts)))
    for column, text in enumerate(texts):
        tokens = processor.tokenizer(
            [text], padding="max_length" if full else False, truncation=True, max_length=12,
            return_tensors="pt",
        )  # fmt: skip
        if full:
            del tokens["attention_mask"]
        for row, pixels in enumerate(seen):
            with torch.inference_mode():
                logits[row, column] = model(**tokens, **pixels).logits_per_image.item()
    return logits


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_scores_are_those_of_the_model_and_the_board_takes_them(
    data, settings, tmp_path, request, kind
):
    release, captures = data
    folder = request.getfixturevalue(kind)
    out = tmp_path / "x.zip"
    done = zero_shot(release, out, settings.model_copy(update={"model": str(folder)}))
    meta, matrix = read(release, out)
    keys = read_split_captions(release, "test", "jieba").keys
    texts = [caption(page) for page in range(PAGES)[TEST]]
    expected = by_the_model_itself(folder, captures, keys, texts)
    assert matrix.dtype == np.float32
    np.testing.assert_allclose(matrix, expected, atol=1e-4)
    assert (done.pairs, done.truncated, done.text_limit) == (12, 1, 12)
    assert "8.3% of the captions cut to 12 tokens" in str(done)
    result = score(out, release)
    assert 0 <= result.rsum <= 600
    assert meta.method.name == f"{kind} (zero-shot)"
    assert meta.method.version == hash_of_encoder(folder)[:12]
    assert hash_of_encoder(folder) in meta.method.abstract
    assert "8.3% of them cut to 12 tokens" in meta.method.abstract
    assert meta.training.pretrained_backbones == (kind,)
    assert meta.training.ensemble_size == 1
    parameters = sum(value.numel() for value in load_file(folder / "model.safetensors").values())
    assert meta.compute.params_m == pytest.approx(parameters / 1e6, abs=5e-4)
    assert meta.links.model_card is None, "a folder is no page of the hub"


@pytest.mark.parametrize("kind", ["colpali", "colqwen2"])
def test_late_interaction_models_are_scored_place_by_place(
    data, settings, encoders, tmp_path, monkeypatch, kind
):
    """Batches whose captions have other numbers of words, and a stop between them."""
    release, captures = data
    folder = encoders.save(getattr(encoders, kind), tmp_path / kind, [*WORDS, "and"])
    own = settings.model_copy(update={"model": str(folder)})

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MultiVectorEncoder, "texts", stop)
        with pytest.raises(KeyboardInterrupt):
            zero_shot(release, tmp_path / "x.zip", own)
    with monkeypatch.context() as patch:
        patch.setattr(MultiVectorEncoder, "images", None)  # they are there
        done = zero_shot(release, tmp_path / "x.zip", own)
    shots = {capture.key: capture.screenshot for capture in read_captures(captures)}
    keys = read_split_captions(release, "test", "jieba").keys
    shown = [Image.open(io.BytesIO(shots[key])).convert("RGB") for key in keys]
    model = MultiVectorEncoder(str(folder), torch.device("cpu"))
    texts = model.texts([caption(page) for page in range(PAGES)[TEST]])
    meta, matrix = read(release, tmp_path / "x.zip")
    np.testing.assert_allclose(matrix, model.scores(model.images(shown), texts), atol=1e-4)
    assert (done.truncated, done.text_limit) == (0, 512)
    assert meta.method.name == f"{kind} (zero-shot)"
    assert meta.compute.params_m == pytest.approx(model.parameters / 1e6, abs=5e-4)


def test_the_same_command_gives_the_same_bytes_and_leaves_nothing_beside(data, settings, tmp_path):
    for name in ("a", "b"):
        zero_shot(data[0], tmp_path / f"{name}.zip", settings)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "b.zip"]


def test_dev_can_be_scored_too_and_squeezed_screenshots_score_otherwise(data, settings, tmp_path):
    plain, squeezed = (settings.model_copy(update={"split": "dev", "squeeze": how})
                       for how in (False, True))  # fmt: skip
    zero_shot(data[0], tmp_path / "plain.zip", plain)
    zero_shot(data[0], tmp_path / "squeezed.zip", squeezed)
    one = read(data[0], tmp_path / "plain.zip", "dev")
    two = read(data[0], tmp_path / "squeezed.zip", "dev")
    assert one[1].shape == (2, 2)
    assert np.abs(one[1] - two[1]).max() > 1e-3
    assert "squeezed" in two[0].method.abstract
    assert "squeezed" not in one[0].method.abstract


class Embedded:
    """Counts what is embedded, and stops as a kill would at some number of calls."""

    def __init__(self, patch, stop_after=1000):
        self.images = self.texts = 0
        self.left = stop_after
        for side, name in (("images", "packed_images"), ("texts", "texts")):
            self._watch(patch, side, name, getattr(DualEncoder, name))

    def _watch(self, patch, side, name, method):
        def watched(encoder, items, **more):
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            setattr(self, side, getattr(self, side) + len(items))
            return method(encoder, items, **more)

        patch.setattr(DualEncoder, name, watched)


@pytest.mark.parametrize(("stop_after", "left"), [(0, (12, 12)), (2, (2, 12)), (4, (0, 7))])
def test_what_was_killed_goes_on_where_it_was(
    data, settings, tmp_path, monkeypatch, stop_after, left
):
    zero_shot(data[0], tmp_path / "whole.zip", settings)
    out = tmp_path / "x.zip"
    with monkeypatch.context() as patch:
        Embedded(patch, stop_after)
        with pytest.raises(KeyboardInterrupt):
            zero_shot(data[0], out, settings)
    assert not out.exists()
    with monkeypatch.context() as patch:
        embedded = Embedded(patch)
        zero_shot(data[0], out, settings)
    assert (embedded.images, embedded.texts) == left
    assert out.read_bytes() == (tmp_path / "whole.zip").read_bytes()
    assert not out.with_name("x.zip.parts").exists()


def stopped(data, settings, out, monkeypatch):
    with monkeypatch.context() as patch:
        Embedded(patch, 3)
        with pytest.raises(KeyboardInterrupt):
            zero_shot(data[0], out, settings)


def test_a_torn_batch_is_done_again(data, settings, tmp_path, monkeypatch):
    out = tmp_path / "x.zip"
    stopped(data, settings, out, monkeypatch)
    (torn,) = out.with_name("x.zip.parts").glob("*-images-00000005.npy")
    torn.write_bytes(torn.read_bytes()[:-8])
    with monkeypatch.context() as patch:
        embedded = Embedded(patch)
        zero_shot(data[0], out, settings)
    assert embedded.images == 7


@pytest.mark.parametrize("change", ["model", "squeeze", "precision", "split"])
def test_features_of_something_else_are_not_taken(
    data, settings, siglip, tmp_path, monkeypatch, change
):
    out = tmp_path / "x.zip"
    stopped(data, settings, out, monkeypatch)
    other = {"model": str(siglip), "squeeze": True, "precision": "bf16", "split": "dev"}
    changed = settings.model_copy(update={change: other[change]})
    with monkeypatch.context() as patch:
        embedded = Embedded(patch)
        zero_shot(data[0], out, changed)
    assert embedded.images == (2 if change == "split" else 12)
    zero_shot(data[0], tmp_path / "fresh.zip", changed)
    assert out.read_bytes() == (tmp_path / "fresh.zip").read_bytes()


def test_another_model_at_work_beside_the_same_output_leaves_no_features_to_go_on_with(tmp_path):
    one, other = (_Finished(tmp_path / "x.zip", name) for name in ("one", "other"))
    one.embed("images", 2, 2, lambda _: torch.zeros(2, 3))
    later = other.embed("images", 2, 2, lambda _: torch.ones(2, 3))
    assert later.all()


def command(release, captures, model, out, *more):
    return call(
        "zero-shot", release, "--captures", captures, "--model", model,
        "-o", out, "--device", "cpu", *more,
    )  # fmt: skip


def test_from_a_release_to_scores_by_commands(data, clip, tmp_path):
    out = tmp_path / "x.zip"
    done = command(*data, clip, out, "--precision", "bf16")
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout
        == f"{out}: 12 screenshots x 12 captions, 8.3% of the captions cut to 12 tokens\n"
    )
    assert "images: 12 to embed, 0 done" in done.stderr
    judged = run(judge, "now-leaderboard", "score", out, "--release", data[0], "--json")
    assert judged.returncode == 0, judged.stderr
    assert json.loads(judged.stdout)["method"]["name"] == "clip (zero-shot)"


def test_mistakes_end_in_one_line(data, clip, tmp_path, monkeypatch):
    release, captures = data
    out = tmp_path / "x.zip"
    failed(command(release, captures, clip, tmp_path / "x.npy"), "expected the name of a .zip file")
    (folder := tmp_path / "folder.zip").mkdir()
    failed(command(release, captures, clip, folder), "a folder, expected the name of a .zip file")
    folder.rmdir()
    failed(command(tmp_path, captures, clip, out), "no folder now100k_precomp")
    asked = command(release, captures, clip, out, "--revision", "v2")
    failed(asked, "a folder has no revision 'v2'")
    failed(command(release, tmp_path / "no", clip, out), "no such captures folder")
    failed(command(release, captures, tmp_path / "no", out), "neither a folder nor a name")
    for device in ("abacus", "meta"):
        asked = command(release, captures, clip, out, "--device", device)
        failed(asked, f"'{device}' cannot be used")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    failed(command(release, captures, "now/none", out), "`hf download now/none` brings all of it")
    monkeypatch.setattr("now_builder.dual_encoder.find_spec", lambda _: None)
    failed(command(release, captures, clip, out), r"pip install 'noise-of-web\[zero-shot\]")
    assert not [*tmp_path.iterdir()], "a command that cannot start leaves nothing behind"


def test_a_track_that_the_release_lacks_is_refused_before_the_work(data, clip, tmp_path):
    done = command(*data, clip, tmp_path / "x.zip", "--track", "bpe")
    assert done.returncode == 1
    assert "test_caps_bpe.txt: no such file; there are" in done.stderr
    assert not [*tmp_path.iterdir()]


def test_captures_of_another_crawl_or_without_a_shard_are_refused(data, clip, tmp_path):
    write_captures(tmp_path / "other", seed=1)
    failed(
        command(data[0], tmp_path / "other", clip, tmp_path / "x.zip"),
        r"no screenshot of 12 of 12 pairs, such as 00000_0001 \(http://site2.test/0\): not the "
        r"captures that the release was packaged from\?",
    )
    captures = shutil.copytree(data[1], tmp_path / "captures")
    (captures / "00001.parquet").unlink()
    failed(command(data[0], captures, clip, tmp_path / "x.zip"), "no screenshot of 6 of 12 pairs")


def test_a_changed_screenshot_is_refused(data, settings, tmp_path):
    captures = shutil.copytree(data[1], tmp_path / "captures")
    tar = captures / "00000.tar"
    content = tar.read_bytes()
    place = content.index(b"IDAT", content.index(b"00000_0003.png"))
    tar.write_bytes(content[: place + 40] + b"hurt" + content[place + 44 :])
    chosen = settings.model_copy(update={"captures": captures})
    with pytest.raises(Exception, match="screenshot of 00000_0003 differs from its sha256"):
        zero_shot(data[0], tmp_path / "x.zip", chosen)


def test_planted_releases_blind_rounds_and_the_archive_have_no_texts_or_screenshots(
    data, clip, easy, tmp_path
):
    captures, out = data[1], tmp_path / "x.zip"
    failed(command(easy, captures, clip, out), "no screenshot of 40 of 40 pairs")
    make_round(easy, tmp_path / "round", RoundPlan(name="June"))
    failed(
        command(tmp_path / "round" / "participants", captures, clip, out),
        "the test split of blind round 'June', which has neither screenshots nor caption texts",
    )
    archive = shutil.copytree(data[0], tmp_path / "archive")
    (archive / "manifest.json").unlink()
    failed(command(archive, captures, clip, out), "no manifest.json and so no caption texts")


def test_pairs_in_another_order_than_the_captions_are_refused(data, clip, tmp_path):
    release = shutil.copytree(data[0], tmp_path / "release")
    ids = release / "now100k_precomp" / "test_ids.txt"
    ids.write_text("".join(reversed(ids.read_text().splitlines(keepends=True))))
    done = command(release, data[1], clip, tmp_path / "x.zip")
    assert done.returncode == 1
    assert "pairs.parquet: keys of test are not those of its captions" in done.stderr


def test_a_model_of_the_hub_is_named_with_its_page_and_commit(
    data, clip, settings, tmp_path, monkeypatch
):
    commit = "0123456789" * 4
    snapshot = shutil.copytree(clip, tmp_path / commit)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(snapshot))
    zero_shot(data[0], tmp_path / "x.zip", settings.model_copy(update={"model": "now/clip"}))
    meta, _ = read(data[0], tmp_path / "x.zip")
    assert meta.method.name == "now/clip (zero-shot)"
    assert meta.method.version == commit
    assert meta.links.model_card == "https://huggingface.co/now/clip"
