"""The matching networks: encoders, and what compares an image with a caption."""
