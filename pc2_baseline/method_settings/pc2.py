"""Settings of PC2, as in the paper and as in its released code."""

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from pc2_baseline.method_settings.base import CoTeachingSettings, Share


class Pc2CommonSettings(CoTeachingSettings):
    """Settings shared by PC2 as in the paper and as in its released code."""

    pseudo_classes: bool = Field(
        default=True, description="Learn pseudo-classes (P-Cls); without, search by embedding."
    )
    classes: Annotated[int, Field(ge=2)] = Field(128, description="Pseudo-classes K.")
    class_input: Literal["slots", "padded", "pooled"]
    class_hidden: PositiveInt = Field(256, description="Hidden width of the pseudo-classifier.")
    relative_targets: bool = Field(
        default=False,
        description="Choose a caption's pseudo-class against the mean of its batch.",
    )
    rectify: bool = Field(default=True, description="Rectify clean margins by oscillation (CR).")
    oscillation_threshold: Share = Field(
        0.5, description="Tau: stable posterior from which a clean pair is rectified."
    )
    pseudo_captions: bool = Field(
        default=True, description="Train on noisy pairs' pseudo-captions (P-Cap)."
    )
    search_by: Literal["prediction", "embedding"] = Field(
        "prediction",
        description="A pseudo-caption's clean image is the one with the most similar pseudo-class "
        "prediction, or pooled embedding.",
    )
    mismatch_threshold: Share = Field(
        0.0, description="Noisy pairs below this cosine are left out (PC2*: 0.5); 0: none."
    )
    lambda_noisy: NonNegativeFloat = Field(
        1.0,
        description="Weight of the noisy pairs' loss. At 1 pseudo-captions undo the division of a "
        "small release; 0.1 does not.",
    )
    lambda_pseudo: NonNegativeFloat = Field(1.0, description="Weight of the pseudo-class loss.")
    lambda_entropy: NonNegativeFloat = Field(
        10.0, description="Weight of the entropy that spreads predictions over the classes."
    )

    @model_validator(mode="after")
    def _parts_fit_together(self) -> "Pc2CommonSettings":
        if not self.pseudo_classes and self.rectify:
            raise ValueError("rectify needs pseudo_classes: predictions are what oscillates")
        if not self.pseudo_classes and self.pseudo_captions and self.search_by != "embedding":
            raise ValueError('pseudo_captions without pseudo_classes need search_by = "embedding"')
        return self


class Pc2Settings(Pc2CommonSettings):
    """PC2 (Duan et al., ACM MM 2024)."""

    name: Literal["pc2"] = "pc2"
    class_input: Literal["slots", "pooled"] = Field(
        "slots",
        description="What is classified: 36 vectors in their order, or the attention-pooled one.",
    )
    search_in: Literal["batch", "clean_set"] = Field(
        "batch",
        description="Where pseudo-captions are searched: in the clean batch, or among the bank's "
        "clean pairs.",
    )

    @model_validator(mode="after")
    def _search_fits(self) -> "Pc2Settings":
        if self.search_by == "embedding" and self.search_in == "clean_set":
            raise ValueError('search_by = "embedding" needs search_in = "batch"')
        return self


class Pc2ReleasedSettings(Pc2CommonSettings):
    """PC2 as its released code departs from the paper; each departure can be turned off."""

    name: Literal["pc2-released"] = "pc2-released"
    class_input: Literal["slots", "padded", "pooled"] = Field(
        "padded",
        description="As for pc2; padded: in order, with a caption's padding resampled too.",
    )
    entropy: Literal["batch_mean", "each_image"] = Field(
        "each_image",
        description="Entropy to raise: of the batch's mean prediction, or of each image's own.",
    )
    division_order: Literal["fixed", "shuffled"] = Field(
        "shuffled",
        description="Batches of the dividing pass: one order a run, or a new one each epoch.",
    )
    stable: Literal["from_threshold", "divided"] = Field(
        "divided",
        description="Stable pairs: posterior at least tau, or divided as clean pairs are.",
    )
    bank: Literal["each_epoch", "released"] = Field(
        "released",
        description="What writes the prediction bank: the dividing pass, by pair; or the training "
        "passes as in the released code, after the warm-up by position in a subset.",
    )
    divergence: Literal["old_new", "new_old"] = Field(
        "new_old", description="Direction of the oscillation's Kullback-Leibler divergence."
    )
    noisy_from_epoch: Annotated[int, Field(ge=0)] = Field(
        25, description="First epoch after the warm-up that trains on noisy pairs."
    )
    zero_below: Share = Field(
        0.5, description="Noisy pairs below this cosine get margin 0, and go on acting; 0: none."
    )
    repeated_negatives: bool = Field(
        default=True,
        description="Noisy images with one pseudo-caption are negatives all the same.",
    )
    pseudo_caption_fit: Literal["exact", "resampled"] = Field(
        "resampled",
        description="Words of a pseudo-caption: as encoded, or resampled to the noisy batch.",
    )
    margin_axis: Literal["query", "broadcast"] = Field(
        "broadcast",
        description="Margin of a hinge: the query's; or broadcast along one axis both ways, clean "
        "pairs along images and noisy ones along captions.",
    )
    margin_gradient: bool = Field(
        default=True, description="Let the gradient through the noisy margins."
    )
    steps: Literal["summed", "two"] = Field(
        "two", description="One step down the summed loss, or one clean and one noisy step."
    )
    fresh_optimiser: bool = Field(
        default=True, description="Start the optimiser anew after the warm-up."
    )
    rate_drops: Literal["once", "every"] = Field(
        "every",
        description="The learning rate falls to a tenth once, train.lr_drop_epoch epochs after the "
        "warm-up, or every so many epochs.",
    )
    batches: Literal["near_equal", "full"] = Field(
        "full",
        description="Near-equal batches without a single pair; or full ones and what is left, and "
        "an epoch ends at a batch of one pair.",
    )


_OF_THE_PAPER = {
    "entropy": "batch_mean",
    "division_order": "fixed",
    "stable": "from_threshold",
    "bank": "each_epoch",
    "divergence": "old_new",
    "zero_below": 0.0,
    "repeated_negatives": False,
    "pseudo_caption_fit": "exact",
    "margin_axis": "query",
    "margin_gradient": False,
    "steps": "summed",
    "fresh_optimiser": False,
}
_AS_BEFORE = {"rate_drops": "once", "batches": "near_equal"}
"""What ``pc2-released`` did before there was a setting."""


def upgrade_method(tree: dict[str, Any]) -> dict[str, Any]:
    """Convert a run's method section from before ``pc2-released`` had all of its settings.

    Before it was a method of its own, its settings were those of ``pc2``.

    Args:
        tree: The section, with all of its settings; others are returned as they are.
    """
    if tree.get("name") == "pc2-released":
        return {**_AS_BEFORE, **tree}
    if tree.get("name") != "pc2" or not tree.keys() >= _OF_THE_PAPER.keys():
        return tree
    as_paper = all(tree[key] == value for key, value in _OF_THE_PAPER.items())
    if as_paper and tree.get("class_input") != "padded":
        return {key: value for key, value in tree.items() if key not in _OF_THE_PAPER}
    kept = {key: value for key, value in tree.items() if key != "search_in"}
    return {**kept, **_AS_BEFORE, "name": "pc2-released"}
