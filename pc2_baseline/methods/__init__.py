"""Methods: one file a paper, with its settings; PC2, the reference, is a folder.

To add a method, add a file here and a line in :data:`~pc2_baseline.method_section.METHODS`.
"""

import torch

from pc2_baseline.config import Settings
from pc2_baseline.method_section import method_class
from pc2_baseline.training.method import Method, Sizes


def make_method(settings: Settings, sizes: Sizes, device: torch.device) -> Method:
    """Build the method of a run with random weights."""
    method: Method = method_class(settings.method.name)(settings, sizes, device)
    return method
