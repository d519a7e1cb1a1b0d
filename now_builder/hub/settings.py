"""Settings of ``publish``."""

from pydantic import Field

from now_builder.package.settings import ExportSettings


class PublishSettings(ExportSettings):
    """Settings of ``publish``."""

    private: bool = Field(
        False, description="Create the data set as private: visible to its owner only."
    )
    endpoint: str | None = Field(
        None,
        description="Address of the hub, such as a mirror's; by default HF_ENDPOINT, or "
        "https://huggingface.co.",
    )
