"""Run all stages, from the URL list to the release."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import Field

from now_builder.build import preset_path, presets
from now_builder.config import Strict, build, read_toml, with_overrides
from now_builder.crawl.settings import CrawlSettings
from now_builder.detect.settings import DetectSettings
from now_builder.errors import ConfigError
from now_builder.formats.io import lock_folder
from now_builder.package.settings import PackageSettings
from now_builder.tokenize.settings import TokenizeSettings

_log = logging.getLogger(__name__)


class BuildSettings(Strict):
    """The settings of every stage, by section."""

    crawl: CrawlSettings = Field(default_factory=CrawlSettings)
    detect: DetectSettings = Field(default_factory=DetectSettings)
    tokenize: TokenizeSettings = Field(default_factory=TokenizeSettings)
    package: PackageSettings = Field(default_factory=PackageSettings)


def read_build_settings(
    preset: str | None, config: Path | None, overrides: Iterable[str]
) -> BuildSettings:
    """Read a preset; a TOML file overrides it, and ``section.key=value`` overrides both.

    Raises:
        ConfigError: If the preset or file is missing, or a setting is unknown or out of range.
    """
    tree: dict[str, Any] = {}
    if preset is not None:
        if preset not in presets():
            raise ConfigError(f"--preset {preset}: expected one of {', '.join(presets())}")
        tree = read_toml(preset_path(preset))
    for section, values in (read_toml(config) if config else {}).items():
        is_merged = isinstance(values, dict) and isinstance(tree.get(section), dict)
        tree[section] = {**tree[section], **values} if is_merged else values
    tree = with_overrides(tree, overrides)
    return build(BuildSettings, tree, str(config or preset or "now-builder build"))


def build_release(
    urls: Path,
    out: Path,
    settings: BuildSettings,
    force: bool = False,  # noqa: FBT001, FBT002 - as in every stage
) -> Path:
    """Run crawl, detect, tokenize and package; return the release folder.

    ``out`` gets ``captures``, ``features.h5``, ``captions`` and ``release``. The default detector
    is the shipped one.

    Raises:
        ConfigError: If another command builds in ``out``.
        CrawlError: If no page was captured.
    """
    # Late imports: `now-builder --help` must not load torch and a browser driver.
    from now_builder.crawl.run import crawl
    from now_builder.detect.run import detect
    from now_builder.package.run import package
    from now_builder.tokenize.run import tokenize

    captures, features = out / "captures", out / "features.h5"
    captions, release = out / "captions", out / "release"
    with lock_folder(out):
        summary = crawl(urls, captures, settings.crawl, force)
        _log.info("crawl: %s", summary)
        summary.check(captures)
        _log.info("detect: %s", detect(captures, features, settings.detect, force))
        _log.info("tokenize: %s", tokenize(captures, captions, settings.tokenize, force))
        manifest = package(captures, features, captions, release, settings.package, force)
    _log.info("package: %s: %s", release, manifest.summary)
    return release
