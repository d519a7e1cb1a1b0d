"""Submissions: what they hold, how they are written, and how those of strangers are read."""
