"""What a running board counts, for Prometheus; nothing in it names a user."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0)


class Meters:
    """The counters of one service.

    Attributes:
        requests: By route, method and status.
        seconds: From the first header to the last byte of the answer, by route.
        submissions: By outcome: new, same, taken, refused, over_quota.
        scoring: Seconds that the evaluator took.
        uploads: Bodies being received, waiting or being scored.
        entries: Results on the board.
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
        """Give all of it in Prometheus' text format."""
        return generate_latest(self._registry)
