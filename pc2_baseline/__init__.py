"""Learns: PC2 and the methods it is compared with."""
