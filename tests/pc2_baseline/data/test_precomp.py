"""Flickr30K, MS-COCO and CC152K as the field stores them: what is read, and what is refused."""

import json
import shutil

import numpy as np
import pytest
import torch

from now_builder.errors import ConfigError, FormatError
from pc2_baseline.config import DataSettings, read_settings
from pc2_baseline.data.pairs import open_pairs
from pc2_baseline.data.precomp import encode, read_vocabulary
from pc2_baseline.methods.one_network import make_network
from pc2_baseline.modules.retrieval import fold_scores, scores, similarity_matrix
from pc2_baseline.training.method import Sizes

CPU = torch.device("cpu")


def of(name="f30k_precomp", **changes):
    return DataSettings.model_validate({"name": name, "sentences": False, **changes})


def texts_of(pairs, release, data):
    words = {index: word for word, index in read_vocabulary(release, data).word2idx.items()}
    return [" ".join(words[index] for index in caption) for caption in pairs.captions]


@pytest.fixture
def copy(flickr, tmp_path):
    return shutil.copytree(flickr, tmp_path / "copy")


def test_five_captions_an_image_are_five_pairs(flickr):
    with open_pairs(flickr, "train", of(), CPU) as pairs:
        assert (len(pairs), pairs.images, pairs.features) == (100, 20, 16)
        assert pairs.image_of.tolist() == np.repeat(np.arange(20), 5).tolist()
        assert pairs.matched is None
        stored = np.load(flickr / "f30k_precomp" / "train_ims.npy")
        batch = pairs.batch(np.array([99, 0, 4, 5]))
        assert torch.equal(batch.regions, torch.from_numpy(stored[[19, 0, 0, 1]]))
        assert batch.pair_index.tolist() == [99, 0, 4, 5]
        assert (batch.tokens[:, 0] == 1).all(), "<start>"


def test_captions_are_lower_cased_words_and_unknown_ones_are_unk(copy):
    path = copy / "f30k_precomp" / "test_caps.txt"
    lines = path.read_text().splitlines()
    lines[0] = "  A W1A, image of something.  "
    path.write_text("\n".join(lines) + "\n")
    with open_pairs(copy, "test", of(), CPU) as pairs:
        expected = "<start> a w1a , image <unk> <unk> . <end>"
        assert texts_of(pairs, copy, of())[0] == expected
    with open_pairs(copy, "test", of(max_tokens=2), CPU) as pairs:
        assert texts_of(pairs, copy, of())[0] == "<start> a w1a <end>"


def test_the_sentence_splitter_is_the_fields_and_can_be_left_out(flickr, punkt):
    vocabulary = read_vocabulary(flickr, of())
    text = "A w1a. A w1b."
    with_splitter, without = (
        encode([text], vocabulary, of(sentences=sentences))[0] for sentences in (True, False)
    )
    unknown = vocabulary.word2idx["<unk>"]
    assert unknown not in with_splitter, "both full stops are words of their own"
    assert (without == unknown).sum() == 1, "'w1a.' in the middle is one word"


def test_a_splitter_without_its_data_says_how_to_get_it(flickr, tmp_path, monkeypatch):
    import nltk
    from nltk import tokenize

    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    tokenize._get_punkt_tokenizer.cache_clear()
    with pytest.raises(ConfigError, match=r"python -m nltk\.downloader punkt_tab") as caught:
        encode(["a"], read_vocabulary(flickr, of()), of(sentences=True))
    assert "\n" not in str(caught.value)
    assert "data.sentences = false" in str(caught.value)


def test_the_folder_itself_or_its_parent_can_be_given(flickr):
    with (
        open_pairs(flickr, "dev", of(), CPU) as parent,
        open_pairs(flickr / "f30k_precomp", "dev", of(), CPU) as itself,
    ):
        assert parent.fingerprint == itself.fingerprint
        assert len(parent) == len(itself) == 40


@pytest.mark.parametrize("name", ["f30k_precomp", "coco_precomp"])
def test_images_stored_once_a_caption_are_read_once(fields, tmp_path, name):
    once, often = (
        fields.make_field(tmp_path / kind, fields.Field(name=name, repeated=kind == "often"))
        for kind in ("once", "often")
    )
    for split in ("dev", "test"):
        with (
            open_pairs(once, split, of(name), CPU) as plain,
            open_pairs(often, split, of(name), CPU) as folded,
        ):
            assert folded.images == plain.images
            assert np.array_equal(folded.image_of, plain.image_of)
            assert np.array_equal(folded.regions, plain.regions)


def test_images_of_which_some_are_repeated_are_refused(fields, tmp_path):
    release = fields.make_field(tmp_path, fields.Field(repeated=True))
    path = release / "f30k_precomp" / "dev_ims.npy"
    regions = np.load(path)
    regions[12] += 1
    np.save(path, regions)
    refuse(release, "rows 0 to 4 are one image, rows 10 to 14 are not", split="dev")


def test_dev_is_cut_to_whole_images_with_their_captions(flickr):
    with open_pairs(flickr, "dev", of(dev_images=3), CPU) as pairs:
        assert (pairs.images, len(pairs)) == (3, 15)
    with open_pairs(flickr, "dev", of(dev_images=0), CPU) as pairs:
        assert (pairs.images, len(pairs)) == (8, 40)
    with open_pairs(flickr, "test", of(dev_images=3), CPU) as pairs:
        assert pairs.images == 6, "only dev is cut"
    assert DataSettings().dev_images == 1000


