"""Settings of cross-fit division."""

from typing import Annotated, Literal

from pydantic import Field

from pc2_baseline.method_settings.base import DividingSettings


class CrossFitSettings(DividingSettings):
    """Cross-fit division: a pair is judged by a network that did not train on it."""

    name: Literal["crossfit"] = "crossfit"
    folds: Annotated[int, Field(ge=2)] = Field(
        4,
        description="Folds of the pairs, and networks: each trains on all folds but one, judges "
        "that one, and their similarities are averaged. Training time grows with folds - 1.",
    )
