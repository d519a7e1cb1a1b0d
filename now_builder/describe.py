"""A new picture as the regions of a release, found by the detector that described its pages."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from numpy import ndarray

from now_builder.detect.base import Page
from now_builder.detect.model.weights import SHIPPED
from now_builder.detect.pixels import decode_screenshot, to_batch
from now_builder.detect.regions.loading import attributes_of, load, resolve_settings
from now_builder.detect.settings import DetectSettings
from now_builder.errors import ConfigError

_IDENTIFYING = ("weights_sha256", "embed_sha256", "regions_sha256")


class Describer:
    """The detector of a feature file, loaded, for pictures that are not in it.

    A picture has no DOM: its texts are unknown, and where the file's regions come from the DOM, its
    own are the detector's proposals.

    Args:
        attributes: Attributes of the feature file.
        weights: The detector's weights; ``None``: those that come with the package.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        ConfigError: If the features come from other weights, another detector, or a model that
            cannot be had.
        FormatError: If the weights are torn.
    """

    def __init__(
        self, attributes: Mapping[str, Any], weights: Path | None, device: str = "auto"
    ) -> None:
        if attributes.get("detector") != "apt-style":
            raise ConfigError(
                f"the release's features come from the detector {attributes.get('detector')!r:.60},"
                " expected 'apt-style' of `now-builder detect`: no other describes a new picture"
            )
        settings = _settings(attributes, weights, device)
        found = attributes_of(settings)
        for name in _IDENTIFYING:
            _check_same(name, attributes.get(name), found.get(name), weights)
        self._detector = load(settings, tuple(found.items()))

    def __call__(self, content: bytes, name: str) -> Float[ndarray, "36 768"]:
        """Describe a picture; one of another shape than a screenshot is fitted into its corner.

        Args:
            content: A PNG, JPEG or WebP file.
            name: What messages call it.

        Raises:
            FormatError: If it is not such a picture, or has too many pixels.
        """
        pixels = to_batch([decode_screenshot(content, self._detector.input_size, name)])
        found = self._detector.extract([Page(name)], pixels)
        regions: Float[ndarray, "36 768"] = found.regions[0]
        return regions


def _settings(attributes: Mapping[str, Any], weights: Path | None, device: str) -> DetectSettings:
    """Return the settings of ``detect`` that a feature file was made with, but for the precision.

    Texts are left out: they change only which regions are kept.
    """
    settings = DetectSettings(
        weights=weights,
        device=device,
        threads=torch.get_num_threads(),
        text_source="none",
        regions=str(attributes.get("regions", "proposals")),
        region_score=float(attributes.get("region_score", 0.05)),
        proposals=int(attributes.get("proposals", 100)),
        embed=str(attributes.get("embed", "")),
    )
    return resolve_settings(settings)


def _check_same(name: str, expected: object, found: object, weights: Path | None) -> None:
    if expected != found:
        given = f"--weights {weights or SHIPPED}" if name == "weights_sha256" else "here"
        raise ConfigError(
            f"the release's features were made with {name} {str(expected)[:12]}…, {given} has "
            f"{str(found)[:12]}…: expected what `now-builder detect` was run with"
        )
