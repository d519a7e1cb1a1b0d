"""Settings of L2RM."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from pc2_baseline.method_settings.base import TripletSettings


class L2rmSettings(TripletSettings):
    """L2RM (Han et al., CVPR 2024): noisy pairs are rematched by partial optimal transport."""

    name: Literal["l2rm"] = "l2rm"
    mean_epochs: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Epochs after the warm-up that learn clean pairs by mean negatives; then "
        "hardest.",
    )
    division_batch: Annotated[int, Field(ge=2)] = Field(
        128, description="Pairs against which a pair's loss is taken to divide them, at most."
    )
    temperature: PositiveFloat = Field(
        0.05,
        description="Tau of the softmax over a batch, in the warm-up and for noisy pairs, in units "
        "of similarity.",
    )
    mass: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.1, description="Rho: share of a noisy batch that is rematched."
    )
    regularisation: PositiveFloat = Field(
        0.07,
        description="Entropic regularisation of the transport, in units of cost; Flickr30K: 0.01.",
    )
    mask_diagonal: bool = Field(
        default=True,
        description="Never rematch an image with the caption that it came with; false where most "
        "noisy pairs may be matched after all, as on CC152K in the released code.",
    )
    cost_lr: NonNegativeFloat = Field(
        2e-6, description="Adam's learning rate of the cost function; it drops as train.lr does."
    )
    cost_share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.1, description="Largest share of a clean batch that a step of the cost function takes."
    )
