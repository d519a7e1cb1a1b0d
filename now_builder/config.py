"""Typed, frozen, strict settings: read from TOML, overridden by ``key=value``, saved with runs."""

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
    """A frozen settings or record model that rejects unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def read_by(cls, tree: Any) -> "type[Strict]":  # noqa: ARG003 - subclasses use it
        """Return the class for a plain tree: this one, or the subclass that the tree names.

        Raises:
            ValueError: If there is no such subclass.
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
        raise ConfigError(f"{path}: settings file not found") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text, expected a TOML file") from None
    except (ValueError, RecursionError, OSError) as error:  # also from long numbers
        raise ConfigError(f"{path}: not a readable TOML file ({error})") from None


def with_overrides(tree: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return a copy of a settings tree with each ``section.key=value`` set.

    Values are parsed as TOML (``0.3``, ``true``, ``[1, 2]``), else used as text.

    Raises:
        ConfigError: If an override has no ``=``, or its section is a value.
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
    if not item["loc"]:  # a check of several sections
        return str(item["msg"]).removeprefix("Value error, ")
    place = place_of(item, tree)
    if item["type"] == "extra_forbidden":
        return f"{place}: no such field{_nearest_field(place, fields_of(model, tree))}"
    value = "nothing" if item["type"] == "missing" else f"{item['input']!r:.80}"
    return f"{place}: expected {expected_by(item, model, tree)} (found {value})"


_SHOWN = 12
"""Maximum number of problems in a message."""


_PLAIN = {
    "extra_forbidden": "no field of this name",
    "missing": "a value",
    "json_invalid": "plain JSON",
}
_LEAD = re.compile(
    r"^(?:Value error, )?(?:expected |[A-Z]\w*(?: input)? should (?:be|have|match) )?"
)
"""Beginning of the messages of pydantic and of this project's checks."""


def expected_by(
    item: Mapping[str, Any], model: type[BaseModel] | None = None, tree: Any = None
) -> str:
    """Return the text for "expected …" of a validation error of pydantic."""
    text = _PLAIN.get(item["type"], "").format(**item.get("ctx", {}))
    if model is not None and item["type"] == "extra_forbidden":
        text += _nearest_field(place_of(item, tree), fields_of(model, tree))
    text = text or _LEAD.sub("", str(item["msg"]), count=1)
    if item["type"] == "literal_error":
        text += nearest(str(item["input"]), re.findall("'(.*?)'", item["ctx"]["expected"]))
    return text


def place_of(item: Mapping[str, Any], tree: Any) -> str:
    """Return the dotted path of a validation error, without the names of classes.

    If a section may be one of several classes, pydantic inserts the class. The path of an unknown
    section includes its field if there is only one.
    """
    parts = []
    for number, part in enumerate(item["loc"], 1):
        is_index = isinstance(tree, list | tuple) and isinstance(part, int) and part < len(tree)
        in_tree = part in tree if isinstance(tree, dict) else is_index
        if in_tree or number == len(item["loc"]):
            parts.append(f"{part!s:.60}")
            tree = tree[part] if in_tree else None
    value = item["input"] if item["type"] == "extra_forbidden" else None
    while isinstance(value, dict) and len(value) == 1:
        [(name, value)] = value.items()
        parts.append(f"{name!s:.60}")
    return ".".join(parts)


def fields_of(model: type[BaseModel], tree: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted paths of all fields; of a choice of classes, those that the tree selects."""
    for name, field in model.model_fields.items():
        yield prefix + name
        section = tree.get(name) if isinstance(tree, dict) else None
        for base in _models_in(field.annotation):
            with suppress(ValueError):  # the tree names an unknown class
                cls = base.read_by(section) if issubclass(base, Strict) else base
                yield from fields_of(cls, section, f"{prefix}{name}.")


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _nearest_field(place: str, fields: Iterable[str]) -> str:
    """Suggest the field closest to a wrong one: same name, else same section, else any."""
    section, _, name = re.sub(r"\.\d+(?=\.)", "", place).rpartition(".")
    paths = list(fields)
    siblings = [path for path in paths if path.rpartition(".")[0] == section]
    for candidates, cutoff in ((paths, 1.0), (siblings, 0.6), (paths, 0.8)):
        names = {path.rpartition(".")[2]: path for path in reversed(candidates)}
        if match := get_close_matches(name.lower().replace("-", "_"), names, 1, cutoff):
            return f" (did you mean {names[match[0]]}?)"
    return ""


def nearest(word: str, names: Iterable[str]) -> str:
    """Suggest the closest name (" (did you mean …?)"); empty if no name is similar."""
    match = get_close_matches(word, list(names), 1)
    return f" (did you mean {match[0]}?)" if match else ""


def to_toml(settings: BaseModel) -> str:
    """Return settings as TOML text, without values that are ``None``."""
    return tomli_w.dumps(settings.model_dump(mode="json", exclude_none=True))
