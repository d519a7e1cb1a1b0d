"""The regions of a new picture, by the detector of a release's features."""

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

_IDENTIFYING = ("weights_sha256", "words_edition", "embed_sha256")


class RegionExtractor:
    """The detector of a feature file, loaded, for pictures that are not in the file.

    A picture has no DOM: its texts are unknown, and its regions are the detector's proposals even
    where those of the file come from the DOM.

    Args:
        attributes: Attributes of the feature file.
        weights: The detector's weights; ``None`` for the shipped ones.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        ConfigError: If the features come from other weights, another detector, or a model that
            cannot be loaded.
        FormatError: If the weights are torn.
    """

    def __init__(
        self, attributes: Mapping[str, Any], weights: Path | None, device: str = "auto"
    ) -> None:
        if attributes.get("detector") != "apt-style":
            raise ConfigError(
                f"the release's features come from the detector {attributes.get('detector')!r:.60},"
                " expected 'apt-style' of `now-builder detect`, which alone reads a new picture"
            )
        settings = _settings(attributes, weights, device)
        own = attributes_of(settings)
        for name in _IDENTIFYING:
            _check_same(name, attributes.get(name), own.get(name), weights)
        self._detector = load(settings, tuple(own.items()))

    def __call__(self, content: bytes, name: str) -> Float[ndarray, "36 768"]:
        """Return a picture's regions; other shapes than a screenshot's are fitted into its corner.

        Raises:
            FormatError: If it is not such a picture, or has too many pixels.
        """
        pixels = to_batch([decode_screenshot(content, self._detector.input_size, name)])
        regions: Float[ndarray, "36 768"] = self._detector.extract([Page(name)], pixels).regions[0]
        return regions


def _settings(attributes: Mapping[str, Any], weights: Path | None, device: str) -> DetectSettings:
    """Return the settings of ``detect`` of a feature file, except precision and source of texts.

    Texts change only which regions are kept.
    """
    settings = DetectSettings(
        weights=weights,
        device=device,
        threads=torch.get_num_threads(),
        text_source="none",
        regions=str(attributes.get("regions", "proposals")),
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
