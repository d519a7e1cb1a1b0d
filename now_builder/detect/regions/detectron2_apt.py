"""Our APT predictor inside detectron2 models; importing this needs detectron2.

Use it in a YAML config with ``MODEL.ROI_HEADS.NAME: AptRes5ROIHeads`` and the settings of
:func:`add_apt_config` under ``MODEL.APT``.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from detectron2.config import CfgNode, configurable
from detectron2.layers import ShapeSpec
from detectron2.modeling import ROI_HEADS_REGISTRY
from detectron2.modeling.roi_heads import FastRCNNOutputLayers, Res5ROIHeads
from jaxtyping import Float
from torch import Tensor, nn

from now_builder.detect.labels.mapping import CLASSES
from now_builder.detect.model.apt import PromptTuner
from now_builder.detect.model.text_encoder import (
    DIMENSION,
    embed_prompts,
    linked_embeddings,
    make_text_encoder,
)
from now_builder.detect.model.weights import read_card, to_prompts
from now_builder.errors import ConfigError

BACKGROUND_WEIGHT = 0.2
"""Weight of the background in the classifier's cross-entropy, as in RegionCLIP."""
_PASSED_ON = (
    "input_shape", "box2box_transform", "smooth_l1_beta", "test_score_thresh", "test_nms_thresh",
    "test_topk_per_image", "box_reg_loss_type", "loss_weight",
)  # fmt: skip


def add_apt_config(config: Any) -> None:
    """Add ``MODEL.APT`` to a detectron2 config, before a file is merged into it.

    ``CARD``: weights of ``train-detector``, to use their frozen prompts and text encoder. Without
    them ``TEXT_ENCODER`` embeds ``CLASSES``, a list of English and Chinese names. ``TEMPERATURE``
    divides the cosines.
    """
    config.MODEL.APT = CfgNode({
        "CARD": "",
        "TEXT_ENCODER": "hash:0",
        "CLASSES": [list(names) for names in CLASSES],
        "TEMPERATURE": 0.01,
        "BACKGROUND_WEIGHT": BACKGROUND_WEIGHT,
    })  # fmt: skip


def text_encoder_name(config: Any) -> str:
    """Return the name of the encoder of prompts and page text."""
    apt = config.MODEL.APT
    return read_card(Path(apt.CARD)).text_encoder if apt.CARD else str(apt.TEXT_ENCODER)


def class_names(config: Any) -> list[str]:
    """Return the English class names of the prompts."""
    apt = config.MODEL.APT
    return read_card(Path(apt.CARD)).classes if apt.CARD else [str(name) for name, _ in apt.CLASSES]


def _prompts(config: Any) -> Float[Tensor, "classes 768"]:
    apt = config.MODEL.APT
    if apt.CARD:
        return to_prompts(read_card(Path(apt.CARD)))
    names = [(str(english), str(chinese)) for english, chinese in apt.CLASSES]
    return embed_prompts(make_text_encoder(apt.TEXT_ENCODER), names)


