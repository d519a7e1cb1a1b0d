"""Which results stand side by side, in what order, and how they are exported."""
