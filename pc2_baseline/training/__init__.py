"""The life of a run: epochs, checkpoints, processes, what is shown of it."""
