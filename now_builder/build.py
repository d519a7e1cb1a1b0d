"""All stages in a row: URL list to release."""

import logging
from pathlib import Path

from pydantic import Field

from now_builder.config import Strict
from now_builder.crawl.settings import CrawlSettings
from now_builder.detect.settings import DetectSettings
from now_builder.package.settings import PackageSettings
from now_builder.tokenize.settings import TokenizeSettings

_log = logging.getLogger(__name__)


class BuildSettings(Strict):
    """The settings of every stage, by section."""

    crawl: CrawlSettings = Field(default_factory=CrawlSettings)
    detect: DetectSettings = Field(default_factory=DetectSettings)
    tokenize: TokenizeSettings = Field(default_factory=TokenizeSettings)
    package: PackageSettings = Field(default_factory=PackageSettings)


def build_release(
    urls: Path,
    out: Path,
    settings: BuildSettings,
    force: bool = False,  # noqa: FBT001, FBT002 - as in every stage
) -> Path:
    """Run crawl, detect, tokenize and package, with the shipped detector if no other is named.

    Args:
        urls: URL list.
        out: Folder to write ``captures``, ``features.h5``, ``captions`` and ``release`` into.
        settings: Settings of each stage.
        force: Start every stage over.

    Returns:
        The release folder.
    """
    # Late imports: `now-builder --help` must not load a browser driver and torch.
    from now_builder.crawl.run import crawl  # noqa: PLC0415
    from now_builder.detect.run import detect  # noqa: PLC0415
    from now_builder.package.run import package  # noqa: PLC0415
    from now_builder.tokenize.run import tokenize  # noqa: PLC0415

    captures, features = out / "captures", out / "features.h5"
    captions, release = out / "captions", out / "release"
    _log.info("crawl: %s", crawl(urls, captures, settings.crawl, force))
    _log.info("detect: %s", detect(captures, features, settings.detect, force))
    _log.info("tokenize: %s", tokenize(captures, captions, settings.tokenize, force))
    manifest = package(captures, features, captions, release, settings.package, force)
    rejects = sum(manifest.rejects.values())
    _log.info("package: %s: %s pairs, %d rejects", release, manifest.counts, rejects)
    return release
