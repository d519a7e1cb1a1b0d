"""The plan of a build: its work, time and disk, and what this machine lacks for it."""

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from now_builder.build.run import BuildSettings
from now_builder.crawl.plan.urls import read_urls
from now_builder.formats.split import SPLITS, Shares, Split, choose_shares
from now_builder.machine import doctor
from now_builder.urls import canonical, site_of

# Measured on simulated and real sites unless said otherwise: docs/scale.md.
_CRAWL_S = 0.8
"""CPU seconds of a page of the open web (assumed; simulated pages took 0.42)."""
_WEBP_S = 0.08
_PAGE_BYTES = 176_000
_WEBP_BYTES = 126_000
_FLIGHT_BYTES = 150_000_000
"""Memory of a page in flight, with its share of browsers and driver."""
_DETECT_S = 0.15
"""CPU seconds of a page by the shipped detector: 6.7 pages a second on one thread."""
_GPU_S = 0.01
"""Seconds of a page on a GPU: 0.0086 at the paper's size on an H100 with 16 cores."""
_DETECT_BYTES = 2_000_000_000
"""Memory of the detector's process."""
_REGION_BYTES = 36 * 768 * 4
_TOKENIZE_S = 0.0005
"""CPU seconds of a caption under all three tokenizers."""
_PACKAGE_S = 0.005
"""Seconds of a pair: read, filter, copy, hash (assumed)."""
_PAIR_BYTES = 1_500
"""Bytes of a pair's captions, token ids and rows."""
_YIELD = 0.6
"""Share of a list's URLs that end as a pair (assumed): the rest fail or have no description."""
_LONGEST = 2_000_000
"""URLs of the longest list that is advised."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The plan of one stage.

    Attributes:
        changed: Settings that differ from the defaults, as ``name=value``.
        hours: Time on this machine, by measured rates.
        bytes: Size of its output.
        bound: The resource that limits the speed.
    """

    stage: str
    work: str
    changed: list[str]
    hours: float
    bytes: int
    bound: str

    def __str__(self) -> str:
        changed = f"  [{', '.join(self.changed)}]" if self.changed else ""
        row = f"{self.stage:9} {_hours(self.hours):>9} {_disk(self.bytes):>9}"
        return f"{row}  {self.work}; {self.bound}{changed}"


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """The plan of a build, by :func:`plan_build`.

    Attributes:
        pages: Pages to visit: a URL listed twice is visited once, a host up to its quota.
        pools: Expected pairs in the pools of train, dev and test.
        peak_bytes: Largest disk use, while parts of the features are merged.
        free_bytes: Free disk at the output folder.
        lacks: Lines that each name something this machine lacks, with the remedy.
    """

    urls: int
    pages: int
    hosts: int
    pairs: int
    pools: dict[Split, int]
    cores: int
    memory_bytes: int
    gpu: str
    stages: list[StagePlan]
    peak_bytes: int
    free_bytes: int
    lacks: list[str]

    def __str__(self) -> str:
        pools = ", ".join(f"{name} {pairs:,}" for name, pairs in self.pools.items())
        hours = sum(stage.hours for stage in self.stages)
        machine = f"{self.cores} cores, {_disk(self.memory_bytes)} of memory, {self.gpu}"
        head = [
            f"{self.urls:,} URLs: {self.pages:,} pages on {self.hosts:,} hosts",
            f"about {self.pairs:,} pairs (assumed: {_YIELD:.0%} of the pages): {pools}",
            f"this machine: {machine}",
            "",
            f"{'stage':9} {'time':>9} {'disk':>9}",
        ]
        total = f"together  {_hours(hours):>9} {_disk(self.peak_bytes):>9}  at the fullest moment; "
        lacks = [f"- {line}" for line in self.lacks] or ["- nothing"]
        foot = [f"{total}{_disk(self.free_bytes)} free", "", "what this machine lacks:", *lacks]
        return "\n".join([*head, *map(str, self.stages), *foot])


def plan_build(urls: Path, out: Path, settings: BuildSettings) -> BuildPlan:
    """Plan a build by measured rates; nothing is written, no site is asked."""
    listed = read_urls(urls, settings.crawl.url_column)
    sites = Counter(site_of(url) for url in {canonical(url) or url for url in listed})
    quota = settings.crawl.per_host_quota or len(listed)
    hosts = Counter({site: min(count, quota) for site, count in sites.items()})
    pages, shares = hosts.total(), choose_shares(settings.crawl.split_shares, len(listed))
    pools = _pools(pages, shares)
    wanted = {name: size for name in SPLITS if (size := getattr(settings.package, name))}
    released = sum(min(pairs, wanted.get(name, pairs)) for name, pairs in pools.items())
    cores, findings = len(os.sched_getaffinity(0)), doctor.check()
    gpu = next(finding for finding in findings if finding.name == doctor.GPU)
    stages = [
        _crawl(hosts, settings, cores),
        _detect(pages, settings, cores, on_gpu=gpu.found),
        _tokenize(pages, settings, cores),
        _package(released, settings),
    ]
    held = sum(stage.bytes for stage in stages[:3])
    peak = held + max(stages[1].bytes, stages[3].bytes)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    place = next(folder for folder in [out.resolve(), *out.resolve().parents] if folder.is_dir())
    free = shutil.disk_usage(place).free
    lacks = [*_short_of(settings, peak, free, memory, cores), *_too_few(pools, wanted, settings)]
    lacks += [str(finding) for finding in findings if not finding.found]
    machine = (cores, memory, gpu.detail if gpu.found else "no GPU")
    counts = (len(listed), pages, len(hosts), sum(pools.values()), pools)
    return BuildPlan(*counts, *machine, stages, peak, free, lacks)


