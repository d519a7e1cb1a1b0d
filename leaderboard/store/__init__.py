"""File, read, recompute and check results in a store, which is a folder in git."""
