"""The pages of the board."""
