"""The methods: one file and one paper each."""

from pc2_baseline.methods.base import Method, Sizes
from pc2_baseline.methods.pc2 import Pc2
from pc2_baseline.methods.sgr import Sgr

METHODS: dict[str, type[Pc2] | type[Sgr]] = {"pc2": Pc2, "sgr": Sgr}

__all__ = ["METHODS", "Method", "Sizes"]
