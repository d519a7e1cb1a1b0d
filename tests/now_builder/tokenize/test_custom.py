"""A tokenizer that the user brings: its own ids, moved up by four, under its file's name."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.captions import SPECIALS, read_captions, read_vocabulary
from now_builder.formats.release import read_manifest
from now_builder.formats.shard import read_rows, rows_path
from now_builder.formats.split import read_split, write_split
from now_builder.package.run import package
from now_builder.package.settings import PackageSettings
from now_builder.package.verify import verify
from now_builder.tokenize.library import custom_name, read_custom
from now_builder.tokenize.run import tokenize
from now_builder.tokenize.settings import TokenizeSettings

LEARN = TokenizeSettings(bert="learn")


def learn(with_: Path) -> TokenizeSettings:
    return LEARN.model_copy(update={"with_": with_})


def make_bpe(path: Path) -> Path:
    """Byte-level BPE, as GPT-2's: nothing is unknown to it."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["手机网站新闻 phones and news 天気"] * 9, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    made.enable_truncation(3)
    made.enable_padding(length=50)
    made.save(str(path))
    return path


def make_words(path: Path) -> Path:
    words = {"[UNK]": 0, "phones": 1, "news": 2, "<end>": 3}
    made = tokenizers.Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.WhitespaceSplit()
    made.save(str(path))
    return path


def cut(path: Path, caption: str) -> list[str]:
    return next(read_custom(path, "mine").cut([caption]))


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bpe(tmp_path_factory.mktemp("mine") / "mine.json")


@pytest.fixture(scope="module")
def captions(small_crawl: Path, mine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenized") / "captions"
    summary = tokenize(small_crawl, folder, learn(mine))
    assert summary.made == ["jieba", "bpe", "bert", "mine"]
    assert f"mine {summary.sizes['mine']} tokens of its file" in str(summary)
    return folder


def test_its_ids_are_those_of_the_library_moved_behind_the_specials(
    small_crawl: Path, mine: Path, captions: Path
) -> None:
    library = tokenizers.Tokenizer.from_file(str(mine))
    library.no_truncation()
    library.no_padding()
    ids = read_captions(captions / "mine.txt")
    rows = [row for row in read_rows(small_crawl) if row.status == "ok" and row.caption]
    assert list(ids) == [row.key for row in rows]
    for row in rows:
        own = library.encode(row.caption, add_special_tokens=False).ids
        # The file's three specials come first; ours are four.
        assert ids[row.key] == [number + 1 for number in own]
        assert library.decode(own) == row.caption


def test_its_vocabulary_is_its_files_and_is_learned_nowhere(mine: Path, captions: Path) -> None:
    vocabulary = read_vocabulary(captions / "mine.vocab.json")
    assert [vocabulary.idx2word[str(number)] for number in range(4)] == list(SPECIALS)
    assert "<s>" not in vocabulary.word2idx
    size = tokenizers.Tokenizer.from_file(str(mine)).get_vocab_size()
    assert vocabulary.idx == len(vocabulary.word2idx) == size - 3 + 4
    assert vocabulary.tokenizer == "mine"
    assert vocabulary.learned_on.startswith("nowhere")
    assert (captions / "mine.tokenizer.json").read_bytes() == mine.read_bytes()


def test_tokens_that_model_or_format_lack_are_unknown(mine: Path, tmp_path: Path) -> None:
    pieces = [("<unk>", 0.0), ("a", -1.0), ("b", -2.0), ("ab", -1.5)]
    path = tmp_path / "unigram.json"
    tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0)).save(str(path))
    assert cut(path, "abzb") == ["ab", "<unk>", "b"]
    assert read_custom(path, "u").vocabulary == ["a", "b", "ab"]
    path = make_words(tmp_path / "w.json")
    assert cut(path, "News on <end> PHONES") == ["news", "<unk>", "<unk>", "phones"]
    assert read_custom(path, "w").vocabulary == ["phones", "news"]
    assert cut(mine, "a<pad>b</s>") == ["a", "<unk>", "b", "<unk>"], "specials in a caption"


