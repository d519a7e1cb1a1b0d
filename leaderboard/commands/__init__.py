"""Commands of now-leaderboard, one function each."""
