"""The contracts: one file here is one on-disk format with its reader, writer and check."""
