"""Bytes of a page to its caption and language."""
