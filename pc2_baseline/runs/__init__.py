"""What is done with runs: predict, evaluate, many seeds, ablations."""
