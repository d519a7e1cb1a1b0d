"""What the settings of several methods share."""

from typing import Annotated

from pydantic import Field, PositiveFloat

from now_builder.config import Strict

Share = Annotated[float, Field(ge=0, le=1)]


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
