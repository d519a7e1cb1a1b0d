"""Chromium as a phone: one visit to a page, from request to screenshot."""
