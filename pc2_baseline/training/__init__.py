"""The life of a run: epochs, checkpoints, processes, callbacks."""
