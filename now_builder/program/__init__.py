"""Shared by the three programs: command line, interruption, missing packages, progress, pages."""
