"""Settings of the ridge reference."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from now_builder.config import Strict


class RidgeSettings(Strict):
    """Ridge regression from screenshots to captions, in closed form."""

    name: Literal["ridge"] = "ridge"
    dim: PositiveInt = Field(64, description="Width of a caption's vector (LSA).")
    words: bool = Field(
        default=False,
        description="Begin with the words that the detector read, and compare letters instead of "
        "LSA vectors; needs the features of a detector that reads.",
    )
    penalty_from: PositiveFloat = Field(
        0.1,
        description="Penalty of the first epoch, in units of a feature's variance; dev chooses.",
    )
    penalty_to: PositiveFloat = Field(
        1000.0,
        description="Penalty of the last epoch; those between grow by equal factors.",
    )
    folds: Annotated[int, Field(ge=2)] = Field(
        5, description="Folds of the pairs; those of one are judged by a fit to the others."
    )
