"""Submissions: their content, how to write them, and how to read untrusted ones safely."""
