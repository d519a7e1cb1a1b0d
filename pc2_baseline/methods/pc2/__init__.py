"""PC2, the reference: as its paper says, as its authors' code does, and its successor PCSR."""
