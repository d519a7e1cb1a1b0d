"""Settings of one network that takes every pair as matched."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from pc2_baseline.method_settings.base import TripletSettings


class OneNetworkSettings(TripletSettings):
    """Triplets of one network, of any kind: every pair is taken as matched."""

    name: Annotated[Literal["triplet", "sgr"], AfterValidator(lambda _: "triplet")] = "triplet"
    warm_up: Literal["mean", "hardest"] = Field(
        "mean",
        description="Negatives of the warm-up: their mean, as NCR's SGR*, or the hardest, as SGR "
        "itself, which collapses on noisy pairs.",
    )
    matched_only: bool = Field(
        default=False,
        description="Train on the pairs that data.truth or data.noise_file calls matched, and on "
        "no others (SGR-C): a bound to compare with, for the truth is part of the training.",
    )

    @model_validator(mode="after")
    def _negatives_never_soften(self) -> "OneNetworkSettings":
        if self.warm_up == "hardest" and self.mean_epochs:
            raise ValueError(
                f'mean_epochs is {self.mean_epochs}, expected 0 with warm_up = "hardest"'
            )
        return self
