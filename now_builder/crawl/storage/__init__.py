"""Write the pages of open shards, and keep finished shards in a folder or an object store."""
