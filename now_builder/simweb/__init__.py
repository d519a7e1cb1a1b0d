"""A simulated web whose true correspondence is known."""
