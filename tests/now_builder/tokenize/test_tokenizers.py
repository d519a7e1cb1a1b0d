"""The three tokenizers: equal to their libraries, lossless where they can be, and repeatable."""

import json
import subprocess
import sys
import unicodedata
import warnings
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from now_builder.errors import ConfigError
from now_builder.tokenize.bert import learn_wordpiece, load_bert, make_bert
from now_builder.tokenize.jieba import JiebaTokenizer
from now_builder.tokenize.library import LibraryTokenizer, alphabet, learn_bpe

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # where pip has not compiled it: invalid escapes
    import jieba

CORPUS = [
    "新浪网为全球用户24小时提供全面及时的中文资讯，内容覆盖国内外突发新闻事件。",
    "網易是中國領先的互聯網技術公司，提供新聞與郵箱。",
    "Welcome to our website! We sell phones, tablets & laptops at low prices.",
    "日本最大級のポータルサイト。検索、オークション、ニュース、天気など。",
    "Новости России и мира: политика, экономика, спорт и погода.",
    "네이버에서 뉴스와 날씨, 지도를 확인하세요.",
    "أخبار العالم العربي لحظة بلحظة", "हिन्दी में समाचार पढ़ें", "Ünïcode naïve façade 🤖 C++ a_b 3.14",
] * 3  # fmt: skip
SCRIPTS = st.characters(
    categories=["Lu", "Ll", "Lo", "Lm", "Mn", "Mc", "Nd", "No", "Po", "Ps", "Sm", "So", "Zs"]
)
TEXT = st.text(SCRIPTS | st.sampled_from("网站新闻的a1 .,，。"), max_size=40)


@pytest.fixture(scope="module")
def bpe() -> LibraryTokenizer:
    return learn_bpe(CORPUS, 900, 2)


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory: pytest.TempPathFactory) -> tuple[LibraryTokenizer, Path]:
    """A WordPiece tokenizer and its vocabulary as BERT's own file."""
    made = learn_wordpiece(CORPUS, 600, 2)
    vocabulary = made.backend.get_vocab()
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    path = tmp_path_factory.mktemp("bert") / "vocab.txt"
    specials = ["[PAD]", "[CLS]", "[SEP]", "[MASK]"]
    path.write_text("\n".join([*words, *specials]) + "\n", encoding="utf-8")
    return made, path


def test_jieba_gives_what_lcut_gives_and_loses_nothing() -> None:
    """Two ways to cut may be as likely but for rounding: jieba-rs then goes the other way."""
    for text in (
        "荔荔荔荔施海歑", "电冰泾八八八煿捷克斯", "9_a", "0.a0Z", "㐖.", "C++和c#，AT&T",
        "\r\n \r\n\n", "T恤B超",
    ):  # fmt: skip
        (tokens,) = JiebaTokenizer().cut([text])
        assert tokens == jieba.lcut(text)
        assert "".join(tokens) == text


def test_jieba_cuts_a_caption_of_any_length_and_can_drop_white_space() -> None:
    """The library alone takes minutes over the long one."""
    text = "的" * 100_000
    assert "".join(next(JiebaTokenizer().cut([text]))) == text
    tokens = next(JiebaTokenizer(white_space=False).cut(["手机 网站 a b"]))
    assert tokens == ["手机", "网站", "a", "b"]


