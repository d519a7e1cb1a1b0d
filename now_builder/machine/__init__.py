"""What a machine must have: a browser, OCR data, a distribution's packages, a Ray cluster."""
