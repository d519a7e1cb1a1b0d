"""Write a release for the tools of others, each by the library that owns the format."""
