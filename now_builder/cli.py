"""The command now-builder."""
