"""What the command now-leaderboard can be asked to do: a function a command."""
