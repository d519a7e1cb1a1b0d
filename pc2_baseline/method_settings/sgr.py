"""Settings of SGR."""

from typing import Literal

from pc2_baseline.method_settings.base import TripletSettings


class SgrSettings(TripletSettings):
    """SGR (Diao et al., AAAI 2021): every pair is taken as matched."""

    name: Literal["sgr"] = "sgr"
