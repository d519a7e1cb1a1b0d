"""New text is cut as a release's captions were."""

import pytest
import tokenizers

from now_builder.encode import encode
from now_builder.errors import FormatError
from now_builder.formats.captions import MENDED, UNK, make_vocabulary
from now_builder.formats.release import read_pairs, read_release_vocabulary, read_split_captions


def ids_of(*arguments):
    return [number for _, number in encode(*arguments)]


@pytest.mark.parametrize("tokenizer", ["jieba", "bpe", "bert"])
def test_every_caption_of_a_release_has_the_ids_that_the_release_keeps(small_release, tokenizer):
    vocabulary = read_release_vocabulary(small_release, tokenizer)
    captions = {pair.key: pair.caption for pair in read_pairs(small_release)}
    for split in ("train", "dev", "test"):
        stored = read_split_captions(small_release, split, tokenizer)
        assert stored.captions == [
            ids_of(small_release, tokenizer, vocabulary, captions[key]) for key in stored.keys
        ]


def test_text_is_cleaned_and_mended_where_the_captions_were(small_release):
    vocabulary = read_release_vocabulary(small_release, "bpe")
    mended = vocabulary.model_copy(update={"extra": {"captions": MENDED}})
    plain = ids_of(small_release, "bpe", vocabulary, "news music")
    assert ids_of(small_release, "bpe", vocabulary, " news \n music\x00") == plain
    assert ids_of(small_release, "bpe", mended, "<b>news</b> music") == plain
    assert ids_of(small_release, "bpe", vocabulary, "<b>news</b> music") != plain


def test_white_space_is_a_token_of_jieba_only_where_it_was_at_training(small_release, tmp_path):
    without = make_vocabulary(["cats", "dogs"], "jieba", "", "")
    kept = make_vocabulary(["cats", "dogs", " "], "jieba", "", "")
    assert ids_of(tmp_path, "jieba", without, "cats dogs") == [4, 5]
    assert ids_of(tmp_path, "jieba", kept, "cats dogs") == [4, 6, 5]
    assert ids_of(tmp_path, "jieba", without, "cats whales") == [4, UNK]
    bert = read_release_vocabulary(small_release, "bert")
    assert ids_of(small_release, "bert", bert, "𓀀") == [UNK]


def test_a_token_that_is_not_known_is_the_text_it_stands_for(small_release, tmp_path):
    nothing = make_vocabulary([], "bert", "", "")
    assert encode(small_release, "bert", nothing, "cat 𓀀") == [
        *((token, UNK) for token in _tokens(small_release, "cat")), ("𓀀", UNK),
    ]  # fmt: skip
    (tmp_path / "vocab").mkdir()
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0, "a": 1}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens(["</s>"])
    words.save(str(tmp_path / "vocab" / "mine.tokenizer.json"))
    vocabulary = make_vocabulary(["a"], "mine", "", "")
    found = encode(tmp_path, "mine", vocabulary, "a whales </s>")
    assert found == [("a", 4), ("whales", UNK), ("</s>", UNK)]


def _tokens(release, text):
    path = release / "vocab" / "bert.tokenizer.json"
    return tokenizers.Tokenizer.from_file(str(path)).encode(text).tokens


def test_a_tokenizers_file_that_is_missing_or_cannot_cut_the_text_is_named(tmp_path):
    vocabulary = make_vocabulary(["cats"], "bert", "", "")
    with pytest.raises(FormatError, match=r"bert\.tokenizer\.json: no such file"):
        encode(tmp_path, "bert", vocabulary, "cats")
    (tmp_path / "vocab").mkdir()
    (tmp_path / "vocab" / "bert.tokenizer.json").write_text("{}")
    with pytest.raises(FormatError, match="cannot cut a text"):
        encode(tmp_path, "bert", vocabulary, "cats")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"cats": 0}, unk_token="?"))
    words.save(str(tmp_path / "vocab" / "mine.tokenizer.json"))
    with pytest.raises(FormatError, match=r"mine\.tokenizer\.json: cannot cut a text"):
        encode(tmp_path, "mine", vocabulary, "whales")
