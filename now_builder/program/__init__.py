"""What the three programs share: command line, interruption, missing packages, progress, pages."""
