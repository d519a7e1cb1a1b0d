"""The methods: one paper, one file, settings included; PC2, the reference, is a folder.

A new method is a file here and a line in :data:`~pc2_baseline.method_section.METHODS`; or, in
another package, an entry point (:class:`~pc2_baseline.method_section.OutsideSettings`).
"""

from pkgutil import resolve_name

import torch

from now_builder.errors import ConfigError
from pc2_baseline.config import Settings
from pc2_baseline.method_section import METHODS, OutsideSettings
from pc2_baseline.training.method import Method, Sizes


def make_method(settings: Settings, sizes: Sizes, device: torch.device) -> Method:
    """Build the method of a run, freshly drawn.

    Raises:
        ConfigError: If the method is of another package and cannot be imported.
    """
    own = settings.method
    if isinstance(own, OutsideSettings):
        name = own.implementation
    else:
        name = f"{__name__}.{METHODS[own.name]}"
    try:
        kind = resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"method {own.name}: {name} cannot be imported ({error})") from None
    method: Method = kind(settings, sizes, device)
    return method