def test_it_stays_until_its_file_goes_and_is_made_again_for_new_pages(
    small_crawl: Path, mine: Path, captions: Path, tmp_path: Path
) -> None:
    captures, folder = tmp_path / "captures", tmp_path / "captions"
    captures.mkdir()
    write_split(captures / "split.toml", read_split(small_crawl / "split.toml"))
    rows_path(captures, 0).write_bytes(rows_path(small_crawl, 0).read_bytes())
    tokenize(captures, folder, learn(mine))
    assert tokenize(captures, folder, LEARN).made == []
    (folder / "mine.vocab.json").unlink()
    assert tokenize(captures, folder, LEARN).made == ["mine"]
    for shard in (1, 2, 3):
        rows_path(captures, shard).write_bytes(rows_path(small_crawl, shard).read_bytes())
    summary = tokenize(captures, folder, LEARN)
    assert summary.made == ["jieba", "bpe", "bert", "mine"], "new pages change all"
    assert (folder / "mine.txt").read_bytes() == (captions / "mine.txt").read_bytes()
    make_words(tmp_path / "mine.json")
    assert tokenize(captures, folder, learn(tmp_path / "mine.json")).made == ["mine"]
    for path in folder.glob("mine.*"):
        path.unlink()
    assert "mine" not in tokenize(captures, folder, LEARN).sizes


def test_names_that_are_taken_or_unsafe_are_refused() -> None:
    for name in ("jieba.json", "Bert.json", "bpe.tokenizer.json", "my tokens.json", "a.b.json",
                 ".json", "-x.json", "网.json", f"{'x' * 41}.json"):  # fmt: skip
        with pytest.raises(ConfigError, match=r"--with /some/where/.*Rename the file"):
            custom_name(Path("/some/where") / name)
    assert custom_name(Path("/a/my-own_1.json")) == "my-own_1"
    assert custom_name(Path("/a/mine.tokenizer.json")) == "mine"


def test_a_file_of_something_else_is_one_clear_line_before_any_work(
    small_crawl: Path, tmp_path: Path
) -> None:
    path = tmp_path / "mine.json"
    for content in (None, "{}", "no JSON"):
        if content is not None:
            path.write_text(content, encoding="utf-8")
        with pytest.raises(FormatError, match=r"mine\.json: not a file of the tokenizers"):
            tokenize(small_crawl, tmp_path / "out", learn(path))
        assert not (tmp_path / "out").exists()
    tokenizers.Tokenizer(models.WordLevel({"news": 0}, unk_token="?")).save(str(path))
    with pytest.raises(FormatError, match=r"mine\.json: cannot cut a caption"):
        cut(path, "news of phones")


def test_a_release_has_it_as_another_track(
    small_crawl: Path, captions: Path, tmp_path: Path, make_features
) -> None:
    features, release = tmp_path / "features.h5", tmp_path / "release"
    keys = [row.key for row in read_rows(small_crawl) if row.status == "ok"]
    make_features(features, keys)
    settings = PackageSettings(train=40, dev=10, test=10)
    package(small_crawl, features, captions, release, settings)
    assert verify(release) == []
    manifest = read_manifest(release)
    assert {*manifest.fingerprints["test"]} == {"jieba", "bpe", "bert", "mine"}
    vocabularies = {"vocab/now100k_precomp_vocab_mine.json", "vocab/mine.tokenizer.json"}
    assert {"now100k_precomp/test_caps_mine.txt", *vocabularies} <= manifest.files.keys()
    assert "| mine |" in (release / "DATASET_CARD.md").read_text(encoding="utf-8")
    three = tmp_path / "captions"
    shutil.copytree(captions, three, ignore=shutil.ignore_patterns("mine.*"))
    package(small_crawl, features, three, release, settings)
    assert not [*release.rglob("*mine*")]
    assert verify(release) == []


def test_an_id_that_is_far_off_costs_no_memory(tmp_path: Path) -> None:
    """In a process that may not have much: the library writes out every free id before it."""
    path = make_words(tmp_path / "mine.json")
    tree = json.loads(path.read_text())
    tree["model"]["vocab"]["news"] = 2**31
    path.write_text(json.dumps(tree))
    program = f"""
import resource
from pathlib import Path
from now_builder.tokenize.library import read_custom
resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))
print(list(read_custom(Path({str(path)!r}), "mine").cut(["news phones"])))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == "[['news', 'phones']]\n", done.stderr
