"""The pinned web: real sites, each a repository at a commit, that everyone can rebuild."""
