"""Settings of the methods, a file each; :data:`MethodSettings` is one of them, by its name."""

from typing import TYPE_CHECKING, Annotated, Union, get_args

from pydantic import Field

from pc2_baseline.method_settings.bicro import BiCroSettings
from pc2_baseline.method_settings.contrastive import ContrastiveSettings
from pc2_baseline.method_settings.crcl import CrclSettings
from pc2_baseline.method_settings.cream import CreamSettings
from pc2_baseline.method_settings.crossfit import CrossFitSettings
from pc2_baseline.method_settings.decl import DeclSettings
from pc2_baseline.method_settings.gsc import GscSettings
from pc2_baseline.method_settings.l2rm import L2rmSettings
from pc2_baseline.method_settings.ncr import NcrSettings
from pc2_baseline.method_settings.outside import outside_settings
from pc2_baseline.method_settings.pc2 import Pc2ReleasedSettings, Pc2Settings
from pc2_baseline.method_settings.pcsr import PcsrSettings
from pc2_baseline.method_settings.rcl import RclSettings
from pc2_baseline.method_settings.ridge import RidgeSettings
from pc2_baseline.method_settings.triplet import OneNetworkSettings

MethodSettings = Annotated[
    BiCroSettings
    | ContrastiveSettings
    | CrclSettings
    | CreamSettings
    | CrossFitSettings
    | DeclSettings
    | GscSettings
    | L2rmSettings
    | NcrSettings
    | OneNetworkSettings
    | Pc2ReleasedSettings
    | Pc2Settings
    | PcsrSettings
    | RclSettings
    | RidgeSettings,
    Field(discriminator="name"),
]

OLD_NAMES = {"sgr": "triplet"}
"""Names that methods had, which settings may still say."""


def method_fields() -> dict[str, set[str]]:
    """Return the names of the settings of each method."""
    kinds = get_args(get_args(MethodSettings)[0])
    return {kind.model_fields["name"].default: set(kind.model_fields) for kind in kinds}


if not TYPE_CHECKING:  # those of other packages are known only when they are installed
    _KINDS = (*get_args(get_args(MethodSettings)[0]), *outside_settings(method_fields()).values())
    MethodSettings = Annotated[Union[_KINDS], Field(discriminator="name")]  # noqa: UP007 - a tuple
