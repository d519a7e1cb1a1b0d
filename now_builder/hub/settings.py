"""What a user can set in ``fetch-now`` and ``publish``."""

from pathlib import Path

from pydantic import Field

from now_builder.config import Strict

_ENDPOINT = (
    "Address of the hub, such as a mirror's; by default HF_ENDPOINT, or https://huggingface.co."
)


class FetchSettings(Strict):
    """Settings of ``fetch-now``."""

    repository: str = Field(
        "NJUyued/NoW", description="Data set on the hub: the authors' own, or a copy of it."
    )
    revision: str | None = Field(
        None, description="Branch, tag or commit of the data set; by default its main branch."
    )
    endpoint: str | None = Field(None, description=_ENDPOINT)


class PublishSettings(Strict):
    """Settings of ``publish``."""

    captures: Path | None = Field(
        None,
        description="Folder that the release was packaged from: its screenshots are published, "
        "too. Refused unless the release's licence lets others have copies.",
    )
    tokens: bool = Field(
        False,  # noqa: FBT003 - a field
        description="Add the token ids of the three tokenizers.",
    )
    regions: bool = Field(
        False,  # noqa: FBT003 - a field
        description="Add the 36 x 768 region features.",
    )
    private: bool = Field(
        False,  # noqa: FBT003 - a field
        description="Make the data set one that only its owner sees.",
    )
    folder: Path | None = Field(
        None, description="Where the export is written and kept; by default RELEASE-hub."
    )
    endpoint: str | None = Field(None, description=_ENDPOINT)
