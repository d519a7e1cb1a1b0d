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
"""Class of each method in :mod:`pc2_baseline.methods` by name, imported only if it is used, so that
``--help`` does not load torch; its ``section`` is the class of its settings."""

Share = Annotated[float, Field(ge=0, le=1)]


class MethodSettings(Strict):
    """Base of the settings of a method, which name it.

    Attributes:
        name: Name of the method in :data:`METHODS`.
    """

    name: str = "pc2"

    @property
    def takes_matched(self) -> str:
        """How the method uses pairs known to match (``PairSet.matched_rows``), for a message."""
        return ""

    @classmethod
    def read_by(cls, tree: Any) -> type[Strict]:
        """Return the class of the method that a section names; default: PC2's."""
        if cls is not MethodSettings:
            return cls
        name = str(tree.get("name", "pc2")) if isinstance(tree, Mapping) else "pc2"
        return settings_class(name)


class SoftmaxSettings(MethodSettings):
    """Settings of the softmax losses over a batch, each pair against all others."""

    temperature: PositiveFloat = Field(
        0.05, description="Temperature of the softmax losses; lower: hardest negatives count more."
    )


class TripletSettings(MethodSettings):
    """Settings shared by methods that learn by triplets."""

    margin: PositiveFloat = Field(0.2, description="Triplet margin, in units of similarity.")
    mean_epochs: Annotated[int, Field(ge=0)] = Field(
        0, description="Epochs after the warm-up with mean negatives, before hardest ones."
    )


class DivisionSettings(MethodSettings):
    """Settings shared by methods that divide the pairs."""

    division_batch: Annotated[int, Field(ge=2)] = Field(
        128, description="Maximum batch for the losses of the division."
    )


class NoisySettings(DivisionSettings):
    """Settings shared by methods that train on noisy pairs from some epoch on."""

    noisy_from_epoch: Annotated[int, Field(ge=0)] = Field(
        0, description="First epoch after the warm-up that trains on noisy pairs."
    )


class DividingSettings(TripletSettings, DivisionSettings):
    """Settings shared by methods that divide the pairs and learn them with soft margins."""

    margin_base: Annotated[float, Field(gt=1)] = Field(10.0, description="Base of the margin.")


class CrossFittedSettings(DividingSettings):
    """Settings shared by methods of cross-fit division."""

    folds: Annotated[int, Field(ge=2)] = Field(
        4,
        description="Number of folds and of networks: each trains on all folds but one, and "
        "divides that one; similarities are averaged. Training time grows with folds - 1.",
    )


class CoTeachingSettings(DividingSettings, NoisySettings):
    """Settings shared by methods of two peers that train on each other's division."""


def settings_class(name: str) -> type[MethodSettings]:
    """Return the class of the settings of a method."""
    if name not in METHODS:
        raise ValueError(f"name to be one of {', '.join(METHODS)}{nearest(name, METHODS)}")
    return cast(type[MethodSettings], method_class(name).section)


def method_class(name: str) -> Any:
    """Return the class of a method."""
    return resolve_name(f"pc2_baseline.methods.{METHODS[name]}")


def read_section(base: type[Strict], value: object) -> object:
    """Validate a section with the class that it names; return other values unchanged."""
    return base.read_by(value).model_validate(value) if isinstance(value, Mapping) else value


MethodSection = Annotated[
    SerializeAsAny[MethodSettings], BeforeValidator(partial(read_section, MethodSettings))
]
"""Type of the field in the settings of a run."""
