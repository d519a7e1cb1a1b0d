"""What several methods are built on; no method by itself."""
