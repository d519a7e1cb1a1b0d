"""What may be asked of whom, and how often: robots.txt, opt-outs, rate limits, the proxy."""
