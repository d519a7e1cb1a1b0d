"""Use the Hugging Face hub: find models, download NoW, publish releases."""
