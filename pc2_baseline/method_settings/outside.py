"""Methods of other packages: settings that they name as entry points."""

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import ClassVar

from now_builder.config import Strict
from now_builder.errors import ConfigError

GROUP = "pc2_baseline.methods"
"""Entry-point group: the name of a method, and the class of its settings."""


class OutsideSettings(Strict):
    """Base of the settings of a method that another package adds.

    A subclass has ``name``, a ``Literal`` of the entry point's name with that as its default.

    Attributes:
        implementation: The method's class as ``package.module:Class``; imported when it trains, so
            that the settings need not import torch.
    """

    implementation: ClassVar[str]


def outside_settings(known: Mapping[str, object]) -> dict[str, type[OutsideSettings]]:
    """Load the settings of the methods of all installed packages, by name.

    Args:
        known: Names that are taken.

    Raises:
        ConfigError: If a name is taken, or an entry point does not name such settings.
    """
    found: dict[str, type[OutsideSettings]] = {}
    for point in entry_points(group=GROUP):
        where = f"entry point {GROUP}: {point.name} = {point.value}"
        if point.name in known or point.name in found:
            raise ConfigError(f"{where}: there is already a method of that name")
        try:
            kind = point.load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"{where}: cannot be imported ({error})") from None
        if not (isinstance(kind, type) and issubclass(kind, OutsideSettings)):
            raise ConfigError(f"{where}: expected a subclass of OutsideSettings")
        field = kind.model_fields.get("name")
        if field is None or field.default != point.name or not hasattr(kind, "implementation"):
            raise ConfigError(f"{where}: expected name = {point.name!r}, and implementation")
        found[point.name] = kind
    return found
