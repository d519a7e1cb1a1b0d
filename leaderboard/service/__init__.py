"""The board over HTTP: accounts, quotas, uploads, pages and an API."""
