"""Settings of one network that takes every pair as matched."""

from typing import Annotated, Literal

from pydantic import AfterValidator

from pc2_baseline.method_settings.base import TripletSettings


class OneNetworkSettings(TripletSettings):
    """Triplets of one network, of any kind: every pair is taken as matched."""

    name: Annotated[Literal["triplet", "sgr"], AfterValidator(lambda _: "triplet")] = "triplet"
