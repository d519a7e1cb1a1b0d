"""Sources of regions by name."""

from pathlib import Path

from now_builder.detect.model.apt import AptDetector
from now_builder.detect.regions import detectron2 as detectron
from now_builder.detect.regions.external import ExternalDetector, find_external, fingerprint
from now_builder.detect.regions.sources import DomBoxes, ExternalBoxes, OwnProposals, RegionSource
from now_builder.errors import ConfigError

_HUB = "hf:"


def make_source(name: str, model: AptDetector, least: float = 0.0) -> RegionSource:
    """Make a source: ``proposals``, ``dom``, ``hf:MODEL`` or ``detectron2:CONFIG[@WEIGHTS]``.

    Args:
        name: Name of the source.
        model: Detector that embeds the regions.
        least: Least score of boxes from ``hf:``.

    Raises:
        ConfigError: If there is no such source, or it cannot be had.
    """
    if name == "proposals":
        return OwnProposals(model)
    if name == "dom":
        return DomBoxes()
    device = model.centre.device
    if name.startswith(_HUB):
        return ExternalBoxes(ExternalDetector(name.removeprefix(_HUB), device), least)
    if name.startswith(detectron.PREFIX):
        return detectron.Detectron2Boxes(detectron.Network(detectron.read_model_spec(name), device))
    raise ConfigError(
        f"regions {name!r}: expected proposals, dom, hf:NAME_OR_FOLDER or "
        "detectron2:CONFIG[@WEIGHTS]"
    )


def source_attributes(name: str, least: float) -> dict[str, str]:
    """Return the attributes of a feature file that identify a source.

    A folder is named without its path; its hash distinguishes it from others.

    Raises:
        ConfigError: If an external detector cannot be had.
    """
    if name.startswith(detectron.PREFIX):
        return detectron.source_attributes(name)
    if not name.startswith(_HUB):
        return {"regions": name}
    external = name.removeprefix(_HUB)
    local = Path(external).is_dir()
    return {
        "regions": _HUB + (Path(external).resolve().name if local else external),
        "regions_sha256": fingerprint(find_external(external)),
        "region_score": str(least),
    }


def absolute(name: str) -> str:
    """Return the name of a source with absolute paths, for processes in other folders."""
    if name.startswith(detectron.PREFIX):
        return detectron.with_absolute_paths(name)
    folder = Path(name.removeprefix(_HUB))
    return f"{_HUB}{folder.resolve()}" if name.startswith(_HUB) and folder.is_dir() else name
