"""Typed, frozen, strict settings: read from TOML, changed by ``key=value``, saved with the run."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from now_builder.errors import ConfigError


class Strict(BaseModel):
    """A frozen settings or record model that refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Model = TypeVar("Model", bound=BaseModel)

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""A SHA-256 hash in lower-case hexadecimal."""


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file into a plain tree.

    Raises:
        ConfigError: If the file is missing or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such settings file") from None
    except (ValueError, RecursionError, OSError) as error:  # tomllib's own, and of long numbers
        raise ConfigError(f"{path}: not a readable TOML file ({error})") from None


def with_overrides(tree: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return a copy of a settings tree in which each ``section.key=value`` is set.

    Values are read as TOML (``0.3``, ``true``, ``[1, 2]``); what is not TOML is taken as text.

    Raises:
        ConfigError: If an override has no ``=`` or walks through a value.
    """
    tree = {key: dict(value) if isinstance(value, dict) else value for key, value in tree.items()}
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {override}: expected section.key=value")
        *sections, key = name.strip().split(".")
        node = tree
        for section in sections:
            child = node.setdefault(section, {})
            if not isinstance(child, dict):
                raise ConfigError(f"--set {override}: {section} is a value, not a section")
            node[section] = dict(child)
            node = node[section]
        node[key] = _value(text.strip())
    return tree


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def build(model: type[Model], tree: dict[str, Any], origin: str) -> Model:
    """Build a settings object from a tree.

    Args:
        model: The settings class.
        tree: Plain values.
        origin: Where the values came from, for the message.

    Raises:
        ConfigError: Naming each field that is unknown, missing or of the wrong kind.
    """
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        items = error.errors()
        problems = [
            f"{'.'.join(f'{part!s:.60}' for part in item['loc'])}: expected {expected_by(item)}"
            f" (found {_found(item)})"
            if item["loc"]
            else item["msg"].removeprefix("Value error, ")  # of several sections at once
            for item in items[:_SHOWN]
        ]
        if len(items) > _SHOWN:
            problems.append(f"{len(items) - _SHOWN} more")
        raise ConfigError(f"{origin}: {'; '.join(problems)}") from None


_SHOWN = 12
"""Problems in a message."""


_PREFIXES = ("Value error, ", "Input should be ", "String should have ", "String should match ")
_PLAIN = {
    "extra_forbidden": "no field of this name",
    "missing": "a value",
    "json_invalid": "plain JSON",
}


def expected_by(item: Mapping[str, Any]) -> str:
    """Return what a validation error of pydantic expected, as it follows the word "expected"."""
    text = _PLAIN.get(item["type"], str(item["msg"]))
    for prefix in _PREFIXES:
        text = text.removeprefix(prefix)
    return text


def _found(item: Mapping[str, Any]) -> str:
    return "nothing" if item["type"] == "missing" else f"{item['input']!r:.80}"


def to_toml(settings: BaseModel) -> str:
    """Write settings as TOML text; values that are ``None`` are left out."""
    return tomli_w.dumps(settings.model_dump(mode="json", exclude_none=True))
