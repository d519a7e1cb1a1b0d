"""Quality of divisions, and pictures of trainings."""
