"""Settings of RCL."""

from typing import Literal

from pydantic import Field, PositiveFloat

from now_builder.config import Strict


class RclSettings(Strict):
    """RCL (Hu et al., TPAMI 2023): the complementary contrastive loss."""

    name: Literal["rcl"] = "rcl"
    temperature: PositiveFloat = Field(
        0.05, description="Tau of the softmax over a batch, in units of similarity."
    )
