"""A simulated web with known matches of captions and screenshots."""
