"""Training and measuring a detector."""
