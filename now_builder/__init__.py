"""Makes the dataset: URL list, captures, region features, captions, release."""

__version__ = "0.1.0"
