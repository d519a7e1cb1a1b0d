"""Search: pages that a run finds for words or a picture, on the terminal or a served page."""
