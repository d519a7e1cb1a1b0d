"""Run a crawl: by the workers of one process, or of a Ray cluster."""
