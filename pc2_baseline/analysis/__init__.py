"""How good a division is, and pictures of it."""
