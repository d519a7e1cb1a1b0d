"""Package captures, features and captions as a release."""
