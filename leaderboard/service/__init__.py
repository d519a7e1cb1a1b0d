"""The board over HTTP: what stands between strangers and the store."""
