"""Enforce the shapes and types that signatures promise, while tests run (`make test-types`)."""

import dataclasses
import inspect
from collections.abc import Callable
from functools import partial
from typing import ForwardRef, Literal, get_args, get_origin

import jaxtyping
from beartype import BeartypeConf, beartype

_with_shapes = jaxtyping.jaxtyped
_plainly = beartype(conf=BeartypeConf(violation_type=jaxtyping.TypeCheckError))


def _is_for_jaxtyping(hint: object) -> bool:
    """Whether a hint has arrays, or names in quotes, of which some cannot be resolved."""
    if get_origin(hint) is Literal:
        return False
    is_array = inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray)
    is_text = isinstance(hint, str | ForwardRef)
    return is_array or is_text or any(map(_is_for_jaxtyping, get_args(hint)))


def _check_types(what: object = None, *, typechecker: Callable) -> object:
    """Check arguments and results; shapes only where some are promised.

    ``jaxtyped`` binds the arguments of every call to its signature, which costs short functions
    many times their own time.
    """
    if what is None:
        return partial(_check_types, typechecker=typechecker)
    if inspect.isclass(what):
        if dataclasses.is_dataclass(what):
            what.__init__ = _check_types(what.__init__, typechecker=typechecker)
        return what
    if any(map(_is_for_jaxtyping, inspect.get_annotations(what).values())):
        return _with_shapes(what, typechecker=typechecker)
    return _plainly(what)


def install() -> None:
    """Check the signatures of our packages in all modules that are imported from now on."""
    jaxtyping.jaxtyped = _check_types  # what the hook calls
    packages = ["now_builder", "leaderboard", "pc2_baseline"]
    jaxtyping.install_import_hook(packages, "beartype.beartype")
