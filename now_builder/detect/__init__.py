"""Captures to region features: the detector, its labels and its training."""
