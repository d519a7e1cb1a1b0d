"""The methods: one file and one paper each, and what co-taught methods share.

A new method is a file here, one of its settings in :mod:`pc2_baseline.method_settings`, and a line
in :data:`METHODS`; or, in another package, an entry point
(:mod:`pc2_baseline.method_settings.outside`).
"""

from pkgutil import resolve_name

import torch

from now_builder.errors import ConfigError
from pc2_baseline.config import Settings
from pc2_baseline.method_settings.outside import OutsideSettings
from pc2_baseline.training.method import Method, Sizes

METHODS = {
    "bicro": "bicro:BiCro",
    "contrastive": "contrastive:Contrastive",
    "crcl": "crcl:Crcl",
    "cream": "cream:Cream",
    "crossfit": "crossfit:CrossFit",
    "decl": "decl:Decl",
    "gsc": "gsc:Gsc",
    "l2rm": "l2rm:L2rm",
    "ncr": "ncr:Ncr",
    "pc2": "pc2:Pc2",
    "pc2-released": "pc2_released:Pc2Released",
    "pcsr": "pcsr:Pcsr",
    "rcl": "rcl:Rcl",
    "ridge": "ridge:Ridge",
    "triplet": "triplet:Triplet",
}
"""Class of each method, by the name in its settings."""


def make_method(settings: Settings, sizes: Sizes, device: torch.device) -> Method:
    """Build the method of a run, freshly drawn.

    Args:
        settings: Settings of the run.
        sizes: Sizes of the data.
        device: Device of the networks.

    Raises:
        ConfigError: If the method is of another package and cannot be imported.
    """
    own: object = settings.method
    if isinstance(own, OutsideSettings):
        name = own.implementation
    else:
        name = f"{__name__}.{METHODS[settings.method.name]}"
    try:
        kind = resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"method {settings.method.name}: {name} cannot be imported ({error})"
        ) from None
    method: Method = kind(settings, sizes, device)
    return method
