"""Typed, frozen, strict settings: read from TOML, changed by ``key=value``, saved with the run."""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from now_builder.errors import ConfigError


class Strict(BaseModel):
    """A frozen settings or record model that refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def read_by(cls, tree: Any) -> "type[Strict]":  # noqa: ARG003 - a base of several reads it
        """Return the class that a plain tree is read by: this one, or the subclass it names.

        Raises:
            ValueError: If it names none.
        """
        return cls


Model = TypeVar("Model", bound=BaseModel)

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""A SHA-256 hash in lower-case hexadecimal."""


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file into a plain tree."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such settings file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text, expected a TOML file") from None
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
        try:
            node[key] = tomllib.loads(f"value = {text.strip()}")["value"]
        except (ValueError, RecursionError):
            node[key] = text.strip()
    return tree


def build(model: type[Model], tree: dict[str, Any], origin: str) -> Model:
    """Build a settings object from a tree.

    Raises:
        ConfigError: Naming each field that is unknown, missing or of the wrong kind.
    """
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        items = error.errors()
        problems = [_problem(item, model, tree) for item in items[:_SHOWN]]
        if len(items) > _SHOWN:
            problems.append(f"{len(items) - _SHOWN} more")
        raise ConfigError(f"{origin}: {'; '.join(problems)}") from None


def _problem(item: Any, model: type[BaseModel], tree: Any) -> str:
    if not item["loc"]:  # of several sections at once
        return str(item["msg"]).removeprefix("Value error, ")
    place = place_of(item, tree)
    if item["type"] == "extra_forbidden":
        return f"{place}: no such field{_nearest_field(place, fields_of(model, tree))}"
    found = "nothing" if item["type"] == "missing" else f"{item['input']!r:.80}"
    return f"{place}: expected {expected_by(item, model, tree)} (found {found})"


_SHOWN = 12
"""Problems in a message."""


_PLAIN = {
    "extra_forbidden": "no field of this name",
    "missing": "a value",
    "json_invalid": "plain JSON",
}
_LEAD = re.compile(
    r"^(?:Value error, )?(?:expected |[A-Z]\w*(?: input)? should (?:be|have|match) )?"
)
"""Beginning of the messages of pydantic and of our own checks."""


def expected_by(
    item: Mapping[str, Any], model: type[BaseModel] | None = None, tree: Any = None
) -> str:
    """Return what a validation error of pydantic expected, as it follows the word "expected"."""
    text = _PLAIN.get(item["type"], "").format(**item.get("ctx", {}))
    if model is not None and item["type"] == "extra_forbidden":
        text += _nearest_field(place_of(item, tree), fields_of(model, tree))
    text = text or _LEAD.sub("", str(item["msg"]), count=1)
    if item["type"] == "literal_error":
        text += nearest(str(item["input"]), re.findall("'(.*?)'", item["ctx"]["expected"]))
    return text


def place_of(item: Mapping[str, Any], tree: Any) -> str:
    """Return the dotted path of a validation error, without parts that are no names in the tree.

    Where a section is one of several classes, pydantic names the class too. The path of an unknown
    section goes on to its field, if there is only one.
    """
    parts = []
    for number, part in enumerate(item["loc"], 1):
        row = isinstance(tree, list | tuple) and isinstance(part, int) and part < len(tree)
        there = part in tree if isinstance(tree, dict) else row
        if there or number == len(item["loc"]):
            parts.append(f"{part!s:.60}")
            tree = tree[part] if there else None
    value = item["input"] if item["type"] == "extra_forbidden" else None
    while isinstance(value, dict) and len(value) == 1:
        [(name, value)] = value.items()
        parts.append(f"{name!s:.60}")
    return ".".join(parts)


def fields_of(model: type[BaseModel], tree: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted paths of all fields; of several classes, those of the class in the tree."""
    for name, field in model.model_fields.items():
        yield prefix + name
        below = tree.get(name) if isinstance(tree, dict) else None
        for kind in _models_in(field.annotation):
            with suppress(ValueError):  # no class has the name that stands in the tree
                own = kind.read_by(below) if issubclass(kind, Strict) else kind
                yield from fields_of(own, below, f"{prefix}{name}.")


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _nearest_field(place: str, fields: Iterable[str]) -> str:
    """Name the field most like a wrong one: any of its name, one of its section, else any."""
    section, _, name = re.sub(r"\.\d+(?=\.)", "", place).rpartition(".")
    known = list(fields)
    here = [path for path in known if path.rpartition(".")[0] == section]
    for paths, alike in ((known, 1.0), (here, 0.6), (known, 0.8)):
        names = {path.rpartition(".")[2]: path for path in reversed(paths)}
        if found := get_close_matches(name.lower().replace("-", "_"), names, 1, alike):
            return f", the nearest is {names[found[0]]}"
    return ""


def nearest(word: str, names: Iterable[str]) -> str:
    """Return the end of a message that names the most similar name; empty if none is similar."""
    found = get_close_matches(word, list(names), 1)
    return f", the nearest is {found[0]}" if found else ""


def to_toml(settings: BaseModel) -> str:
    """Write settings as TOML text; values that are ``None`` are left out."""
    return tomli_w.dumps(settings.model_dump(mode="json", exclude_none=True))
