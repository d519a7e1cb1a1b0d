"""The folder of results: filed, compared, recomputed, checked."""
