"""The methods: one file and one paper each.

A new method is a file here, its settings in :mod:`pc2_baseline.method_settings`, and a line in
:data:`METHODS`.
"""

from importlib import import_module

import torch

from pc2_baseline.config import Settings
from pc2_baseline.training.method import Method, Sizes

METHODS = {
    "pc2": "pc2.Pc2",
    "pc2-released": "pc2_released.Pc2Released",
    "sgr": "sgr.Sgr",
}
"""Class of each method, by the name in its settings."""


def make_method(settings: Settings, sizes: Sizes, device: torch.device) -> Method:
    """Build the method of a run, freshly drawn.

    Args:
        settings: Settings of the run.
        sizes: Sizes of the data.
        device: Device of the networks.
    """
    module, name = METHODS[settings.method.name].split(".")
    method: Method = getattr(import_module(f"{__name__}.{module}"), name)(settings, sizes, device)
    return method
