"""Visit a page in Chromium as a phone, from the request to the screenshot."""
