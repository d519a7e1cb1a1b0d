"""Use detectron2 models as detectors, with their own regions and features.

detectron2 is an optional dependency. Its checkpoints (``.pkl``, ``.pth``) may be pickles, which can
run code when they are read: use only those that you trust.
"""

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from now_builder.detect import boxes as geometry
from now_builder.detect.base import Page
from now_builder.detect.model.text_encoder import embed_text_boxes, make_text_encoder
from now_builder.detect.regions.extraction import (
    DETECTOR,
    NMS,
    PROJECTION,
    RELAXED,
    PageRegions,
    to_768,
    to_batch,
)
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.features import REGIONS, FeatureBatch
from now_builder.formats.io import sha256_of
from now_builder.formats.shard import HEIGHT, WIDTH
from now_builder.program.missing_package import INSTALL_DETECTRON2

PREFIX = "detectron2:"

_RANDOM = "random"
_PROPOSALS = 300
"""Number of proposals for the box head, as in bottom-up attention (Anderson et al., 2018)."""


def detectron2_module(name: str) -> Any:
    """Import a module of detectron2.

    Raises:
        ConfigError: If detectron2 is not installed or does not fit this PyTorch.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its dependencies warn developers
            import_module("detectron2")
            return import_module(name)
    except ImportError as error:
        missing = error.name == "detectron2"
        problem = "not installed" if missing else f"cannot be imported ({error!s:.200})"
        raise ConfigError(f"detectron2: {problem}. Run: {INSTALL_DETECTRON2}") from None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Config and weights of a detectron2 model, before it is built.

    Attributes:
        name: Name in the feature file.
        config: Settings object of detectron2.
        weights: Checkpoint; ``None``: random weights with a fixed seed.
    """

    name: str
    config: Any
    weights: Path | None

    @property
    def classes(self) -> list[str]:
        """Class names of our predictor or the config's training data, otherwise numbers."""
        if self.config.MODEL.ROI_HEADS.NAME == "AptRes5ROIHeads":
            return list(_parts().class_names(self.config))
        count = int(self.config.MODEL.ROI_HEADS.NUM_CLASSES)
        catalog = detectron2_module("detectron2.data").MetadataCatalog
        for data in self.config.DATASETS.TRAIN:
            names = catalog.get(data).get("thing_classes", []) if data in catalog.list() else []
            if len(names) == count:
                return list(names)
        return [f"class {number}" for number in range(count)]


def read_model_spec(regions: str) -> ModelSpec:
    """Read ``detectron2:CONFIG[@WEIGHTS]``.

    CONFIG is a YAML file, or the name of one in detectron2's model zoo. WEIGHTS is a checkpoint or
    ``random``; default: ``MODEL.WEIGHTS`` of the config, if it is a file.

    Raises:
        ConfigError: If detectron2, the config or the weights are missing or unusable.
    """
    settings = detectron2_module("detectron2.config")
    place, _, weights_name = regions.removeprefix(PREFIX).partition("@")
    zoo = Path(detectron2_module("detectron2").__file__).parent / "model_zoo" / "configs"
    files = [each for each in (Path(place), zoo / place) if each.is_file()]
    if not files or files[0].suffix not in (".yaml", ".yml"):
        raise ConfigError(
            f"regions {PREFIX}{place}: neither a YAML file nor the name of one in {zoo}, such as "
            "COCO-Detection/faster_rcnn_R_50_FPN_3x.yaml"
        )
    path, config = files[0], settings.get_cfg()
    _parts().add_apt_config(config)
    try:
        # Some configs of the zoo contain Python code, which is unsafe in other files.
        config.merge_from_file(str(path), allow_unsafe=path.is_relative_to(zoo))
    except Exception as error:  # noqa: BLE001 - yacs and PyYAML can raise any
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: not a detectron2 config ({reason:.200})") from None
    if config.INPUT.FORMAT not in ("BGR", "RGB"):
        raise ConfigError(f"{path}: INPUT.FORMAT {config.INPUT.FORMAT!r}, expected BGR or RGB")
    weights = _weights_file(path, weights_name, str(config.MODEL.WEIGHTS))
    # The folder of the weights, and unused heads, do not change the features.
    config.MODEL.WEIGHTS = ""
    config.MODEL.MASK_ON = config.MODEL.KEYPOINT_ON = False
    return ModelSpec(f"{PREFIX}{path.name}@{weights.name if weights else _RANDOM}", config, weights)


def _weights_file(config: Path, name: str, default: str) -> Path | None:
    if name == _RANDOM:
        return None
    for path in [Path(name)] if name else [Path(default), config.parent / default]:
        if path.is_file():
            return path
    problem = f"{name}: file" if name else f"{config}: MODEL.WEIGHTS {default!r}"
    raise ConfigError(
        f"{problem} not found. Give a checkpoint as --regions {PREFIX}CONFIG@WEIGHTS, or @random "
        "for a test"
    )


def _parts() -> Any:
    """Import our own parts of detectron2 models, which need detectron2."""
    detectron2_module("detectron2.modeling")
    return import_module("now_builder.detect.regions.detectron2_apt")


