"""URL list to captures: the phone, the politeness and the caption."""
