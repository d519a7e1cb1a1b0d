"""Functions that several methods call: losses, divisions, mixtures, co-teaching."""
