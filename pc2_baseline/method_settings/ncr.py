"""Settings of NCR."""

from typing import Literal

from pc2_baseline.method_settings.base import RelabellingSettings


class NcrSettings(RelabellingSettings):
    """NCR (Huang et al., NeurIPS 2021): labels that the networks predict."""

    name: Literal["ncr"] = "ncr"
