"""Write a release in the formats of other tools, with their own libraries."""
