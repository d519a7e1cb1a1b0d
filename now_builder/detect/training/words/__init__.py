"""Teach the detector to read: words drawn in the machine's fonts, and their vectors."""
