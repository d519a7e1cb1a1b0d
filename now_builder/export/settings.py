"""Settings of ``export`` and ``publish``."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from now_builder.config import Strict


class IncludedSettings(Strict):
    """Settings that ``export`` and ``publish`` share."""

    captures: Path | None = Field(
        None,
        description="Captures folder of the release, for its screenshots. publish sends them only "
        "if the release's licence allows copies or it was packaged --licensed.",
    )
    tokens: bool = Field(False, description="Add the token ids of each tokenizer (Parquet only).")
    regions: bool = Field(False, description="Add the 36 x 768 region features (Parquet only).")


class ExportSettings(IncludedSettings):
    """Settings of ``export``."""

    to: Literal["parquet", "webdataset", "openclip", "beir", "mteb"] = Field(
        description="Format. parquet: for datasets.load_dataset, with pictures if --captures is "
        "given; webdataset: shards; openclip: CSV and pictures; beir: corpus, queries and qrels of "
        "dev and test; mteb: the same with tasks for MTEB."
    )


class PublishSettings(IncludedSettings):
    """Settings of ``publish``."""

    private: bool = Field(
        False, description="Create a private data set, visible to its owner only."
    )
