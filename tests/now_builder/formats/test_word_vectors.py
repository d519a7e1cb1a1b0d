"""Sketches of texts and vectors of letters; how tokens become text again."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from now_builder.formats.word_vectors import (
    FORMAT,
    WIDTH,
    columns_attribute,
    count_grams,
    letter_vector,
    read_columns,
    spans,
    text_of_tokens,
    text_sketch,
    unit_vector,
)
from now_builder.tokenize.bert import learn_wordpiece
from now_builder.tokenize.library import learn_bpe


def gram(text):
    """One sign for each bit of a digest."""
    bits = np.unpackbits(
        np.frombuffer(hashlib.blake2b(text.encode(), digest_size=32).digest(), "u1")
    )
    return np.where(bits, 1, -1) / 16


def unit(vector):
    return vector / np.linalg.norm(vector)


def test_a_letter_of_a_word_is_itself_its_two_pairs_and_its_triple():
    found = unit_vector(("c", "a", "t"))
    slow = 0.3 * gram("a") + 0.5 * gram("ca") + 0.5 * gram("at") + gram("cat")
    np.testing.assert_allclose(found, unit(slow), atol=1e-6)


def test_a_chinese_character_is_itself_and_the_pairs_that_there_are():
    np.testing.assert_allclose(
        unit_vector(("", "中", "文")), unit(gram("中") + 0.6 * gram("中文")), atol=1e-6
    )
    np.testing.assert_allclose(unit_vector(("", "中", "")), gram("中"), atol=1e-6)


def test_words_end_where_their_script_does_and_case_is_nothing():
    found = [one for _, one in spans("iPhone手机, カード・説 A1_b")]
    assert found == [
        ("<", "i", "p"), ("i", "p", "h"), ("p", "h", "o"), ("h", "o", "n"), ("o", "n", "e"),
        ("n", "e", ">"), ("", "手", "机"), ("手", "机", ""), ("", "カ", "ー"), ("カ", "ー", "ド"),
        ("ー", "ド", ""), ("", "説", ""), ("<", "a", "1"), ("a", "1", ">"), ("<", "b", ">"),
    ]  # fmt: skip


@given(st.text())
def test_any_text_has_vectors_and_each_letter_its_place(text):
    for place, one in spans(text):
        assert one[1] == text[place].casefold()
        assert abs(float(np.linalg.norm(unit_vector(one))) - 1) < 1e-5


def test_runs_ignore_case_spaces_and_repeated_letters():
    assert count_grams("A bB, Ａ!") == {
        "a": 2, "b": 1, "ab": 1, "ba": 1, "aba": 1
    }  # fmt: skip
    assert count_grams("手机 网络")["机网"] == 1
    assert not text_sketch("… !").any()


def test_a_sketch_has_the_signed_logarithm_of_the_count_at_each_place():
    slow = np.zeros(9216)
    for gram, count in count_grams("banana bandana").items():
        digest = hashlib.blake2b(gram.encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "little")
        slow[number % 9216] += -count if number >= 1 << 63 else count
    np.testing.assert_allclose(
        text_sketch("Banana bandana"), np.sign(slow) * np.log1p(np.abs(slow)), atol=1e-6
    )


def test_the_numbers_are_a_format():
    """Changed numbers make stored features unreadable, or a trained reader useless."""
    assert FORMAT == "now-words/2"
    assert WIDTH == len(letter_vector("a")) == 256
    signs = np.concatenate([unit_vector(("<", "n", "o")), unit_vector(("网", "络", ""))]) > 0
    assert hashlib.sha256(np.packbits(signs).tobytes()).hexdigest()[:16] == "664d00d6f10a0e50"
    places = np.flatnonzero(text_sketch("no 网络"))
    assert hashlib.sha256(places.astype("<i4").tobytes()).hexdigest()[:16] == "653bf1706436c57b"


CAPTIONS = [
    "Bäckerei Schmidt: frisches Brot", "手机网络 mobile phones", "안녕하세요 여러분",
    "naïve café 42", "Привет мир", "日本語のページ",
] * 3  # fmt: skip


@pytest.mark.parametrize("name", ["bert", "bpe"])
def test_a_captions_tokens_join_to_its_words(name):
    learn = {"bert": learn_wordpiece, "bpe": learn_bpe}[name]
    made = learn(CAPTIONS, 600, 2)
    for caption, tokens in zip(CAPTIONS[:6], made.cut(CAPTIONS[:6]), strict=True):
        assert count_grams(text_of_tokens(tokens, name)) == count_grams(caption)


def test_tokens_of_other_tracks_are_words():
    assert text_of_tokens(["手机", "网络", "hello"], "jieba") == " 手机网络 hello"
    assert text_of_tokens(["<0xE4>", "<0xB8>", "<0xAD>"], "bpe") == "中"
    assert text_of_tokens(["<0xE4>"], "bpe") == "�"


def test_files_say_which_columns_hold_words():
    assert read_columns({"words": columns_attribute(slice(512, 768))}) == slice(512, 768)
    assert read_columns({}) is None
    for other in ("now-words/1 0:256", "now-words/2 a:b", "now-words/2 0:5", "now-words/2"):
        assert read_columns({"words": other}) is None
