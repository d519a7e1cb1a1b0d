"""Pages on which people look at a release and judge its pairs."""
