"""Captions and pages compared by meaning: small encoders whose words have meanings by hand."""

import csv
import json
import shutil
from dataclasses import replace
from importlib.util import find_spec

import h5py
import numpy as np
import pytest
import torch
import transformers

from leaderboard.submission.archive import open_submission
from now_builder.errors import ConfigError
from now_builder.formats.release import read_pairs
from now_builder.formats.word_vectors import columns_attribute, text_vector
from pc2_baseline.config import read_settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.data.seen_words import SeenWords
from pc2_baseline.data.sentence_encoder import SentenceEncoder
from pc2_baseline.methods import make_method
from pc2_baseline.modules.reading import fit_word_sides, texts_read, whiten_once
from pc2_baseline.runs.open_run import similarity
from pc2_baseline.training.method import Sizes
from tests.encoders import PAD, SPECIAL, tokenizer
from tests.pc2_baseline.commands import call, failed
from tests.pc2_baseline.train_twice import train_twice

pytestmark = pytest.mark.skipif(  # importing it takes five seconds, in each worker
    find_spec("sentence_transformers") is None, reason="pip install 'noise-of-web[text-encoder]'"
)
CPU = torch.device("cpu")
COLUMNS = slice(3, 259)
MEANINGS = [
    ("data", "files"), ("recovery", "rescue"), ("broken", "crashed"), ("disk", "drive"),
    ("cheap", "bargain"), ("flights", "airfares"), ("garden", "yard"), ("plants", "shrubs"),
    ("child", "kid"), ("clothes", "garments"), ("fast", "quick"), ("meals", "dishes"),
    ("old", "vintage"), ("cars", "autos"), ("sick", "ill"), ("dogs", "hounds"),
]  # fmt: skip
"""Two words for each of the things that pages are about."""
ASKED, SHOWN = ([pair[side] for pair in MEANINGS] for side in (0, 1))


def write_encoder(folder, pooling="mean"):
    """Write a sentence encoder that gives both words for a thing the same vector."""
    words = [*ASKED, *SHOWN]
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(SPECIAL) + len(words), hidden_size=32, num_hidden_layers=0,
        num_attention_heads=2, intermediate_size=8, max_position_embeddings=24, pad_token_id=PAD,
    )  # fmt: skip
    model = transformers.BertModel(config)
    parts = model.embeddings
    with torch.no_grad():
        parts.position_embeddings.weight.zero_()
        parts.token_type_embeddings.weight.zero_()
        table = parts.word_embeddings.weight
        table[len(SPECIAL) + len(ASKED) :] = table[len(SPECIAL) : len(SPECIAL) + len(ASKED)]
    model.save_pretrained(folder)
    tokenizer(words, 24).save_pretrained(folder)
    kinds = (("", "Transformer"), ("1_Pooling", "Pooling"))
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    modes = {
        "pooling_mode_cls_token": pooling == "cls",
        "pooling_mode_mean_tokens": pooling == "mean",
    }
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 32, **modes})
    )
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_encoder(tmp_path_factory.mktemp("small-encoder"))


def said(rows, side):
    return [" ".join(side[thing] for thing in row) for row in rows]


def drawn(pairs, seed, *, captions, known=False):
    """Draw pages that show four things; ``captions`` are the words that these say them in."""
    generator = np.random.default_rng(seed)
    rows = [generator.choice(len(MEANINGS), 4, replace=False) for _ in range(pairs)]
    shown = said(rows, SHOWN)
    read = np.stack([text_vector(text) for text in shown])[:, None]
    read = read + 0.2 * generator.normal(size=(pairs, 36, 256))
    regions = np.concatenate([generator.normal(size=(pairs, 36, 3)), read], 2)
    written = said(rows, captions)
    seen = SeenWords(COLUMNS, lambda: written, (lambda: shown) if known else None)
    nothing = [np.zeros(1)] * pairs
    return PairSet(regions.astype(np.float32), nothing, "", CPU, np.arange(pairs), None, seen)


def first(matrix):
    """Return the share of captions whose own page is nearest."""
    return float((matrix.argmax(0) == np.arange(matrix.shape[1])).mean())


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("preset", ["reading", "contrastive"])
def test_a_page_that_says_it_in_other_words_is_found_by_meaning(encoder, preset, known):
    """Captions are in words that no page shows and, where pages' texts are known, none taught."""
    changes = ["model.similarity=reading"] if preset == "contrastive" else []
    letters = read_settings(preset, [*changes, "train.lr=0.01"], on="demo")
    model = letters.model.model_copy(update={"text_encoder": str(encoder)})
    found = {}
    for settings in (letters, letters.model_copy(update={"model": model})):
        taught = SHOWN
        learned = texts_read(drawn(300, 0, captions=taught, known=known), settings)
        asked = texts_read(drawn(60, 1, captions=ASKED, known=known), settings)
        with_encoder = bool(settings.model.text_encoder)
        width = 32 * (known and with_encoder)
        words = fit_word_sides(learned) if preset == "contrastive" else None
        sizes = Sizes(300, 259 + width, 1, words, 32 * with_encoder, width)
        method = make_method(settings, sizes, CPU)
        for epoch in range(6):
            method.fit_epoch(learned, epoch)
        found[with_encoder] = first(method.similarity(asked))
    assert found[False] < 0.1
    assert found[True] > 0.8


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_texts_are_pooled_as_the_models_files_say_and_read_once(pooling, tmp_path):
    folder = write_encoder(tmp_path, pooling)
    found = SentenceEncoder(str(folder), CPU)
    model = transformers.AutoModel.from_pretrained(folder)
    given = transformers.AutoTokenizer.from_pretrained(folder)("data recovery", return_tensors="pt")
    states = model(input_ids=given["input_ids"]).last_hidden_state[0].detach().numpy()
    slow = states.mean(0) if pooling == "mean" else states[0]
    vectors = found(["data recovery", " ", "data recovery", "files rescue"])
    np.testing.assert_allclose(vectors[0], slow / np.linalg.norm(slow), atol=1e-5)
    np.testing.assert_array_equal(vectors[2], vectors[0])
    np.testing.assert_allclose(vectors[3], vectors[0], atol=1e-5)
    assert not vectors[1].any(), "nothing is said"
    assert np.isfinite(found(["data " * 500])).all(), "cut to what it takes"


