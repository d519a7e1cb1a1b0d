"""Crawl a list of URLs: plan, politeness, browser, caption, storage; engines run it all."""
