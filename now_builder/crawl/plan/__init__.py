"""Plan a crawl: the URLs, their keys, shards and host groups."""
