"""PC2, the reference method: by its paper, by its authors' code, and its successor PCSR."""
