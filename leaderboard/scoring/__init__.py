"""Scoring: from a submission and a release to a result with figures, references and notes."""
