"""The APT-style detector: network, text encoder, weights on disk."""
