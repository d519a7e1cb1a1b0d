"""Run a blind round on Codabench: competition bundle and scoring program."""
