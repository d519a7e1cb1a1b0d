"""Judges: submissions, the evaluator, results and the board."""
