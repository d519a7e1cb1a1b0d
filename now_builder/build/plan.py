"""Plan a build: pages, pairs, time, disk space, and missing requirements of this machine."""

import os
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from now_builder.build.run import BuildSettings
from now_builder.crawl.plan.urls import read_urls
from now_builder.formats.split import SPLITS, Shares, Split, choose_shares
from now_builder.machine import doctor
from now_builder.urls import canonical, site_of

# Measured on simulated and real sites, except where assumed: docs/scale.md.
_CRAWL_S = {"png": 0.8, "webp": 0.88}
"""CPU seconds per page of the open web, by format (assumed; simulated pages took 0.42)."""
_PAGE_BYTES = {"png": 176_000, "webp": 126_000}
"""Bytes per page in the captures, by format."""
_DETECT_S, _GPU_S = 0.15, 0.01
"""Seconds per page for the shipped detector: CPU time, and time on an H100 with 16 cores."""
_REGION_BYTES = 36 * 768 * 4
_TOKENIZE_S, _PACKAGE_S = 0.0005, 0.005
"""CPU seconds per caption for all tokenizers; seconds per pair for packaging."""
_PAIR_BYTES = 1_500
"""Bytes per pair for captions, token ids and rows."""
_YIELD = 0.6
"""Share of URLs that become a pair (assumed); the others fail or have no description."""


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """The plan of a build, by :func:`plan_build`.

    Attributes:
        pages: Number of pages to visit: distinct URLs, within the quota of each host.
        pools: Expected number of pairs in the pools of train, dev and test.
        hours: Hours per stage on this machine.
        bytes: Size of each stage's output in bytes.
        peak_bytes: Maximum disk use in bytes, while parts of the features are merged.
        lacks: Missing requirements of this machine with their fixes, one line each.
    """

    urls: int
    pages: int
    hosts: int
    pools: dict[Split, int]
    hours: dict[str, float]
    bytes: dict[str, int]
    peak_bytes: int
    lacks: list[str]

    def __str__(self) -> str:
        pools = ", ".join(f"{name} {pairs:,}" for name, pairs in self.pools.items())
        stages = [(name, hours, self.bytes[name]) for name, hours in self.hours.items()]
        stages.append(("at most", sum(self.hours.values()), self.peak_bytes))
        return "\n".join([
            f"{self.urls:,} URLs: {self.pages:,} pages on {self.hosts:,} hosts",
            f"about {sum(self.pools.values()):,} pairs (assumed: {_YIELD:.0%} of pages): {pools}",
            *(f"{name:9} {hours:9.2f} h {_disk(size):>9}" for name, hours, size in stages),
            "missing on this machine:",
            *(f"- {line}" for line in self.lacks or ["nothing"]),
        ])  # fmt: skip


def plan_build(urls: Path, out: Path, settings: BuildSettings) -> BuildPlan:
    """Plan a build from measured rates, without writing anything or visiting a site."""
    crawl, detect = settings.crawl, settings.detect
    listed = read_urls(urls, crawl.url_column)
    sites = Counter(site_of(url) for url in {canonical(url) or url for url in listed})
    quota = crawl.per_host_quota or len(listed)
    hosts = Counter({site: min(count, quota) for site, count in sites.items()})
    pages = hosts.total()
    pools = _pools(pages, choose_shares(crawl.split_shares, len(listed)))
    most = {name: getattr(settings.package, name) for name in SPLITS}
    released = sum(min(pools[name], most[name]) for name in SPLITS)
    cores, findings = len(os.sched_getaffinity(0)), doctor.check()
    on_gpu = detect.device != "cpu" and any(f.found for f in findings if f.name == doctor.GPU)
    waiting_s = 0.0 if crawl.allow_private else max(hosts.values()) * crawl.per_host_delay_s
    seconds = {
        "crawl": max(pages * _CRAWL_S[crawl.image] / cores, waiting_s),
        "detect": pages * (_GPU_S if on_gpu else _DETECT_S / (detect.threads or cores)),
        "tokenize": pages * _TOKENIZE_S / cores,
        "package": released * _PACKAGE_S,
    }
    regions = _REGION_BYTES // (2 if detect.half else 1)
    sizes = {
        "crawl": pages * _PAGE_BYTES[crawl.image],
        "detect": pages * regions,
        "tokenize": pages * _PAIR_BYTES,
        "package": released * (_PAIR_BYTES + regions),
    }
    parent = next(folder for folder in [out.resolve(), *out.resolve().parents] if folder.is_dir())
    free = shutil.disk_usage(parent).free
    peak = sum(sizes.values()) + max(0, sizes["detect"] - sizes["package"])
    lacks = [f"disk: {_disk(free)} free, expected {_disk(peak)}"] if peak > free else []
    if short := [f"{pools[name]:,} of {most[name]:,} pairs of {name}" for name in SPLITS
                 if pools[name] < most[name]]:  # fmt: skip
        lacks.append(f"URLs: about {', '.join(short)} are expected. List more URLs")
    lacks += [str(finding) for finding in findings if not finding.found]
    hours = {name: round(value / 3600, 4) for name, value in seconds.items()}
    return BuildPlan(len(listed), pages, len(hosts), pools, hours, sizes, peak, lacks)


def _pools(pages: int, shares: Shares) -> dict[Split, int]:
    """Return the expected number of pairs in each pool."""
    pairs = pages * _YIELD
    dev, test = round(pairs * shares.dev), round(pairs * shares.test)
    return {"train": round(pairs) - dev - test, "dev": dev, "test": test}


def _disk(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
