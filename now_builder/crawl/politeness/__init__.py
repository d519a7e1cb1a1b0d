"""Obey robots.txt, opt-outs, rate limits and address rules; the proxy enforces address rules."""
