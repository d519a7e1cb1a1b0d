"""Shares of a stage, and the settings of workers that crawl and detect have in common."""

import pytest

from now_builder.crawl.settings import CrawlSettings
from now_builder.detect.settings import DetectSettings
from now_builder.distribution import read_share
from now_builder.errors import ConfigError
from now_builder.ray_engine import RayOptions


@pytest.mark.parametrize("text", ["", "3", "3/3", "-1/4", "a/b", "1/0"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="K/N"):
        read_share(text)
    assert read_share("0/16") == (0, 16)


@pytest.mark.parametrize("kind", [CrawlSettings, DetectSettings])
def test_both_stages_take_the_same_part_of_a_cluster(kind) -> None:
    settings = kind(engine="ray", ray_address="auto", workers=3, worker_cpus=1.5)
    assert settings.ray_options(gpus=0.5) == RayOptions("auto", 3, 1.5, 0.5, 3)
    assert kind().ray_options().address is None
