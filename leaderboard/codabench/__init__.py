"""A blind round on Codabench: the bundle, and the scoring program in it."""
