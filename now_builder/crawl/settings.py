"""Settings of a crawl."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from now_builder.machine.distribution import DistributedSettings


class CrawlSettings(DistributedSettings):
    """Settings of ``crawl``."""

    url_column: str | None = Field(
        None,
        description="Column with the URLs in CSV, TSV or Parquet; default: url.",
    )
    concurrency: int = Field(
        0, ge=0, description="Number of pages visited at the same time; 0: three per CPU core."
    )
    page_timeout_s: float = Field(
        30.0,
        gt=0,
        description="Page timeout in seconds. After 60 % of it, pending requests of the page fail "
        "and the page is captured as it is (load_state=partial).",
    )
    settle_s: float = Field(
        3.0,
        ge=0,
        description="Seconds that a loaded page has to settle: its first screen shows content and "
        "stops changing. A slower page is captured as it is (load_state=partial).",
    )
    allow_private: bool = Field(False, description="Also visit loopback and private addresses.")
    resolve: list[str] = Field(
        default_factory=list,
        description="Address of a host, as HOST:ADDR or HOST:ADDR:PORT; HOST may be *.test. "
        "Repeatable.",
    )
    robots: bool = Field(
        default=True,
        description="Obey robots.txt and its crawl delay, also for redirects and frames.",
    )
    per_host_delay_s: float = Field(
        1.0, ge=0, description="Seconds between visits to a public host."
    )
    per_host_quota: int = Field(
        0, ge=0, description="Maximum number of pages per public host; 0: no limit."
    )
    split_seed: int = Field(0, description="Seed of the split into train, dev and test.")
    split_by: Literal["auto", "domain", "site", "page"] = Field(
        "auto",
        description="Unit that stays within one of train, dev and test: the registrable domain "
        "(example.co.uk), the site (host) or the page; auto: the domain, or the page if the list "
        "has one domain only.",
    )
    split_shares: str | None = Field(
        None,
        description="Shares of train, dev and test, such as 0.7,0.12,0.18; default: chosen by the "
        "length of the list.",
    )
    user_agent_url: str = Field(
        "",
        description="URL of a page that tells site owners who crawls; part of the user agent. Set "
        "it before you crawl public sites.",
    )
    image: Literal["png", "webp"] = Field(
        "png",
        description="Format of screenshots: PNG as the browser writes it, or lossless WebP, which "
        "saves a third to a half of the size and costs 0.2 CPU seconds per page.",
    )
    overlays: Literal["keep", "hide"] = Field(
        "keep",
        description="Cookie and consent overlays: keep them, or hide them before the screenshot. "
        "They are never clicked, so no consent is given; the column overlays lists the rules used.",
    )
    opt_outs: str = Field(
        "noai,noimageai,noml,tdm-reservation,content-signal,content-usage,disallowaitraining,ai.txt",
        description="Opt-outs to obey, separated by commas: words such as noai or noindex in "
        "X-Robots-Tag or a meta tag robots or noise-of-web; tdm-reservation: header, meta tag or "
        "tdmrep.json; content-signal (ai-train=no), content-usage (train-ai=n): robots.txt or "
        "header; disallowaitraining: robots.txt; ai.txt. Empty: none.",
    )
    never: Path | None = Field(
        None,
        description="Text file of hosts that are never contacted, also by pages: one host per "
        "line, subdomains included; # starts a comment.",
    )
    only: list[str] = Field(
        default_factory=list,
        description="Only host to contact, such as a.test or *.test. Requests to other hosts fail, "
        "also those of pages for scripts and pictures. Repeatable.",
    )
    retry_failed: bool = Field(
        default=False,
        description="Visit failed pages again; with --shards-from, set it in all shares or none.",
    )
    shards_from: str = Field(
        "",
        description="Share of the list as K/N, K from 0: N machines or a Slurm array "
        "(--array=0-15, K = $SLURM_ARRAY_TASK_ID) crawl it together into one folder. All pages of "
        "a host are in one share.",
    )

    def obeyed_opt_outs(self) -> frozenset[str]:
        """Return the names of the opt-outs to obey, in lower case."""
        return frozenset(word.strip().lower() for word in self.opt_outs.split(",")) - {""}
