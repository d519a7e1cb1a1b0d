"""Which regions a page is described by, and their features."""
