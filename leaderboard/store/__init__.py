"""The folder of results: file, compare, recompute, check."""
