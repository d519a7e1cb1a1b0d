"""The Hugging Face hub: models found there, NoW's own archive fetched, releases published."""