@settings(max_examples=60)
@given(text=TEXT | st.text(max_size=30))
def test_bpe_loses_nothing(bpe: LibraryTokenizer, text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    ids = bpe.backend.encode(text, add_special_tokens=False).ids
    assert bpe.backend.decode(ids) == text


def test_bpe_keeps_its_size_and_splits_at_script_changes_and_after_16_letters() -> None:
    assert learn_bpe(CORPUS, 400, 2).backend.get_vocab_size() <= 396
    text = "全球用户二十四小时提供全面及时的中文资讯内容覆盖国内外"
    tokens = next(learn_bpe([text] * 500, 10_000, 2).cut([text]))
    assert len(tokens) > 1
    assert max(map(len, tokens)) <= 16
    text = "用户abc123年，好 ok!"
    tokens = next(learn_bpe([text] * 50, 10_000, 2).cut([text]))
    assert tokens == ["用户", "abc", "123", "年", "，", "好", " ok", "!"]


@settings(max_examples=80)
@given(text=TEXT)
def test_wordpiece_gives_what_the_slow_reference_gives(
    wordpiece: tuple[LibraryTokenizer, Path], text: str
) -> None:
    made, path = wordpiece
    # The fast one's Unicode tables are years older: punctuation assigned since is a letter to it.
    old = unicodedata.ucd_3_2_0
    text = "".join(c for c in text if unicodedata.category(c) == old.category(c))
    # The reference puts text into NFC, the fast one does not; stored captions are in it already.
    text = unicodedata.normalize("NFC", text)
    # Nor does it set a character apart that is in no vocabulary.
    known = made.backend.get_vocab()
    text = "".join(c if c in known or f"##{c}" in known else f" {c} " for c in text)
    slow = _slow(str(path))
    expected = ["<unk>" if token == "[UNK]" else token for token in slow.tokenize(text)]
    assert next(made.cut([text])) == expected


def test_case_is_left_to_the_library_and_a_special_token_in_a_caption_is_unknown(
    wordpiece: tuple[LibraryTokenizer, Path], tmp_path: Path
) -> None:
    _, path = wordpiece
    (tmp_path / "vocab.txt").write_bytes(path.read_bytes())
    config = {"do_lower_case": True, "tokenizer_class": "BertTokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    made = load_bert(str(tmp_path))
    texts = ["Welcome [SEP] to[MASK]our[PAD] [CLS", "ÜNÏCODE naïve", *CORPUS]
    expected = made.backend.encode_batch(texts, add_special_tokens=False)
    outside = {"[UNK]", "[SEP]", "[MASK]", "[PAD]", "[CLS]"}
    for tokens, encoding in zip(made.cut(texts), expected, strict=True):
        assert tokens == ["<unk>" if token in outside else token for token in encoding.tokens]
    assert "[SEP]" in expected[0].tokens


@pytest.mark.parametrize(("length", "learned"), [(101, True), (5_000, False)])
def test_a_run_of_any_length_is_cut_between_its_letters(
    tmp_path: Path, length: int, *, learned: bool
) -> None:
    """A longer word than 100 characters is unknown to WordPiece as a whole."""
    runs = [
        "กินข้าวที่ร้านนี้", "ຍິນດີຕ້ອນຮັບ", "សូមស្វាគមន៍", "မင်္ဂလာပါ", "ひらがなだけ", "カタカナ", "띄어쓰기없이",
        "abcdefgh", "e\u0323\u0302x", "བོད་ཡིག",
    ]  # fmt: skip
    captions = [(run * length)[:length] for run in runs]
    made = learn_wordpiece([*runs, *captions], 600, 1)
    if not learned:
        letters = sorted({letter for run in runs for letter in run})
        words = ["[UNK]", *letters, *(f"##{letter}" for letter in letters)]
        (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
        config = {"do_lower_case": False, "strip_accents": False}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        made = load_bert(str(tmp_path))
    for caption, tokens in zip(captions, made.cut(captions), strict=True):
        assert "".join(token.removeprefix("##") for token in tokens) == caption
        first = [token[0] for token in tokens if not token.startswith("##")]
        assert not any(unicodedata.category(letter).startswith("M") for letter in first)


@cache
def _slow(path: str):
    from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

    return BertTokenizerLegacy(path, do_lower_case=False, strip_accents=False)


def test_berts_own_vocabulary_file_and_a_stored_wordpiece_are_loaded(
    wordpiece: tuple[LibraryTokenizer, Path], tmp_path: Path
) -> None:
    made, path = wordpiece
    (path.parent / "tokenizer_config.json").write_text(
        '{"do_lower_case": false, "tokenizer_class": "BertTokenizer"}', encoding="utf-8"
    )
    loaded = load_bert(str(path.parent))
    assert list(loaded.cut(CORPUS)) == list(made.cut(CORPUS))
    assert str(path.parent.parent) not in loaded.source
    made.save(tmp_path / "tokenizer.json")
    assert list(load_bert(str(tmp_path)).cut(CORPUS)) == list(made.cut(CORPUS))


def test_a_folder_without_a_wordpiece_is_refused(bpe: LibraryTokenizer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"neither vocab\.txt nor tokenizer\.json"):
        load_bert(str(tmp_path))
    bpe.save(tmp_path / "tokenizer.json")
    with pytest.raises(ConfigError, match="not a WordPiece tokenizer"):
        load_bert(str(tmp_path))


def test_without_the_hub_a_name_is_an_error_and_auto_says_loudly_what_it_does(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match="no-such-model"):
        make_bert("no-such-model", CORPUS, 600, 2)
    made = make_bert("auto", CORPUS, 600, 2)
    assert "instead of using bert-base-multilingual-cased" in caplog.text
    assert "learned here" in made.source
    assert "not bert-base-multilingual-cased" in made.source


def test_learned_vocabularies_are_the_same_in_every_process() -> None:
    """The trainers number things in randomly seeded hash maps; ties must not follow them."""
    code = (
        "import hashlib, random\n"
        "from now_builder.tokenize.library import learn_bpe\n"
        "from now_builder.tokenize.bert import learn_wordpiece\n"
        "r = random.Random(0)\n"
        "words = [''.join(r.choice('abcdefghij') for _ in range(r.randint(2, 7)))"
        " for _ in range(600)]\n"
        "caps = [' '.join(r.choice(words) for _ in range(20)) + chr(0x4e00 + n % 999)"
        " for n in range(800)]\n"
        "for t in (learn_bpe(caps, 700, 2), learn_wordpiece(caps, 700, 2)):\n"
        "    print(hashlib.sha256(t.backend.to_str().encode()).hexdigest())\n"
    )
    runs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        .stdout
        for _ in range(2)
    }  # fmt: skip
    assert len(runs) == 1
    assert alphabet(["ccc", "bb", "aa", "d"], 2) == ["a", "c"], "ties by code point"
