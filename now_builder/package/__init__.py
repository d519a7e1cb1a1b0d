"""Captures, features and captions to a release."""
