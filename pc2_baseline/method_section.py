"""The section ``[method]`` of a run's settings: the class that reads it, and shared fields."""

from collections.abc import Mapping
from functools import partial
from pkgutil import resolve_name
from typing import Annotated, Any, cast

from pydantic import BeforeValidator, Field, PositiveFloat, SerializeAsAny

from now_builder.config import Strict, nearest

METHODS = {
    "bicro": "bicro:BiCro",
    "contrastive": "contrastive:Contrastive",
    "crcl": "crcl:Crcl",
    "cream": "cream:Cream",
    "crossfit": "crossfit:CrossFit",
    "decl": "decl:Decl",
    "gsc": "gsc:Gsc",
    "in2r": "in2r:In2r",
    "l2rm": "l2rm:L2rm",
    "mscn": "mscn:Mscn",
    "ncr": "ncr:Ncr",
    "npc": "npc:Npc",
    "pc2": "pc2.paper:Pc2",
    "pc2-crossfit": "pc2.crossfit:Pc2CrossFit",
    "pc2-released": "pc2.released:Pc2Released",
    "pcsr": "pc2.pcsr:Pcsr",
    "rcl": "contrastive:Rcl",
    "ridge": "ridge:Ridge",
    "sps": "sps:Sps",
    "triplet": "triplet:Triplet",
}
"""Class of each method in :mod:`pc2_baseline.methods`, by the name in its settings. It has the
class of its settings as ``section``, and is imported only when such settings are read: a method
needs torch, ``--help`` does not."""

Share = Annotated[float, Field(ge=0, le=1)]


class MethodSettings(Strict):
    """Base of the settings of a method, which name it.

    Attributes:
        name: Name of the method in :data:`METHODS`, by which :func:`read_section` finds the class.
    """

    name: str = "pc2"

    @property
    def takes_matched(self) -> str:
        """What the method does with pairs that are known to match, for a message; mostly "".

        It finds them by :meth:`~pc2_baseline.data.pairs.PairSet.matched_rows`.
        """
        return ""

    @classmethod
    def read_by(cls, tree: Any) -> type[Strict]:
        """Return the class of the method that a section names: PC2's if it names none."""
        if cls is not MethodSettings:
            return cls
        name = str(tree.get("name", "pc2")) if isinstance(tree, Mapping) else "pc2"
        return settings_class(name)


class SoftmaxSettings(MethodSettings):
    """Settings of the softmax losses over a batch, each pair against all others."""

    temperature: PositiveFloat = Field(
        0.05,
        description="Temperature of the softmax losses, in units of similarity; lower: only the "
        "hardest negatives count.",
    )


class TripletSettings(MethodSettings):
    """Settings shared by methods that learn by triplets."""

    margin: PositiveFloat = Field(0.2, description="Triplet margin, in units of similarity.")
    mean_epochs: Annotated[int, Field(ge=0)] = Field(
        0, description="Epochs after the warm-up that go on with mean negatives; then hardest."
    )


class DivisionSettings(MethodSettings):
    """Settings shared by methods that divide the pairs."""

    division_batch: Annotated[int, Field(ge=2)] = Field(
        128, description="Pairs against which a pair's loss is taken to divide them, at most."
    )


class NoisySettings(DivisionSettings):
    """Settings shared by methods that learn noisy pairs from an epoch on."""

    noisy_from_epoch: Annotated[int, Field(ge=0)] = Field(
        0, description="First epoch after the warm-up that trains on noisy pairs."
    )


class DividingSettings(TripletSettings, DivisionSettings):
    """Settings shared by methods that divide the pairs and learn them with soft margins."""

    margin_base: Annotated[float, Field(gt=1)] = Field(
        10.0, description="Base m of the soft margin."
    )


class CrossFittedSettings(DividingSettings):
    """Settings shared by methods whose pairs are judged by networks that did not see them."""

    folds: Annotated[int, Field(ge=2)] = Field(
        4,
        description="Folds of the pairs, and networks: each trains on all folds but one, judges "
        "that one, and their similarities are averaged. Training time grows with folds - 1.",
    )


class CoTeachingSettings(DividingSettings, NoisySettings):
    """Settings shared by methods of two peers that are taught by each other's division."""


def settings_class(name: str) -> type[MethodSettings]:
    """Return the class of the settings of a method."""
    if name not in METHODS:
        raise ValueError(f"name to be one of {', '.join(METHODS)}{nearest(name, METHODS)}")
    return cast(type[MethodSettings], method_class(name).section)


def method_class(name: str) -> Any:
    """Return the class of a method, whose settings are read by its ``section``."""
    return resolve_name(f"pc2_baseline.methods.{METHODS[name]}")


def read_section(base: type[Strict], value: object) -> object:
    """Read a section by the class that it names; a value that is no tree stays as it is."""
    return base.read_by(value).model_validate(value) if isinstance(value, Mapping) else value


MethodSection = Annotated[
    SerializeAsAny[MethodSettings], BeforeValidator(partial(read_section, MethodSettings))
]
"""Type of the field in the settings of a run."""
