"""What a user can set in tokenising captions."""

from pathlib import Path

from pydantic import Field

from now_builder.config import Strict


class TokenizeSettings(Strict):
    """Settings of ``tokenize``."""

    bpe_vocabulary: int = Field(
        10_000, ge=300, description="Tokens of the BPE vocabulary at most, the four specials among."
    )
    bert: str = Field(
        "auto",
        description="learn: a WordPiece vocabulary trained here on the train pool; a hub name or a "
        "folder: that BERT tokenizer; auto: bert-base-multilingual-cased where the hub or its "
        "cache has it, else learn, which is said on stderr and in the vocabulary file.",
    )
    bert_vocabulary: int = Field(
        32_000, ge=100, description="Tokens of a WordPiece vocabulary trained here, at most."
    )
    min_frequency: int = Field(
        2, ge=1, description="How often a pair of pieces must occur to be merged (BPE, WordPiece)."
    )
    learn_from: int = Field(
        100_000,
        ge=1,
        description="Captions of the train pool, evenly spread, that merges (BPE, WordPiece) are "
        "learned on, at most: about 1 GB for 100,000. Which tokens occur is counted in all of it.",
    )
    jieba_white_space: bool = Field(
        default=True,
        description="Keep the space between words as a token of its own, as jieba.lcut gives it "
        "and as the authors' captions have it; without it captions are about a quarter shorter.",
    )
    mend: bool = Field(
        default=False,
        description="Mend captions first: entities that were escaped twice, tags, zero-width "
        "characters and bidi controls; package takes the same.",
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
