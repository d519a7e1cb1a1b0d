"""Find the caption and language of a page in its bytes."""
