"""Plain restatements of what the project does fast: what benchmarks and tests compare with."""
