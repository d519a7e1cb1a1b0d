"""Caption files and vocabularies: round trips, and files that must be refused."""

import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from now_builder.errors import ConfigError, FormatError, NowError
from now_builder.formats.captions import (
    SPECIALS,
    make_vocabulary,
    read_captions,
    read_vocabulary,
    write_captions,
    write_vocabulary,
)
from now_builder.formats.io import read_lines

KEYS = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=12)
IDS = st.lists(st.integers(0, 10**6), max_size=30)


@settings(max_examples=25)
@given(captions=st.dictionaries(KEYS, IDS, max_size=8))
def test_files_survive_a_round_trip(
    tmp_path_factory: pytest.TempPathFactory, captions: dict[str, list[int]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "captions.txt"
    write_captions(path, captions.items())
    found = read_captions(path)
    assert found == captions
    assert list(found) == list(captions)
    assert len(found) == len(captions)


@settings(max_examples=25)
@given(tokens=st.lists(st.text(max_size=8), max_size=30))
def test_a_vocabulary_survives_its_file(
    tmp_path_factory: pytest.TempPathFactory, tokens: list[str]
) -> None:
    tokens = [token.encode("utf-8", "ignore").decode() for token in tokens]
    path = tmp_path_factory.getbasetemp() / "vocabulary.json"
    vocabulary = make_vocabulary(tokens, "bpe", "a test", "train pool, 3 captions")
    write_vocabulary(path, vocabulary)
    found = read_vocabulary(path)
    assert found == vocabulary
    assert [found.idx2word[str(i)] for i in range(4)] == list(SPECIALS)
    assert found.idx == len(found.word2idx) == len({*tokens, *SPECIALS})
    assert all(found.idx2word[str(number)] == word for word, number in found.word2idx.items())


DAMAGED = {
    b"0001 1,2,3\n": "tab",
    b"0001\t1,2\n0001\t3\n": "repeated",
    b"0001\t1,two\n": "line 1",
    b"0001\t1\n0002\t-4\n": "line 2",
    b"\t1,2\n": "line 1",
    b"0001\t1\xff\n": "UTF-8",
    b"0001\t" + b"9" * 5000 + b"\n": "line 1",
    b"0001\t1\n0002\t7," + b"9" * 60 + b"\n": "line 2: id 9.*expected 0 to 4294967295",
    b"\x00\x01\x02": "line 1",
    b"0001\t1,2\x0b0002\t3\n": "line 1",
}


def test_a_damaged_caption_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "jieba.txt"
    with pytest.raises(FormatError, match="`now-builder tokenize` writes it"):
        read_captions(path)
    for content, word in DAMAGED.items():
        path.write_bytes(content)
        with pytest.raises(FormatError, match=word) as caught:
            read_captions(path)
        assert "\n" not in str(caught.value)
    for read in (read_captions, read_vocabulary):
        with pytest.raises(FormatError, match="not"):
            read(tmp_path)


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes("a\u2028b\x0c\r\n\nc".encode())
    assert read_lines(path, "") == ["a\u2028b\x0c", "", "c"]


VOCABULARIES = [
    b"",
    b"[1, 2]",
    b"\xff\xfe",
    b"[" * 200_000,
    b'{"word2idx": {"a": 0}, "idx2word": {"0": "a"}}',
    b'{"word2idx": {"a": 5}, "idx2word": {"5": "a"}, "idx": 3}',
    b'{"word2idx": {"a": -1}, "idx2word": {"-1": "a"}, "idx": 3}',
    b'{"word2idx": {"a": "x"}, "idx2word": {}, "idx": 3}',
    b'{"word2idx": {}, "idx2word": {}, "idx": 1, "surprise": 1}',
]


def test_a_damaged_vocabulary_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "jieba.vocab.json"
    for content in VOCABULARIES:
        path.write_bytes(content)
        with pytest.raises(NowError) as caught:
            read_vocabulary(path)
        assert isinstance(caught.value, FormatError | ConfigError)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_pickled_vocabulary_says_how_to_write_json(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such vocabulary"):
        read_vocabulary(tmp_path / "vocab.pkl")
    for protocol, name in ((0, "vocab.pkl"), (4, "vocab.pkl"), (2, "vocab.json")):
        (tmp_path / name).write_bytes(pickle.dumps({"word2idx": {"a": 0}}, protocol=protocol))
        with pytest.raises(FormatError, match=r"a pickle, .*json\.dump"):
            read_vocabulary(tmp_path / name)
