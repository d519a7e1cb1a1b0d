"""Settings of CRCL."""

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from now_builder.config import Strict
from pc2_baseline.method_settings.base import Share


class CrclSettings(Strict):
    """CRCL (Qin et al., NeurIPS 2023): active complementary loss, self-refined confidences."""

    name: Literal["crcl"] = "crcl"
    temperature: PositiveFloat = Field(
        0.05, description="Tau of the softmax over a batch, in units of similarity."
    )
    momentum: Share = Field(
        0.8, description="Share of a pair's confidence that an epoch keeps; the rest is new."
    )
    threshold: Share = Field(0.1, description="Confidences below this count as 0.")
    complementary_weight: NonNegativeFloat = Field(
        5.0, description="Lambda: weight of the complementary loss beside the active one."
    )
    schedules: tuple[PositiveInt, ...] = Field(
        (5, 5, 5),
        description="Epochs of each schedule before the last, without those of train.warmup_epochs "
        "that begin each and leave confidences as they are. Each schedule draws the network anew "
        "and keeps the confidences; the last takes the epochs that are left of train.epochs.",
    )