@pytest.mark.parametrize("known", [False, True])
def test_pages_are_whitened_once_with_their_texts(encoder, known):
    settings = read_settings(
        "contrastive", ["model.similarity=reading", f"model.text_encoder={encoder}"], on="demo"
    )
    pairs = texts_read(drawn(40, 0, captions=SHOWN, known=known), settings)
    sizes = Sizes(40, 259 + 32 * known, 1, fit_word_sides(pairs), 32, 32 * known)
    method = make_method(settings, sizes, CPU)
    once = whiten_once(method, pairs, 1.0)
    assert once.regions is not pairs.regions
    np.testing.assert_allclose(method.similarity(once), method.similarity(pairs), atol=1e-5)
    unread = replace(pairs, page_texts=np.zeros((40, 32), np.float32) if known else None)
    assert np.isfinite(method.similarity(unread)).all()


@pytest.fixture(scope="module")
def release(tiny, tmp_path_factory):
    """A release whose features are said to hold words, and a table of the texts on its pages."""
    copy = shutil.copytree(tiny, tmp_path_factory.mktemp("meaning") / "release")
    for path in copy.rglob("*.h5"):
        with h5py.File(path, "a") as file:
            file.attrs["words"] = columns_attribute(slice(512, 768))
    with (copy.parent / "read.csv").open("w") as file:
        rows = csv.writer(file)
        rows.writerow(["key", "ocr"])
        rows.writerows((row.key, f"data\n{row.caption}") for row in read_pairs(copy))
    return copy


QUICK = ["data.tokenizer=jieba", "train.warmup_epochs=1", "train.epochs=1", "train.device=cpu",
         "train.tensorboard=false", "train.pictures=false"]  # fmt: skip


def chosen(release, encoder, preset, *more):
    changes = [*QUICK, f"model.text_encoder={encoder}", "train.batch=8", *more]
    changes += ["model.similarity=reading"] if preset != "reading" else []
    return read_settings(preset, changes, on="demo")


@pytest.mark.parametrize("known", [False, True])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(release, encoder, known, tmp_path):
    texts = [f"data.page_texts={release.parent / 'read.csv'}"] if known else []
    own = chosen(release, encoder, "pc2-pooled", *texts)
    train_twice(release, tmp_path, own, 1)
    assert np.array_equal(*(similarity(tmp_path / name) for name in ("whole", "stopped")))


@pytest.fixture(scope="module")
def trained(release, encoder, tmp_path_factory):
    run = tmp_path_factory.mktemp("run") / "run"
    sets = [*QUICK, f"data.page_texts={release.parent / 'read.csv'}", "data.bank=10"]
    told = [word for change in sets for word in ("--set", change)]
    done = call("train", release, run, "--config", "reading", "--on", "demo", *told,
                "--text-encoder", encoder)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return run


def test_a_run_is_evaluated_searched_and_submitted(release, encoder, trained, tmp_path):
    plain, lowered = (similarity(trained, bank=pairs) for pairs in (0, None))
    assert not np.array_equal(plain, lowered), "data.bank"
    np.testing.assert_array_equal(similarity(trained, bank=10), lowered)
    for bank, expected in ((["--bank", "0"], plain), ([], lowered)):
        call("evaluate", trained, *bank, "-o", tmp_path / "x.npy")
        np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), expected)
    assert call("predict", trained, "-o", tmp_path / "x.zip").returncode == 0
    with open_submission(tmp_path / "x.zip") as packed:
        training = packed.meta.training
        assert encoder.name in packed.meta.method.name
    assert training.pretrained_backbones == (encoder.name,)
    assert "page_texts" in training.external_data


def test_other_texts_another_encoder_and_what_reads_none_are_refused_in_one_line(
    release, encoder, trained, tmp_path
):
    table = release.parent / "read.csv"
    kept, model = table.read_text(), encoder / "model.safetensors"
    try:
        for text, problem in (
            (kept.replace("data\n", "disk\n"), "texts of hash"),
            (kept.splitlines()[0] + "\n", "pages of test are not in it, such as"),
            (kept.replace("key,ocr", "key,text"), "no ocr"),
            (
                kept + kept.splitlines()[1].split(",")[0] + ",again\n",
                "is there twice, expected once",
            ),
        ):
            table.write_text(text)
            failed(call("evaluate", trained), problem)
    finally:
        table.write_text(kept)
    weights = model.read_bytes()
    model.write_bytes(weights[:-4] + b"\0\0\0\1")
    try:
        failed(call("evaluate", trained), "has changed since the training")
    finally:
        model.write_bytes(weights)
    for more, problem in (
        (["--config", "sgr", "--text-encoder", encoder], "model.text_encoder: texts are read by"),
        (["--config", "reading", "--set", "data.page_texts=x.csv"], "expected model.text_encoder"),
        (["--config", "reading", "--text-encoder", tmp_path], "not a usable sentence encoder"),
    ):
        told = ["--set", "data.tokenizer=jieba", *more]
        failed(call("train", release, tmp_path / "other", *told), problem)
    with pytest.raises(ConfigError, match="not a usable sentence encoder"):
        SentenceEncoder(str(release), CPU)
