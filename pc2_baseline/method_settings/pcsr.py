"""Settings of PCSR."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from pc2_baseline.method_settings.pc2 import Pc2CommonSettings


class PcsrSettings(Pc2CommonSettings):
    """PCSR (Liu et al., AAAI 2026): noisy pairs are refinable or ambiguous, by their history."""

    name: Literal["pcsr"] = "pcsr"
    class_input: Literal["slots", "pooled"] = Field(
        "slots",
        description="What is classified: 36 vectors in their order, or the attention-pooled one.",
    )
    classes: Annotated[int, Field(ge=2)] = Field(256, description="Pseudo-classes K.")
    temperature: PositiveFloat = Field(
        0.05, description="Temperature of the warm-up's InfoNCE, in units of similarity."
    )
    noisy_from_epoch: Annotated[int, Field(ge=0)] = Field(
        25,
        description="First epoch after the warm-up that trains on refinable pairs (noisy ones of a "
        "consistent pseudo-class), with pseudo-captions.",
    )
    ambiguous_from_epoch: Annotated[int, Field(ge=0)] = Field(
        40, description="First epoch after the warm-up that trains on ambiguous pairs, too."
    )
    consistency_threshold: Literal["tracked", "mean"] = Field(
        "tracked",
        description="Lead that a pair's most frequent pseudo-class must exceed: tracked, from the "
        "mean after the warm-up in small steps towards a growing share of consistent pairs; or "
        "the mean lead of each epoch.",
    )
    gce_power: Annotated[float, Field(gt=0, le=1)] = Field(
        0.7,
        description="Power q of the generalised cross-entropy of ambiguous pairs: near 0 the "
        "cross-entropy, 1 the mean absolute error.",
    )
    ambiguous_captions: Literal["own", "pseudo"] = Field(
        "own",
        description="Captions that ambiguous images are matched with: their own, or "
        "pseudo-captions as in the released code.",
    )
    lambda_ambiguous: NonNegativeFloat = Field(
        1.0, description="Weight of the ambiguous pairs' loss."
    )

    @model_validator(mode="after")
    def _has_classes(self) -> "PcsrSettings":
        if not self.pseudo_classes:
            raise ValueError("pcsr needs pseudo_classes: their history divides the noisy pairs")
        return self
