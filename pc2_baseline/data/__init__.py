"""Releases as tensors, noise files, and releases made for trials."""
