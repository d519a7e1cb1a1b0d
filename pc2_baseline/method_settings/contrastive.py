"""Settings of the contrastive baseline."""

from typing import Literal

from pydantic import Field

from pc2_baseline.method_settings.base import SoftmaxSettings


class ContrastiveSettings(SoftmaxSettings):
    """One network and a softmax loss: every pair is taken as matched."""

    name: Literal["contrastive"] = "contrastive"
    loss: Literal["info_nce", "complementary", "gce"] = Field(
        "info_nce",
        description="InfoNCE; or a robust loss, by which a pair that does not fit costs little: "
        "complementary contrastive (RCL), or generalised cross-entropy.",
    )
