"""Define CLIP's modified ResNet, split after layer 3 (C4), with the published parameter names."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile, is_zipfile

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from jaxtyping import Float
from safetensors.torch import load_file
from torch import Tensor, nn

from now_builder.errors import ConfigError, FormatError

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
"""Pixel statistics of CLIP, RGB in [0, 1]."""

_EXPANSION = 4
_HUB_FILES = ("open_clip_model.safetensors", "model.safetensors")


class Bottleneck(nn.Module):
    """A residual block with average pooling for its stride, against aliasing."""

    def __init__(self, inputs: int, planes: int, stride: int = 1) -> None:
        super().__init__()
        outputs = planes * _EXPANSION
        self.conv1 = nn.Conv2d(inputs, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.avgpool = nn.AvgPool2d(stride) if stride > 1 else nn.Identity()
        self.conv3 = nn.Conv2d(planes, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Sequential | None = None
        if stride > 1 or inputs != outputs:
            # The published names count the convolution as 0 and call the pooling before it -1.
            self.downsample = nn.Sequential()
            self.downsample.add_module("-1", nn.AvgPool2d(stride))
            self.downsample.add_module("0", nn.Conv2d(inputs, outputs, 1, bias=False))
            self.downsample.add_module("1", nn.BatchNorm2d(outputs))

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d i j"]:
        """Transform a feature map."""
        identity = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = F.relu(self.bn2(self.conv2(x)), inplace=True)
        x = self.bn3(self.conv3(self.avgpool(x)))
        return F.relu(x + identity, inplace=True)


class AttentionPool(nn.Module):
    """Pool a map to one vector by attention; the query is its mean.

    Source:
        CLIP (Radford et al., ICML 2021), Sec. 2.4.
    """

    def __init__(self, side: int, channels: int, heads: int, outputs: int) -> None:
        super().__init__()
        self.positional_embedding = nn.Parameter(torch.randn(side**2 + 1, channels) / channels**0.5)
        self.k_proj = nn.Linear(channels, channels)
        self.q_proj = nn.Linear(channels, channels)
        self.v_proj = nn.Linear(channels, channels)
        self.c_proj = nn.Linear(channels, outputs)
        self.heads = heads

    def forward(self, x: Float[Tensor, "n c side side"]) -> Float[Tensor, "n outputs"]:
        """Pool feature maps of ``side`` x ``side`` cells."""
        tokens = x.flatten(2).transpose(1, 2)
        tokens = torch.cat([tokens.mean(dim=1, keepdim=True), tokens], dim=1)
        tokens = tokens + self.positional_embedding.to(tokens.dtype)
        # A single query allows to project once per region instead of once per cell:
        # q · (K t) = (Kᵀ q) · t and Σ a (V t) = V (Σ a t). The keys' bias adds the same to every
        # cell, so the softmax cancels it.
        query = self.q_proj(tokens[:, 0]).reshape(len(x), self.heads, -1)
        projected = torch.einsum("nhd,hdc->nhc", query, self._per_head(self.k_proj.weight))
        logits = projected @ tokens.transpose(1, 2) / query.shape[2] ** 0.5
        weights = logits.softmax(dim=2, dtype=torch.float32).to(tokens.dtype)
        values = torch.einsum("nhc,hdc->nhd", weights @ tokens, self._per_head(self.v_proj.weight))
        values = values.flatten(1) + self.v_proj.bias
        pooled: Tensor = self.c_proj(values)
        return pooled

    def _per_head(self, weight: Float[Tensor, "c inputs"]) -> Float[Tensor, "heads d inputs"]:
        return weight.reshape(self.heads, -1, weight.shape[1])


class ModifiedResNet(nn.Module):
    """CLIP's image tower as a detection backbone: C4 features, and a head for pooled regions.

    Source:
        CLIP (Radford et al., ICML 2021); C4 with layer 4 on regions as in RegionCLIP
        (Zhong et al., CVPR 2022).
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        layers: Sequence[int] = (3, 4, 6, 3),
        width: int = 64,
        outputs: int = 1024,
        side: int = 7,
        layer3_stride: int = 2,
    ) -> None:
        super().__init__()
        self.stride = 8 * layer3_stride
        self.conv1 = nn.Conv2d(3, width // 2, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width // 2)
        self.conv2 = nn.Conv2d(width // 2, width // 2, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width // 2)
        self.conv3 = nn.Conv2d(width // 2, width, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(width)
        self.layer1 = _layer(width, width, layers[0], 1)
        self.layer2 = _layer(width * 4, width * 2, layers[1], 2)
        self.layer3 = _layer(width * 8, width * 4, layers[2], layer3_stride)
        self.layer4 = _layer(width * 16, width * 8, layers[3], 2)
        self.attnpool = AttentionPool(side, width * 32, max(1, width // 2), outputs)
        self.channels = width * 16
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD).view(3, 1, 1), persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the parameters."""
        return self.conv1.weight.dtype

    def features(self, pixels: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n c i j"]:
        """Compute the C4 maps of images with values in [0, 1]."""
        x = (pixels - self.mean).div_(self.std)
        x = x.to(self.dtype, memory_format=torch.channels_last)
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = F.relu(self.bn2(self.conv2(x)), inplace=True)
        x = F.relu(self.bn3(self.conv3(x)), inplace=True)
        x = self.layer2(self.layer1(F.avg_pool2d(x, 2)))
        maps: Tensor = self.layer3(x)
        return maps

    def pool(self, regions: Float[Tensor, "n c i i"]) -> Float[Tensor, "n outputs"]:
        """Embed region crops of the C4 map, of twice the head's side."""
        pooled: Tensor = self.attnpool(self.layer4(regions))
        return pooled


def _layer(inputs: int, planes: int, blocks: int, stride: int) -> nn.Sequential:
    first = Bottleneck(inputs, planes, stride)
    rest = [Bottleneck(planes * _EXPANSION, planes) for _ in range(blocks - 1)]
    return nn.Sequential(first, *rest)


def load_clip(visual: ModifiedResNet, source: str) -> None:
    """Load CLIP's image tower into ``visual``, by parameter names.

    Args:
        visual: A tower of the same architecture.
        source: A file or a hub name such as ``timm/resnet50_clip.openai``. Files: safetensors, a
            state dict by ``torch.save`` (as open_clip's), or OpenAI's TorchScript ``RN50.pt``; of
            the tower alone or, with the prefix ``visual.``, of the whole model.

    Raises:
        ConfigError: If the name is not a file and cannot be downloaded from the hub.
        FormatError: If the file is damaged, or a parameter is missing or has another shape.
    """
    path = Path(source) if Path(source).is_file() else _from_hub(source)
    counter = "num_batches_tracked"
    state = {n: v.float() for n, v in _visual_state(path).items() if not n.endswith(counter)}
    missing = [n for n in visual.state_dict() if not n.endswith(counter) and n not in state]
    if missing:
        raise FormatError(path, f"{len(missing)} parameters of CLIP's tower missing: {missing[:3]}")
    try:
        visual.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise FormatError(path, f"not of this size ({' '.join(str(error).split()):.300})") from None


def _visual_state(path: Path) -> dict[str, Tensor]:
    """Read the image tower's tensors; a whole model has them under the prefix ``visual.``."""
    loaded: Any
    try:
        if not is_zipfile(path):
            loaded = load_file(path)
        elif any(name.endswith("/constants.pkl") for name in ZipFile(path).namelist()):
            with warnings.catch_warnings():  # PyTorch deprecates TorchScript, OpenAI's format
                warnings.simplefilter("ignore", FutureWarning)
                module: Any = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
            loaded = module.state_dict()
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 - a damaged pickle can raise any
        reason = " ".join(f"{error or type(error).__name__}".split())
        problem = f"not a readable safetensors or PyTorch file ({reason:.200})"
        raise FormatError(path, problem) from None
    state = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else {}
    named = state.items() if isinstance(state, dict) else ()
    tensors = {str(n).removeprefix("module."): v for n, v in named if isinstance(v, Tensor)}
    visual = {n.removeprefix("visual."): v for n, v in tensors.items() if n.startswith("visual.")}
    return visual or tensors


def _from_hub(name: str) -> Path:
    # Imported here, because a run from a file or from scratch needs no hub.
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    problem = ""
    for file in _HUB_FILES:
        try:
            return Path(hf_hub_download(name, file))
        except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
            problem = " ".join(f"{error or type(error).__name__}".split())
    raise ConfigError(
        f"clip_weights {name!r}: not a file, and not to be downloaded from the hub ({problem:.200})"
    )