class Network:
    """A detectron2 model in evaluation mode, with its preprocessing of screenshots and page text.

    Raises:
        ConfigError: If detectron2 cannot build the model.
        FormatError: If the checkpoint is not readable or lacks weights of the model.
    """

    def __init__(self, spec: ModelSpec, device: torch.device) -> None:
        transforms = detectron2_module("detectron2.data.transforms")
        self.config = spec.config.clone()
        self.config.MODEL.DEVICE = str(device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            try:
                modeling = detectron2_module("detectron2.modeling")
                self.model: Any = modeling.build_model(self.config).eval()
            except (KeyError, AssertionError, ValueError) as error:
                raise ConfigError(f"{spec.name}: cannot be built ({error!s:.200})") from None
        if spec.weights is not None:
            _load_checkpoint(self.model, spec.weights)
        shortest, longest = self.config.INPUT.MIN_SIZE_TEST, self.config.INPUT.MAX_SIZE_TEST
        self._resize: Any = transforms.ResizeShortestEdge([shortest, shortest], longest)
        self.predictor: Any = getattr(getattr(self.model, "roi_heads", None), "box_predictor", None)
        self.is_apt = isinstance(self.predictor, _parts().AptPredictor)
        encoder_name = _parts().text_encoder_name(self.config)
        self._encoder = make_text_encoder(encoder_name, device) if self.is_apt else None

    def image(self, screenshot: UInt8[Tensor, "3 h w"]) -> Float[Tensor, "3 i j"]:
        """Convert a screenshot to the size and channel order of the model."""
        pixels = screenshot.permute(1, 2, 0).cpu().numpy()
        if self.config.INPUT.FORMAT == "BGR":
            pixels = pixels[:, :, ::-1]
        resized = self._resize.get_transform(pixels).apply_image(pixels)
        return torch.from_numpy(resized.astype(np.float32).transpose(2, 0, 1))

    def reading(self, page: Page, image: Float[Tensor, "3 i j"]) -> AbstractContextManager[None]:
        """Pass the page's strings to an APT predictor inside this block; others use no text."""
        if self._encoder is None:
            return nullcontext()
        scale = (image.shape[2] / WIDTH, image.shape[1] / HEIGHT)
        strings = embed_text_boxes(self._encoder, page.text_boxes, scale)
        block: AbstractContextManager[None] = self.predictor.reading([strings])
        return block


def _load_checkpoint(model: Any, path: Path) -> None:
    checkpointer = detectron2_module("detectron2.checkpoint").DetectionCheckpointer(model)
    incompatible: list[Any] = []
    # By default detectron2 only logs missing weights and keeps random ones.
    checkpointer._log_incompatible_keys = incompatible.append  # noqa: SLF001
    try:
        with torch.serialization.safe_globals(_numpy_globals()):
            checkpointer.load(str(path))
    except Exception as error:  # noqa: BLE001 - pickle and torch can raise any
        reason = " ".join(str(error).split()).rpartition("WeightsUnpickler error: ")[2]
        raise FormatError(path, f"not a readable detectron2 checkpoint ({reason:.200})") from None
    missing = [name for keys in incompatible for name in keys.missing_keys]
    missing += [name for keys in incompatible for name, *_ in keys.incorrect_shapes]
    if missing:
        problem = f"weights for {missing[0]} missing or of another shape"
        raise FormatError(path, f"not of this config: {problem} ({len(missing)} parameters in all)")


def _numpy_globals() -> list[Any]:
    """Return the types and functions of pickled arrays, by the names of NumPy 1 and 2.

    ``torch.load`` refuses them by default, but a checkpoint may contain metrics and arrays.
    """
    makers: list[Any] = [np.zeros(1).__reduce__()[0], np.float64().__reduce__()[0]]
    dtypes = [type(np.dtype(code)) for code in np.typecodes["AllInteger"] + "?efd"]
    old = [(maker, f"numpy.core.multiarray.{maker.__name__}") for maker in makers]
    return [np.ndarray, np.dtype, *dtypes, *makers, *old]


class Detectron2Detector:
    """Extract boxes, scores, classes and features with a detectron2 model.

    A region's feature is the output of the model's box head: two fully connected layers on an FPN
    level (1,024), the mean of res5 on C4 (2,048), or CLIP's attention pooling where the heads have
    it (1,024), projected by :func:`to_768`; with our ``AptPredictor`` it is its own projection to
    768. Features are those of proposals; boxes are regressed.

    Raises:
        ConfigError: If the model has no single box predictor.

    Source:
        Bottom-up attention (Anderson et al., CVPR 2018): features of proposals, ranked by the
        probability of their best class.

    Differs:
        Suppression is class-agnostic at 0.5 and relaxed until 36 remain; grid windows fill up.
    """

    def __init__(
        self, network: Network, attributes: Mapping[str, str], *, autocast: bool = False
    ) -> None:
        layers = detectron2_module("detectron2.modeling.roi_heads").FastRCNNOutputLayers
        if not isinstance(network.predictor, layers):
            model = network.config.MODEL
            raise ConfigError(
                f"detectron2 model {model.META_ARCHITECTURE} with {model.ROI_HEADS.NAME}: does not "
                "have one box predictor. Use a model with StandardROIHeads or Res5ROIHeads"
            )
        self._network = network
        self.attributes: Mapping[str, str] = dict(attributes)
        self.input_size = (WIDTH, HEIGHT)  # the model resizes screenshots itself
        self._autocast = autocast

    @torch.inference_mode()
    def extract(
        self, pages: Sequence[Page], screenshots: UInt8[Tensor, "pages 3 height width"]
    ) -> FeatureBatch:
        """Find and embed 36 regions per page, one page after the other like detectron2."""
        rows = [self._page(*each) for each in zip(pages, screenshots, strict=True)]
        regions = torch.stack([page.embedded for page in rows])
        return to_batch(pages, rows, regions, self.input_size, DETECTOR)

    def _page(self, page: Page, screenshot: UInt8[Tensor, "3 h w"]) -> PageRegions:
        model, image = self._network.model, self._network.image(screenshot)
        # factors from detectron2's input px to image px
        size = (image.shape[2], image.shape[1])
        scale = torch.tensor([WIDTH / size[0], HEIGHT / size[1]], device=model.device).repeat(2)
        with (
            torch.autocast(model.device.type, torch.bfloat16, enabled=self._autocast),
            self._network.reading(page, image),
        ):
            images = model.preprocess_image([{"image": image}])
            maps = model.backbone(images.tensor)
            proposals, _ = model.proposal_generator(images, maps, None)
            rows = self._select(*self._head(maps, proposals[0][:_PROPOSALS]), scale)
            missing = REGIONS - len(rows.boxes)
            if not missing:
                return rows
            windows = geometry.windows((WIDTH, HEIGHT)).to(model.device)[:missing]
            structures = detectron2_module("detectron2.structures")
            grid = structures.Instances((size[1], size[0]))
            grid.proposal_boxes = structures.Boxes(windows / scale)
            grid.objectness_logits = windows.new_zeros(missing)
            _, _, regions = self._head(maps, grid)
        return rows.fill(windows, regions)

    def _head(self, maps: Mapping[str, Tensor], proposals: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return class probabilities, regressed boxes (per class or for all) and features."""
        predictor = self._network.predictor
        seen: list[tuple[Tensor, Any]] = []
        # Record the predictor's inputs, whatever pooling and layers precede it.
        hook = predictor.register_forward_hook(
            lambda _, inputs, output: seen.append((inputs[0], output))
        )
        try:
            self._network.model.roi_heads(None, maps, [proposals])
        finally:
            hook.remove()
        features = seen[0][0].flatten(1).float()
        predictions = tuple(values.float() for values in seen[0][1])
        with torch.autocast(features.device.type, enabled=False):
            probabilities = predictor.predict_probs(predictions, [proposals])[0]
            boxes = predictor.predict_boxes(predictions, [proposals])[0]
            if self._network.is_apt:
                features = predictor.projection(features)
            return probabilities, boxes, to_768(features)

    def _select(
        self, probabilities: Tensor, boxes: Tensor, regions: Tensor, scale: Tensor
    ) -> PageRegions:
        scores, classes = probabilities[:, :-1].max(dim=1)
        each = boxes.reshape(len(boxes), boxes.shape[1] // 4, 4)
        column = classes if each.shape[1] > 1 else torch.zeros_like(classes)
        best = each[torch.arange(len(each), device=each.device), column]
        finite = best.isfinite().all(dim=1) & scores.isfinite()
        best = geometry.clip(best[finite] * scale, (WIDTH, HEIGHT))
        scores, classes, regions = scores[finite], classes[finite], regions[finite]
        kept, strict = geometry.select(best, scores, REGIONS, NMS)
        source = torch.where(strict, DETECTOR, RELAXED)
        return PageRegions(best[kept], scores[kept], classes[kept], regions[kept], source)


def with_absolute_paths(regions: str) -> str:
    """Make the paths in ``regions`` absolute, for processes in other folders."""
    if not regions.startswith(PREFIX):
        return regions
    parts = regions.removeprefix(PREFIX).split("@", 1)
    return PREFIX + "@".join(
        str(Path(part).absolute()) if Path(part).is_file() else part for part in parts
    )


def detector_attributes(regions: str) -> dict[str, str]:
    """Return the attributes of a feature file made by a detectron2 model."""
    spec = read_model_spec(regions)
    return {
        "detector": "detectron2",
        "weights_sha256": sha256_of(spec.weights) if spec.weights else _RANDOM,
        "regions": spec.name,
        # the hash of all settings, whatever files they come from
        "config_sha256": hashlib.sha256(spec.config.dump().encode()).hexdigest(),
        "classes": json.dumps(spec.classes),
        "input_size": f"{WIDTH}x{HEIGHT}",
        "projection": PROJECTION,
    }
