"""Settings of the stage ``tokenize``."""

from pathlib import Path

from pydantic import Field

from now_builder.config import Strict


class TokenizeSettings(Strict):
    """Settings of ``tokenize``; those not given stay as the folder was made."""

    bpe_vocabulary: int | None = Field(
        None,
        ge=300,
        description="Maximum size of the BPE vocabulary, the four special tokens included; 10000 "
        "for a new folder.",
    )
    bert: str | None = Field(
        None,
        description="BERT tokenizer. learn: train a WordPiece vocabulary on the train pool; a hub "
        "name or a folder: use that tokenizer; auto, for a new folder: "
        "bert-base-multilingual-cased where the hub or its cache has it, else learn, which stderr "
        "and the vocabulary file then say.",
    )
    bert_vocabulary: int | None = Field(
        None,
        ge=100,
        description="Maximum size of a learned WordPiece vocabulary; by default 32000.",
    )
    jieba_white_space: bool | None = Field(
        None,
        description="Keep the space between words as a token of its own, as jieba.lcut and the "
        "authors' captions do; the default of a new folder. Without it captions are about a "
        "quarter shorter.",
    )
    with_: Path | None = Field(
        None,
        description="Additional tokenizer: any file of the tokenizers library (mine.json), used "
        "unchanged, named after the file, and kept in the folder for later runs.",
    )
