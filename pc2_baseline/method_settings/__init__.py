"""Settings of the methods, a file each; :data:`MethodSettings` is one of them, by its name."""

from typing import Annotated, get_args

from pydantic import Field

from pc2_baseline.method_settings.cream import CreamSettings
from pc2_baseline.method_settings.crossfit import CrossFitSettings
from pc2_baseline.method_settings.gsc import GscSettings
from pc2_baseline.method_settings.pc2 import Pc2ReleasedSettings, Pc2Settings
from pc2_baseline.method_settings.pcsr import PcsrSettings
from pc2_baseline.method_settings.sgr import SgrSettings

MethodSettings = Annotated[
    Pc2Settings
    | Pc2ReleasedSettings
    | SgrSettings
    | CrossFitSettings
    | CreamSettings
    | GscSettings
    | PcsrSettings,
    Field(discriminator="name"),
]


def method_fields() -> dict[str, set[str]]:
    """Return the names of the settings of each method."""
    kinds = get_args(get_args(MethodSettings)[0])
    return {kind.model_fields["name"].default: set(kind.model_fields) for kind in kinds}
