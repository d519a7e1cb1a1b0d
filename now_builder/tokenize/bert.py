"""BERT's WordPiece tokenizer: load it from the hub or a folder, or learn one."""

import logging
import urllib.error
import urllib.request
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.pre_tokenizers import PreTokenizer

from now_builder.errors import ConfigError
from now_builder.formats.captions import SPECIALS
from now_builder.tokenize.library import LibraryTokenizer, alphabet, encode

_log = logging.getLogger(__name__)

MULTILINGUAL = "bert-base-multilingual-cased"
_UNK = "[UNK]"
_CONTROL = ("[PAD]", _UNK, "[CLS]", "[SEP]", "[MASK]")
_FILES = ["vocab.txt", "tokenizer.json", "tokenizer_config.json"]


def make_bert(
    choice: str, captions: Iterable[str], vocabulary: int, min_frequency: int
) -> LibraryTokenizer:
    """Load a BERT tokenizer or learn one, by the setting ``bert``."""
    if choice == "learn":
        return learn_wordpiece(captions, vocabulary, min_frequency)
    if choice != "auto":
        return load_bert(choice)
    try:
        return load_bert(MULTILINGUAL)
    except ConfigError as error:
        _log.warning(
            "%s. Learning a WordPiece vocabulary instead of using %s: the bert track of this "
            "dataset is not that of the paper", error, MULTILINGUAL,
        )  # fmt: skip
        return learn_wordpiece(captions, vocabulary, min_frequency)


def load_bert(choice: str) -> LibraryTokenizer:
    """Load a tokenizer from a folder, else from the hub's cache, else from the hub.

    Raises:
        ConfigError: If there is none, or it is not a WordPiece tokenizer.
    """
    folder = Path(choice) if Path(choice).is_dir() else _from_hub(choice)
    if not any((folder / name).is_file() for name in _FILES[:2]):
        raise ConfigError(f"bert: {choice} has neither {_FILES[0]} nor {_FILES[1]}")
    try:
        backend = _backend(folder)
    except Exception as error:  # noqa: BLE001 - the Rust side raises the bare class
        raise ConfigError(f"bert: {choice} is not a BERT tokenizer ({error})") from None
    if not isinstance(backend.model, models.WordPiece) or backend.token_to_id(_UNK) is None:
        raise ConfigError(f"bert: {choice} is not a WordPiece tokenizer with {_UNK}")
    backend.no_truncation()
    backend.no_padding()
    name = choice if not Path(choice).is_dir() else f"folder {folder.resolve().name}"
    source = f"{name}, {backend.get_vocab_size()} tokens (transformers {version('transformers')})"
    backend.pre_tokenizer = _limit_words(backend.pre_tokenizer, backend.model)
    return LibraryTokenizer("bert", source, backend, _CONTROL)


def _limit_words(splitter: PreTokenizer | None, model: models.WordPiece) -> PreTokenizer:
    """Extend a splitter to cut words that are longer than the model's limit.

    WordPiece makes a longer word one unknown token; in scripts without spaces it is a sentence. A
    higher limit does not help: the time grows with the cube of a word's length.
    """
    longest = f".{{1,{model.max_input_chars_per_word}}}"
    pieces = pre_tokenizers.Split(Regex(rf"{longest}\y|{longest}"), behavior="isolated")
    return pieces if splitter is None else pre_tokenizers.Sequence([splitter, pieces])


def _backend(folder: Path) -> tokenizers.Tokenizer:
    if not (folder / _FILES[0]).is_file():
        # Without vocab.txt, transformers reads the tokens of tokenizer.json but not its settings.
        return tokenizers.Tokenizer.from_file(str(folder / _FILES[1]))
    from transformers import BertTokenizer as Fast

    backend: tokenizers.Tokenizer = Fast.from_pretrained(folder).backend_tokenizer
    return backend


def _from_hub(name: str) -> Path:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        cached = Path(snapshot_download(name, allow_patterns=_FILES, local_files_only=True))
        if any((cached / file).is_file() for file in _FILES[:2]):
            return cached
    except (HFValidationError, OSError, ValueError):
        pass  # not in the cache; the errors below name the problem
    if constants.HF_HUB_OFFLINE:
        raise ConfigError(f"bert: {name} is neither a folder nor in the hub's cache (offline)")
    try:
        # Without network, the hub's client would retry for minutes.
        urllib.request.urlopen(constants.ENDPOINT, timeout=10).close()  # noqa: S310 - https
        return Path(snapshot_download(name, allow_patterns=_FILES))
    except (urllib.error.URLError, HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        raise ConfigError(
            f"bert: {name} is neither a folder nor available from {constants.ENDPOINT} ({error})"
        ) from None


def learn_wordpiece(
    captions: Iterable[str], vocabulary: int, min_frequency: int
) -> LibraryTokenizer:
    """Learn a cased WordPiece vocabulary; each Chinese character is a word.

    A character outside the alphabet becomes unknown alone, without its word, which is a sentence in
    scripts without spaces. Tokens that occur in no caption are removed, except single characters:
    in new text they would replace shorter tokens, but the vocabulary lacks them.

    Differs:
        The library's trainer numbers the characters within words in the order of a randomly seeded
        hash map, so its ties differ between runs; here they are numbered first, by code point.
    """
    normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    untrained = models.WordPiece(unk_token=_UNK)
    characters = alphabet(map(normalizer.normalize_str, captions), vocabulary // 2)
    codes = "".join(f"\\x{{{ord(character):x}}}" for character in characters)
    others = pre_tokenizers.Split(Regex(rf"[^\p{{Han}}{codes}]"), behavior="isolated")
    words = pre_tokenizers.Sequence([others, pre_tokenizers.BertPreTokenizer()])
    splitter = _limit_words(words, untrained)

    def is_whole(word: str) -> bool:
        pieces = splitter.pre_tokenize_str(normalizer.normalize_str(word))
        return [piece for piece, _ in pieces] == [word]

    inner = [character for character in characters if is_whole(2 * character)]
    learner = tokenizers.Tokenizer(untrained)
    learner.normalizer, learner.pre_tokenizer = normalizer, splitter
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary - len(SPECIALS) + 1,
        min_frequency=min_frequency,
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        special_tokens=[_UNK, *(f"##{character}" for character in inner)],
        show_progress=False,
    )
    learner.train_from_iterator(captions, trainer)
    learned = learner.get_vocab()
    used = {token for encoding in encode(learner, captions, "bert") for token in encoding.tokens}
    used |= {_UNK, *(token for token in learned if len(token.removeprefix("##")) == 1)}
    tokens = sorted(used.intersection(learned), key=learned.__getitem__)
    ids = {token: number for number, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=_UNK))
    backend.normalizer, backend.pre_tokenizer = normalizer, splitter
    backend.decoder = decoders.WordPiece()
    source = f"WordPiece, {len(ids)} tokens, learned here, not {MULTILINGUAL}"
    source += f" (tokenizers {version('tokenizers')})"
    return LibraryTokenizer("bert", source, backend, _CONTROL)
