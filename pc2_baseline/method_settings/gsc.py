"""Settings of GSC."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from now_builder.config import Strict


class GscSettings(Strict):
    """GSC (Zhao et al., CVPR 2024): pairs weighted by how well they fit the geometry learned.

    The warm-up is the epochs whose pairs all have weight 1; at least the first one is such.
    """

    name: Literal["gsc"] = "gsc"
    temperature: PositiveFloat = Field(
        0.07, description="Temperature of InfoNCE, in units of similarity."
    )
    newest_weight: Annotated[float, Field(gt=0, le=1)] = Field(
        0.7,
        description="Beta: weight of an epoch's own estimates of correspondence in their running "
        "averages; 1 forgets all earlier epochs.",
    )
    structures: Literal["network", "pooled"] = Field(
        "network",
        description="How images are compared with images, and captions with captions: by the "
        "network itself, which takes three times the work, or by cosines of pooled vectors.",
    )
    structure_weight: NonNegativeFloat = Field(
        0.01, description="Gamma: weight of the loss that aligns the structures of both modalities."
    )
    lr_decay: Annotated[float, Field(gt=0, le=1)] = Field(
        0.2,
        description="What is left of the learning rate each time train.lr_drop_epoch epochs have "
        "passed, the warm-up included.",
    )
