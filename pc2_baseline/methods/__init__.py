"""The methods: one paper, one file, settings included; PC2, the reference, is a folder.

A new method is a file here and a line in :data:`~pc2_baseline.method_section.METHODS`.
"""

import torch

from pc2_baseline.config import Settings
from pc2_baseline.method_section import method_class
from pc2_baseline.training.method import Method, Sizes


def make_method(settings: Settings, sizes: Sizes, device: torch.device) -> Method:
    """Build the method of a run, freshly drawn."""
    method: Method = method_class(settings.method.name)(settings, sizes, device)
    return method
