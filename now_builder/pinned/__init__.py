"""The pinned web: real sites, each a repository at a commit, that anyone can rebuild."""
