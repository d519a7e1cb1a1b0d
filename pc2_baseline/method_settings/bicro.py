"""Settings of BiCro."""

from typing import Annotated, Literal

from pydantic import Field

from pc2_baseline.method_settings.base import RelabellingSettings, Share


class BiCroSettings(RelabellingSettings):
    """BiCro (Yang et al., CVPR 2023): labels by comparison with clean pairs."""

    name: Literal["bicro"] = "bicro"
    warmup_share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.3, description="Share of a batch of the warm-up that is learned: its lowest losses."
    )
    mismatch_threshold: Share = Field(
        0.0, description="Noisy pairs with a lower label are left out (BiCro*: 0.5); 0: none."
    )
    zero_below: Share = Field(
        0.0,
        description="Noisy pairs with a lower label get margin 0, and go on acting, as in the "
        "released code (0.5); 0: none.",
    )
