"""Settings of the stage ``tokenize``."""

from pathlib import Path

from pydantic import Field

from now_builder.config import Strict


class TokenizeSettings(Strict):
    """Settings of ``tokenize``; the defaults of an existing folder are those it was made with.

    ``model_fields_set`` tells which settings were given.
    """

    bpe_vocabulary: int = Field(
        10_000, ge=300, description="Maximum size of the BPE vocabulary, with four special tokens."
    )
    bert: str = Field(
        "auto",
        description="BERT tokenizer. A hub name or folder: use that tokenizer; learn: train a "
        "WordPiece vocabulary on the train pool; auto: bert-base-multilingual-cased if the hub or "
        "its cache has it, else learn, with a warning.",
    )
    bert_vocabulary: int = Field(
        32_000, ge=100, description="Maximum size of a learned WordPiece vocabulary."
    )
    jieba_white_space: bool = Field(
        True,
        description="Keep the space between words as a token, as jieba.lcut and the authors' "
        "captions do. Without it, captions are about a quarter shorter.",
    )
    with_: Path | None = Field(
        None,
        description="Additional tokenizer: any file of the tokenizers library (mine.json). It is "
        "used unchanged, named after the file, and kept in the folder for later runs.",
    )
