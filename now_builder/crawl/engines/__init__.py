"""Who does the work: workers of one process, or of a Ray cluster."""
