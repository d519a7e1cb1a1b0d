"""The parts of the network: encoders, similarity reasoning, pseudo-classifier."""
