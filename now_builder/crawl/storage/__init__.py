"""Write the pages of open shards, and the files of finished ones; locks."""