def test_cc152k_is_a_table_of_one_caption_an_image(fields, tmp_path):
    plan = fields.Field(name="cc152k_precomp", each=1)
    release = fields.make_field(tmp_path, plan)
    path = release / "cc152k_precomp" / "train_caps.tsv"
    lines = path.read_text().splitlines()
    lines[1] = '00000001\t"a w1a" image'
    path.write_text("\r\n".join(lines) + "\r\n")
    data = of("cc152k_precomp")
    with open_pairs(release, "train", data, CPU) as pairs:
        assert pairs.images == len(pairs) == 20
        assert texts_of(pairs, release, data)[1] == "<start> a w1a image <end>"


def test_a_vocabulary_is_found_beside_the_data_or_where_it_is_said_to_be(copy, tmp_path):
    moved = shutil.move(copy / "vocab", tmp_path / "elsewhere")
    refuse(copy, "f30k_precomp_vocab.json: file not found; set data.vocab_path")
    for path in (moved, moved / "f30k_precomp_vocab.json"):
        assert read_vocabulary(copy, of(vocab_path=path)).idx == 24
    shutil.copytree(moved, copy / "f30k_precomp" / "vocab")
    assert read_vocabulary(copy / "f30k_precomp", of()).idx == 24


def test_each_image_is_encoded_once_and_scored_with_every_caption(flickr):
    settings = read_settings("pc2-paper", ["model.embed_dim=16", "model.word_dim=8"], on="demo")
    torch.manual_seed(0)
    net = make_network(settings.model, Sizes(100, 16, 24)).eval()
    with open_pairs(flickr, "dev", of(), CPU) as pairs, torch.no_grad():
        matrix = similarity_matrix(net, pairs, block=3)
        assert matrix.shape == (8, 40)
        batch = pairs.batch(np.array([0, 11, 39]))
        direct = net.score(
            net.encode_images(batch.regions), net.encode_captions(batch.tokens, batch.lengths)
        ).numpy()
        found = torch.from_numpy(matrix[np.ix_([0, 2, 7], [0, 11, 39])]).sigmoid()
        assert np.allclose(found, direct, atol=1e-5)


def test_folds_are_consecutive_images_with_their_captions():
    rng = np.random.default_rng(0)
    owner = np.arange(60) // 5
    similarity = rng.normal(size=(12, 60))
    similarity[owner, np.arange(60)] += 1
    found = fold_scores(similarity, owner, 4)
    parts = [
        scores(similarity[first : first + 4, first * 5 : first * 5 + 20], owner[:20])
        for first in (0, 4, 8)
    ]
    for name, value in found.items():
        assert value == pytest.approx(np.mean([part[name] for part in parts]))
    assert found["rsum"] > scores(similarity, owner)["rsum"], "a smaller gallery is easier"
    assert fold_scores(similarity, owner, 12) == scores(similarity, owner)


def refuse(release, pattern, data=None, split="train"):
    with (
        pytest.raises(FormatError, match=pattern) as caught,
        open_pairs(release, split, data or of(), CPU),
    ):
        pass
    assert "\n" not in str(caught.value)


def test_a_folder_of_another_layout_is_refused(flickr, tmp_path):
    for release in (flickr, flickr / "f30k_precomp"):
        refuse(release, "contains f30k_precomp; use --set data.name=f30k_precomp", DataSettings())
    refuse(flickr, "expected the layout of coco_precomp", of("coco_precomp"))
    refuse(tmp_path, r"no \*_caps.tsv in it or in cc152k_precomp/", of("cc152k_precomp"))


def test_an_empty_caption_and_a_line_without_a_tab_are_named(copy, fields, tmp_path):
    path = copy / "f30k_precomp" / "train_caps.txt"
    lines = path.read_text().splitlines()
    lines[6] = "  "
    path.write_text("\n".join(lines) + "\n")
    refuse(copy, "train_caps.txt: line 7: an empty caption")
    path.write_text("")
    refuse(copy, "no captions")
    release = fields.make_field(tmp_path, fields.Field(name="cc152k_precomp", each=1))
    path = release / "cc152k_precomp" / "train_caps.tsv"
    lines = path.read_text().splitlines()
    lines[2] = "00000002 no tab"
    path.write_text("\n".join(lines) + "\n")
    refuse(release, "line 3: '00000002 no tab', expected image<TAB>caption", of("cc152k_precomp"))


def test_images_of_another_number_shape_or_type_and_torn_ones_are_refused(copy):
    path = copy / "f30k_precomp" / "train_ims.npy"
    whole = np.load(path)
    np.save(path, whole[:19])
    refuse(copy, "19 images for 100 captions, expected a divisor")
    for changed in (whole[:, :35], whole[:, 0], whole.astype(int)):
        np.save(path, changed)
        refuse(copy, r"expected (floats )?\((images|pairs), ")
    path.write_bytes(path.read_bytes()[:-100])
    refuse(copy, "train_ims.npy: not a readable .npy array")
    path.unlink()
    refuse(copy, "train_ims.npy: no such file")


def test_a_vocabulary_that_cannot_serve_is_refused(copy):
    path = copy / "vocab" / "f30k_precomp_vocab.json"
    whole = json.loads(path.read_text())
    for change, pattern in (
        ({"w1a": 99}, "id 99"),
        ({"<unk>": None}, "no token <unk>"),
        ({"<pad>": 3, "<unk>": 0}, "<pad> is 3"),
    ):
        words = {**whole["word2idx"], **change}
        kept = {word: index for word, index in words.items() if index is not None}
        for size in ({}, {"idx": 100}):
            path.write_text(json.dumps({**whole, "word2idx": kept, **size}))
            refuse(copy, pattern)