class AptPredictor(FastRCNNOutputLayers):  # type: ignore[misc]
    """Compute class logits by cosine to frozen prompts that each region adjusts.

    It replaces detectron2's predictor in ``Res5ROIHeads``. The background's logit is zero, and box
    regression is class-agnostic. :meth:`forward` returns the projected embedding of each region
    instead of its logits, which depend on the strings in the region: only methods that also get
    the proposals can compute them.

    Source:
        APT (Gu et al., CVPR 2023); classifier and its loss as in RegionCLIP (Zhong et al., CVPR
        2022).
    """

    prompts: Tensor
    weights: Tensor

    @configurable  # type: ignore[untyped-decorator]
    def __init__(
        self,
        input_shape: Any,
        *,
        prompts: Float[Tensor, "classes 768"],
        temperature: float = 0.01,
        background_weight: float = BACKGROUND_WEIGHT,
        **passed_on: Any,
    ) -> None:
        super().__init__(
            input_shape, num_classes=len(prompts), cls_agnostic_bbox_reg=True, **passed_on
        )
        self.projection = nn.Linear(self.bbox_pred.in_features, DIMENSION)
        del self.cls_score
        self.tuner = PromptTuner()
        self.temperature = temperature
        weights = torch.ones(len(prompts) + 1)
        weights[-1] = background_weight
        self.register_buffer("prompts", prompts.clone())
        self.register_buffer("weights", weights, persistent=False)
        self._strings: Sequence[tuple[Tensor, Tensor]] | None = None

    @classmethod
    def from_config(cls, cfg: Any, input_shape: Any) -> dict[str, Any]:
        """Read the arguments from a config; called by ``AptPredictor(config, input_shape)``."""
        prompts = _prompts(cfg)
        expected = int(cfg.MODEL.ROI_HEADS.NUM_CLASSES)
        if len(prompts) != expected:
            raise ConfigError(
                f"MODEL.APT: prompts of {len(prompts)} classes, but MODEL.ROI_HEADS.NUM_CLASSES "
                f"is {expected}"
            )
        base = super().from_config(cfg, input_shape)
        return {
            **{name: base[name] for name in _PASSED_ON},
            "prompts": prompts,
            "temperature": float(cfg.MODEL.APT.TEMPERATURE),
            "background_weight": float(cfg.MODEL.APT.BACKGROUND_WEIGHT),
        }

    @contextmanager
    def reading(
        self, strings: Sequence[tuple[Float[Tensor, "_ 4"], Float[Tensor, "_ 768"]]]
    ) -> Iterator[None]:
        """Use page text, given as boxes and vectors per page, inside this block."""
        self._strings = strings
        try:
            yield
        finally:
            self._strings = None

    def forward(
        self, features: Float[Tensor, "n ..."]
    ) -> tuple[Float[Tensor, "n 768"], Float[Tensor, "n 4"]]:
        """Return the projected embedding and the regression offsets of each region."""
        flat = features.flatten(1)
        return self.projection(flat), self.bbox_pred(flat)

    def classify(
        self, embedded: Float[Tensor, "n 768"], proposals: Sequence[Any]
    ) -> Float[Tensor, "n kinds"]:
        """Return class logits; the last, for background, is always zero."""
        cosines = self.tuner(F.normalize(embedded, dim=1), self._link(proposals), self.prompts)
        return F.pad(cosines / self.temperature, (0, 1))

    def losses(
        self, predictions: tuple[Tensor, Tensor], proposals: Sequence[Any]
    ) -> dict[str, Tensor]:
        """Compute weighted cross-entropy of sampled proposals, and detectron2's box loss."""
        embedded, offsets = predictions
        logits = self.classify(embedded, proposals)
        losses: dict[str, Tensor] = super().losses((logits, offsets), proposals)
        if len(logits):
            classes = torch.cat([page.gt_classes for page in proposals])
            weighted = F.cross_entropy(logits, classes, weight=self.weights)
            losses["loss_cls"] = weighted * self.loss_weight.get("loss_cls", 1.0)
        return losses

    def predict_probs(
        self, predictions: tuple[Tensor, Tensor], proposals: Sequence[Any]
    ) -> tuple[Tensor, ...]:
        """Return the class probabilities of each image's regions."""
        logits = self.classify(predictions[0], proposals)
        probabilities: tuple[Tensor, ...] = super().predict_probs(
            (logits, predictions[1]), proposals
        )
        return probabilities

    def _link(self, proposals: Sequence[Any]) -> Float[Tensor, "n 768"]:
        places = [page.proposal_boxes.tensor for page in proposals]
        if self._strings is None:
            return self.prompts.new_zeros(sum(map(len, places)), DIMENSION)
        device = self.prompts.device
        return torch.cat([
            linked_embeddings(regions, boxes.to(device), vectors.to(device))
            for regions, (boxes, vectors) in zip(places, self._strings, strict=True)
        ])  # fmt: skip


@ROI_HEADS_REGISTRY.register()
class AptRes5ROIHeads(Res5ROIHeads):  # type: ignore[misc]
    """detectron2's C4 heads with our predictor."""

    @classmethod
    def from_config(cls, cfg: Any, input_shape: Any) -> dict[str, Any]:
        """Read the arguments from a config, with our predictor."""
        parts: dict[str, Any] = super().from_config(cfg, input_shape)
        width = parts["box_predictor"].bbox_pred.in_features
        parts["box_predictor"] = AptPredictor(cfg, ShapeSpec(channels=width))
        return parts
