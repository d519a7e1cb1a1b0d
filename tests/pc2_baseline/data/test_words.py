"""Words of captions are cut once, kept by content, and cut again where what is kept is torn."""

import pytest

from now_builder.formats.io import user_cache
from pc2_baseline.data import words as words_module
from pc2_baseline.data.words import cut_captions

MANY = 30

TEXTS = [f"A w{number}A, image of\u2028something\x85else.  It isn't." for number in range(MANY)]

WORDS = ["a", "w3a", ",", "image", "of", "something", "else.", "it", "is", "n't", "."]


@pytest.fixture
def cut(monkeypatch, tmp_path):
    """Texts that NLTK was asked to cut."""
    from nltk import tokenize

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(words_module, "KEPT_FROM", MANY)
    asked = []
    real = tokenize.word_tokenize

    def word_tokenize(text, **settings):
        asked.append(text)
        return real(text, **settings)

    monkeypatch.setattr(tokenize, "word_tokenize", word_tokenize)
    return asked


def kept():
    return sorted((user_cache() / "words").glob("*"))


def test_captions_are_cut_once_and_read_the_same_the_next_time(cut, tmp_path):
    cut_captions(TEXTS[:5], sentences=False)
    assert not kept(), "few are not"
    first = cut_captions(TEXTS, sentences=False)
    assert first[3] == WORDS
    assert len(kept()) == 1
    assert kept()[0].is_relative_to(tmp_path / "cache")
    cut.clear()
    assert cut_captions(TEXTS, sentences=False) == first
    assert not cut


def test_other_captions_or_sentences_have_words_of_their_own(cut, punkt):
    from nltk import tokenize

    for texts, sentences in ((TEXTS, False), (TEXTS, True), (TEXTS[::-1], False)):
        words = cut_captions(texts, sentences=sentences)
        assert words == [
            tokenize.word_tokenize(t.lower(), preserve_line=not sentences) for t in texts
        ]
    assert len(kept()) == 3


def test_what_is_torn_is_cut_again(cut):
    first = cut_captions(TEXTS, sentences=False)
    path = kept()[0]
    whole = path.read_bytes()
    for content in (b"", whole[:-5], b"\xff" + whole, whole + b"\nx"):
        path.write_bytes(content)
        cut.clear()
        assert cut_captions(TEXTS, sentences=False) == first
        assert cut
        assert path.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_done_without(cut, monkeypatch, tmp_path, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(cut_captions(TEXTS, sentences=False)) == MANY
    assert "not kept" in caplog.text
