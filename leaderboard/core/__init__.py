"""What judging rests on: how far figures could be off by chance."""
