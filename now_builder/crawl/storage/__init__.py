"""Where pages are written while a shard grows, and where finished shards are kept."""
