"""What a user can set in tokenising captions."""

from pathlib import Path

from pydantic import Field

from now_builder.config import Strict


class TokenizeSettings(Strict):
    """Settings of ``tokenize``; what is not given is as the folder was made, if it was."""

    bpe_vocabulary: int | None = Field(
        None,
        ge=300,
        description="Tokens of the BPE vocabulary at most, the four specials among; 10000 for a "
        "new folder.",
    )
    bert: str | None = Field(
        None,
        description="learn: a WordPiece vocabulary trained here on the train pool; a hub name or a "
        "folder: that BERT tokenizer; auto, for a new folder: bert-base-multilingual-cased where "
        "the hub or its cache has it, else learn, which is said on stderr and in the vocabulary "
        "file.",
    )
    bert_vocabulary: int | None = Field(
        None,
        ge=100,
        description="Tokens of a WordPiece vocabulary trained here, at most; 32000 for a new "
        "folder.",
    )
    min_frequency: int | None = Field(
        None,
        ge=1,
        description="How often a pair of pieces must occur to be merged (BPE, WordPiece); 2 for a "
        "new folder.",
    )
    learn_from: int | None = Field(
        None,
        ge=1,
        description="Captions of the train pool, evenly spread, that merges (BPE, WordPiece) are "
        "learned on, at most; 100000, which take about 1 GB, for a new folder. Which tokens occur "
        "is counted in all of it.",
    )
    jieba_white_space: bool | None = Field(
        None,
        description="Keep the space between words as a token of its own, as jieba.lcut gives it "
        "and as the authors' captions have it, and as a new folder does; without it captions are "
        "about a quarter shorter.",
    )
    mend: bool | None = Field(
        None,
        description="Mend captions first: entities that were escaped twice, tags, zero-width "
        "characters and bidi controls; package takes the same. Not for a new folder.",
    )
    with_: Path | None = Field(
        None,
        description="A tokenizer of your own besides the three: any file of the tokenizers library "
        "(mine.json). It is used as it is, called what its file is called, and stays one of the "
        "folder's from then on.",
    )
    processes: int = Field(
        0,
        ge=0,
        description="Worker processes; 0 takes all cores once it is worth it. The files are the "
        "same, byte for byte, whatever their number.",
    )


class ChosenSettings(Strict):
    """Settings that decide what is written, with nothing left open; vocabularies keep their own."""

    bpe_vocabulary: int = 10_000
    bert: str = "auto"
    bert_vocabulary: int = 32_000
    min_frequency: int = 2
    learn_from: int = 100_000
    jieba_white_space: bool = True
    mend: bool = False
