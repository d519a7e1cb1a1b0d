"""Settings of a crawl."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from now_builder.machine.distribution import DistributedSettings


class CrawlSettings(DistributedSettings):
    """Settings of ``crawl``."""

    url_column: str | None = Field(
        None,
        description="Column with the URLs in CSV, TSV or Parquet; by default url.",
    )
    concurrency: int = Field(0, ge=0, description="Pages in flight; 0: three a CPU core.")
    page_timeout_s: float = Field(
        30.0,
        gt=0,
        description="Wall-clock limit of a page, in seconds. At 60 % of it what a page still loads "
        "fails, and the page is captured as it is (load_state=partial).",
    )
    settle_s: float = Field(
        3.0,
        ge=0,
        description="Seconds for a loaded page to come to rest: until nothing on its first screen "
        "changes, and something is seen there. A page that takes longer is captured as it is "
        "(load_state=partial).",
    )
    allow_private: bool = Field(False, description="Visit loopback and private addresses too.")
    resolve: list[str] = Field(
        default_factory=list,
        description="Address of a host, as HOST:ADDR or HOST:ADDR:PORT; HOST may be *.test. May be "
        "repeated.",
    )
    robots: bool = Field(
        default=True,
        description="Obey robots.txt, its crawl delay included; also where a page leads elsewhere, "
        "and for the documents of frames.",
    )
    per_host_delay_s: float = Field(1.0, ge=0, description="Delay between visits to a public host.")
    per_host_quota: int = Field(0, ge=0, description="Maximum pages per public host; 0: no limit.")
    split_seed: int = Field(0, description="Seed of the split into train, dev and test.")
    split_by: Literal["auto", "domain", "site", "page"] = Field(
        "auto",
        description="Unit that is never divided between train, dev and test: the registrable "
        "domain (example.co.uk), the site (each host apart) or the page; auto: the domain, or the "
        "page when the list has one domain only.",
    )
    split_shares: str | None = Field(
        None,
        description="Shares of train, dev and test, such as 0.7,0.12,0.18; by default they follow "
        "from the length of the list.",
    )
    user_agent_url: str = Field(
        "",
        description="Page that tells owners of sites who crawls; part of the user agent. Set it "
        "before you crawl public sites.",
    )
    image: Literal["png", "webp"] = Field(
        "png",
        description="Format of screenshots: the browser's own PNG bytes, or WebP without loss, "
        "half the size for a tenth of a CPU second a page.",
    )
    overlays: Literal["keep", "hide"] = Field(
        "keep",
        description="Cookie and consent overlays: keep them as the page shows them, or hide them "
        "before the screenshot. They are never clicked, so no consent is given; the column "
        "overlays lists the rules that hid them.",
    )
    opt_outs: str = Field(
        "noai,noimageai,noml,tdm-reservation,content-signal,content-usage,disallowaitraining,ai.txt",
        description="Opt-outs to obey: a word (noindex is another) in X-Robots-Tag or a meta tag "
        "robots or noise-of-web; tdm-reservation: header, meta tag or tdmrep.json; content-signal "
        "(ai-train=no), content-usage (train-ai=n): robots.txt or header; disallowaitraining: "
        "robots.txt; ai.txt: that file disallows the page. Empty: none.",
    )
    never: Path | None = Field(
        None,
        description="Text file of hosts that are never contacted, subdomains included, one a line; "
        "# comments. Holds for all that a page loads, too: a list of trackers, for example.",
    )
    only: list[str] = Field(
        default_factory=list,
        description="Contact no other host: requests to others, those of pages for scripts and "
        "pictures too, are refused at once. A host, or *.test for all below. May be repeated.",
    )
    retry_failed: bool = Field(
        default=False,
        description="Visit again the pages that failed before; with --shards-from in all shares "
        "or in none.",
    )
    shards_from: str = Field(
        "",
        description="K/N: crawl the K-th of N shares of the list, K from 0, so that N machines or "
        "a Slurm array (--array=0-15, K = $SLURM_ARRAY_TASK_ID) crawl it together into one folder. "
        "A host is in one share only.",
    )

    def obeyed_opt_outs(self) -> frozenset[str]:
        """Return the opt-outs to obey, in lower case."""
        return frozenset(word.strip().lower() for word in self.opt_outs.split(",")) - {""}
