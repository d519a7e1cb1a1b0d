"""Prometheus metrics of a service; no label identifies a user."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0)


class Meters:
    """Metrics of one service; an upload is new, same, taken, refused or over_quota."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        counter = partial(Counter, registry=self._registry)
        gauge = partial(Gauge, registry=self._registry)
        histogram = partial(Histogram, buckets=_SECONDS, registry=self._registry)
        labels = ["route", "method", "status"]
        self.requests = counter("now_http_requests", "Requests answered.", labels)
        self.seconds = histogram("now_http_seconds", "Time to answer.", ["route"])
        self.submissions = counter("now_submissions", "Uploads by outcome.", ["outcome"])
        self.scoring = histogram("now_scoring_seconds", "Time to score one submission.")
        self.uploads = gauge("now_uploads_in_progress", "Uploads not yet answered.")
        self.entries = gauge("now_entries", "Results on the board.")

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
