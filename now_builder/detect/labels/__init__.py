"""DOM elements to detection labels, and the `label` command."""
