"""What the settings of several methods share."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from now_builder.config import Strict

Share = Annotated[float, Field(ge=0, le=1)]


class SoftmaxSettings(Strict):
    """Settings of the softmax losses over a batch, each pair against all others."""

    temperature: PositiveFloat = Field(
        0.05,
        description="Temperature of the softmax losses, in units of similarity; lower: only the "
        "hardest negatives count.",
    )
    power: Annotated[float, Field(gt=0, le=1)] = Field(
        0.7, description="Of gce: near 0 InfoNCE, 1 the mean absolute error."
    )


class TripletSettings(Strict):
    """Settings shared by methods that learn by triplets."""

    margin: PositiveFloat = Field(0.2, description="Triplet margin, in units of similarity.")
    mean_epochs: Annotated[int, Field(ge=0)] = Field(
        0, description="Epochs after the warm-up that go on with mean negatives; then hardest."
    )


class DivisionSettings(Strict):
    """Settings shared by methods that divide the pairs."""

    division_batch: Annotated[int, Field(ge=2)] = Field(
        128, description="Pairs against which a pair's loss is taken to divide them, at most."
    )


class DividingSettings(TripletSettings, DivisionSettings):
    """Settings shared by methods that divide the pairs and learn them with soft margins."""

    margin_base: Annotated[float, Field(gt=1)] = Field(
        10.0, description="Base m of the soft margin."
    )


class CoTeachingSettings(DividingSettings):
    """Settings shared by methods of two peers that are taught by each other's division."""

    noisy_from_epoch: Annotated[int, Field(ge=0)] = Field(
        0, description="First epoch after the warm-up that trains on noisy pairs."
    )


class RelabellingSettings(CoTeachingSettings):
    """Settings shared by co-taught methods that learn noisy pairs by labels of their own."""

    steps: Literal["summed", "two"] = Field(
        "summed",
        description="One step down the summed loss of clean and noisy pairs, or one for each, as "
        "the released codes take.",
    )
