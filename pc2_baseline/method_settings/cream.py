"""Settings of CREAM."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from pc2_baseline.method_settings.base import DivisionSettings, Share


class CreamSettings(DivisionSettings):
    """CREAM (Ma et al., TIP 2024): clean, hard and noisy pairs by the agreement of two networks."""

    name: Literal["cream"] = "cream"
    temperature: PositiveFloat = Field(
        0.07, description="Temperature of InfoNCE, in units of similarity."
    )
    hard_from_epoch: Annotated[int, Field(ge=0)] = Field(
        10,
        description="First epoch after the warm-up that trains on hard pairs (of which one network "
        "says clean, the other noisy), and that mines negatives of clean ones.",
    )
    noisy_from_epoch: Annotated[int, Field(ge=0)] = Field(
        15, description="First epoch after the warm-up that trains on noisy pairs."
    )
    mine_all_above: Share = Field(
        0.85,
        description="Share of clean pairs above which every negative of clean and hard pairs is "
        "mined; up to it, only those whose part of the target is at least the pairs' mean "
        "correspondence.",
    )
    lr_decay: Annotated[float, Field(gt=0, le=1)] = Field(
        0.1,
        description="What is left of the learning rate each time train.lr_drop_epoch epochs have "
        "passed since the warm-up.",
    )
