"""Requirements on a machine: a browser, OCR data, a distribution's packages, a Ray cluster."""
