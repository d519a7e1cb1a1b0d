"""Tracks, blind rounds and statistics of scores."""
