"""Settings of cross-fit division."""

from typing import Annotated, Literal

from pydantic import Field

from pc2_baseline.method_settings.base import DividingSettings, SoftmaxSettings


class CrossFitSettings(DividingSettings, SoftmaxSettings):
    """Cross-fit division: a pair is judged by a network that did not train on it."""

    name: Literal["crossfit"] = "crossfit"
    folds: Annotated[int, Field(ge=2)] = Field(
        4,
        description="Folds of the pairs, and networks: each trains on all folds but one, judges "
        "that one, and their similarities are averaged. Training time grows with folds - 1.",
    )
    loss: Literal["triplet", "info_nce", "complementary", "gce"] = Field(
        "triplet",
        description="Triplets with soft margins by the clean probabilities, of which also the "
        "statistic is one; or a softmax loss, which they weigh, with InfoNCE as the statistic.",
    )