def _crawl(hosts: Counter[str], settings: BuildSettings, cores: int) -> StagePlan:
    crawl = settings.crawl
    (host, most), visited = hosts.most_common(1)[0], hosts.total()
    webp = crawl.image == "webp"
    work_s = visited * (_CRAWL_S + _WEBP_S * webp) / cores
    waiting_s = most * crawl.per_host_delay_s
    polite = waiting_s > work_s and not crawl.allow_private
    bound = f"{host} is asked no faster" if polite else f"{cores} cores"
    stored = visited * (_WEBP_BYTES if webp else _PAGE_BYTES)
    seconds = waiting_s if polite else work_s
    return _stage("crawl", f"{visited:,} pages", crawl, seconds, stored, bound)


def _detect(pages: int, settings: BuildSettings, cores: int, *, on_gpu: bool) -> StagePlan:
    detect = settings.detect
    on_gpu = on_gpu and detect.device != "cpu"
    seconds = pages * (_GPU_S if on_gpu else _DETECT_S / (detect.threads or cores))
    stored = pages * _REGION_BYTES // (2 if detect.half else 1)
    bound = "a GPU" if on_gpu else f"{detect.threads or cores} cores"
    return _stage("detect", f"{pages:,} x 36 x 768 numbers", detect, seconds, stored, bound)


def _tokenize(pages: int, settings: BuildSettings, cores: int) -> StagePlan:
    processes = settings.tokenize.processes or cores
    seconds, bound = pages * _TOKENIZE_S / processes, f"{processes} processes"
    stored = pages * _PAIR_BYTES
    return _stage("tokenize", "Jieba, BPE, BERT", settings.tokenize, seconds, stored, bound)


def _package(pairs: int, settings: BuildSettings) -> StagePlan:
    half = bool(settings.package.half) or settings.detect.half
    each = _PAIR_BYTES + _REGION_BYTES // (2 if half else 1)
    each += _REGION_BYTES if settings.package.npy else 0
    seconds, stored = pairs * _PACKAGE_S, pairs * each
    return _stage("package", f"{pairs:,} pairs", settings.package, seconds, stored, "the disk")


def _stage(
    name: str, work: str, settings: BaseModel, seconds: float, stored: int, bound: str
) -> StagePlan:
    given = settings.model_dump(mode="json", exclude_defaults=True)
    changed = [f"{field}={value}" for field, value in given.items()]
    return StagePlan(name, work, changed, round(seconds / 3600, 4), stored, bound)


def _short_of(
    settings: BuildSettings, peak: int, free: int, memory: int, cores: int
) -> Iterable[str]:
    if peak > free:
        yield f"disk: {_disk(free)} free, expected {_disk(peak)}"
    flight = settings.crawl.concurrency or 3 * cores
    needed = max(flight * _FLIGHT_BYTES, _DETECT_BYTES)
    if needed > memory:
        yield f"memory: {_disk(memory)}, expected {_disk(needed)} for {flight} pages in flight"


def _pools(pages: int, shares: Shares) -> dict[Split, int]:
    """Return the expected pairs of each pool."""
    pairs = pages * _YIELD
    dev, test = round(pairs * shares.dev), round(pairs * shares.test)
    return {"train": round(pairs) - dev - test, "dev": dev, "test": test}


def _too_few(
    pools: Mapping[Split, int], wanted: Mapping[Split, int], settings: BuildSettings
) -> Iterable[str]:
    short = [f"{pools[name]:,} of {size:,} pairs of {name}" for name, size in wanted.items()
             if pools[name] < size]  # fmt: skip
    if short:
        shares = partial(choose_shares, settings.crawl.split_shares)
        fitting = (
            urls
            for urls in range(1000, _LONGEST, 1000)
            if all(_pools(urls, shares(urls))[name] >= size for name, size in wanted.items())
        )
        urls = next(fitting, None)
        remedy = f"list about {urls:,} URLs" if urls else "choose other crawl.split_shares"
        yield f"URLs: about {', '.join(short)} are to be expected; {remedy}"


def _hours(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{max(hours * 60, 0.1):.1f} min"


def _disk(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
