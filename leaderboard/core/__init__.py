"""Problems, tracks, blind rounds and statistics, on which scoring rests."""
