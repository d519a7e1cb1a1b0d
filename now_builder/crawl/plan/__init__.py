"""Which URLs are crawled, under which keys and in which shards."""
