"""The stages of runs: train, predict, evaluate, many seeds, ablations."""
