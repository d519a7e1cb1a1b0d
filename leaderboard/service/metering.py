"""Prometheus metrics of a service; no label identifies a user."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0)


class Meters:
    """Metrics of one service.

    Attributes:
        requests: number of requests, by route, method and status.
        seconds: time from first header to last byte of the response, by route.
        submissions: number of uploads by outcome: new, same, taken, refused, over_quota.
        scoring: seconds per scored submission.
        uploads: number of uploads being received, waiting or being scored.
        entries: number of results on the board.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "now_http_requests",
            "Requests answered.",
            ["route", "method", "status"],
            registry=self._registry,
        )
        self.seconds = Histogram(
            "now_http_seconds",
            "Time to answer.",
            ["route"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.submissions = Counter(
            "now_submissions", "Uploads by outcome.", ["outcome"], registry=self._registry
        )
        self.scoring = Histogram(
            "now_scoring_seconds",
            "Time to score one submission.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.uploads = Gauge(
            "now_uploads_in_progress", "Uploads not yet answered.", registry=self._registry
        )
        self.entries = Gauge("now_entries", "Results on the board.", registry=self._registry)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
