"""What this machine lacks, and mends it where it may."""
