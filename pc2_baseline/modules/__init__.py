"""What methods share: losses, divisions, pseudo-classifier, co-teaching."""
