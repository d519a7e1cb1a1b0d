"""Measurements and tests that need a GPU, in four parts within seven minutes: see docs/gpu.md."""
