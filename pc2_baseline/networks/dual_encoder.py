"""Both towers of a dual encoder of `transformers` as a network that learns."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from itertools import groupby
from typing import Any, Literal

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from now_builder.dual_encoder import DualTowers
from now_builder.errors import ConfigError
from now_builder.program.missing_package import install_extra
from pc2_baseline.networks.codes import CaptionCodes, ImageCodes
from pc2_baseline.networks.cosine import CosineSimilarity
from pc2_baseline.networks.fused import unit
from pc2_baseline.networks.network import MatchingNetwork
from pc2_baseline.process_groups import ProcessGroup


class DualNetwork(MatchingNetwork):
    """Encode screenshots and texts as one unit vector each, and compare them by their cosine.

    The ranks of a process group encode a share of a batch each, and gather the vectors.

    With ``chunk``, no more rows are encoded at once; when training, each chunk is encoded again in
    the backward pass, with the same random draws. So a batch of any size takes the memory of a
    chunk, and its gradients are those of the whole: a loss sees all vectors at once.

    Source:
        Cached gradients as in GradCache (Gao et al., RepL4NLP 2021), by activation checkpointing.

    Raises:
        ConfigError: If a batch would be cut, by chunks or ranks, that a batch normalisation needs.
    """

    def __init__(
        self,
        towers: DualTowers,
        group: ProcessGroup,
        chunk: int = 0,
        precision: Literal["fp32", "bf16"] = "fp32",
    ) -> None:
        super().__init__(towers, nn.Identity(), CosineSimilarity())
        self.towers = [towers]  # not a part for a second time
        self.similarity.group = group
        self.chunk, self.precision = chunk, precision
        whole = any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in towers.modules())  # noqa: SLF001
        if whole and (chunk or group.parts > 1):
            raise ConfigError(
                "model.chunk, torchrun: model.encoder has batch normalisation, which needs the "
                "whole batch; expected chunk = 0 and one process a network"
            )

    def encode_images(self, regions: Num[Tensor, "images 1 values"]) -> ImageCodes:
        """Encode screenshots, packed."""
        pooled = self._encode(self.towers[0].images, regions.flatten(1))
        return ImageCodes(pooled[:, None], pooled)

    def encode_captions(
        self, tokens: Int[Tensor, "captions words"], lengths: Int[Tensor, " captions"]
    ) -> CaptionCodes:
        """Encode texts from the encoder's own ids."""
        pooled = self._encode(self.towers[0].texts, tokens, lengths)
        return CaptionCodes(pooled[:, None], pooled, torch.ones_like(lengths))

    def shared_parameters(self) -> Iterable[nn.Parameter]:
        """Return all weights that learn: each rank has gradients of its share of a batch."""
        return (value for value in self.parameters() if value.requires_grad)

    def _precision(self, kind: str) -> AbstractContextManager[Any]:
        return torch.autocast(kind, torch.bfloat16) if self.precision == "bf16" else nullcontext()

    def _encode(self, tower: Callable[..., Tensor], *rows: Tensor) -> Float[Tensor, "all width"]:
        group, count = self.similarity.group, len(rows[0])
        # A rank without a row encodes one all the same: it takes part in the backward pass.
        share = torch.arange(count)[group.part :: group.parts]
        own = share if len(share) else torch.zeros(1, dtype=torch.long)
        vectors = []
        for part in torch.split(own, self.chunk or count):
            given = [values[part.to(values.device)] for values in rows]
            with self._precision(rows[0].device.type):
                if self.chunk and torch.is_grad_enabled():
                    vectors.append(checkpoint(tower, *given, use_reentrant=False))
                else:
                    vectors.append(tower(*given))
        found = unit(torch.cat(vectors).float())[: len(share)]
        return group.gather(found.T, count).T


def choose_weights(towers: DualTowers, last_layers: int, lora_rank: int) -> None:
    """Choose what learns: all, the last layers of each tower and what follows, or adapters.

    Args:
        towers: Changed in place.
        last_layers: Layers of each tower that learn; 0: all of them, and what is before.
        lora_rank: Rank of the adapters beside the linear layers, which alone learn; 0: none.

    Raises:
        ConfigError: If `peft` is missing, or the towers have no layers.

    Source:
        LoRA (Hu et al., ICLR 2022), by `peft`: twice the rank as alpha, no dropout.
    """
    model = towers.model
    inside = {name for name, _ in model.named_parameters() if _layer(name) is not None}
    if (last_layers or lora_rank) and not inside:
        raise ConfigError("model.last_layers, model.lora_rank: model.encoder has no layers")
    learned = dict(model.named_parameters())
    if lora_rank:
        _add_adapters(model, lora_rank)
        learned = {name: own for name, own in model.named_parameters() if "lora_" in name}
    elif last_layers:
        learned = dict(_from_last_layers(list(model.named_parameters()), last_layers))
    model.requires_grad_(requires_grad=False)
    for name, parameter in learned.items():
        parameter.requires_grad_("." in name)  # not the model's own scale and bias of the logits


def _from_last_layers(
    parameters: list[tuple[str, nn.Parameter]], count: int
) -> Iterable[tuple[str, nn.Parameter]]:
    """Yield what stands in the last layers of each tower or, in order, behind them."""
    for _, group in groupby(parameters, lambda each: each[0].partition(".")[0]):
        part = list(group)
        layers = [_layer(name) for name, _ in part]
        last = max((number for number in layers if number is not None), default=None)
        if last is not None:
            first = max(last - count + 1, 0)
            part = part[layers.index(first) :]
        yield from part


def _layer(name: str) -> int | None:
    """Return the number of the layer that a parameter belongs to, if any."""
    return next((int(part) for part in name.split(".") if part.isdigit()), None)


def without_adapters(model: Any) -> Any:
    """Merge adapters into the weights that they stand beside, in place."""
    for name, part in list(model.named_modules()):
        if hasattr(part, "get_base_layer"):
            part.merge()
            model.set_submodule(name, part.get_base_layer())
    return model


def _add_adapters(model: nn.Module, rank: int) -> None:
    if find_spec("peft") is None:
        raise ConfigError(f"model.lora_rank: peft is missing; {install_extra('lora')}")
    from peft import LoraConfig, inject_adapter_in_model

    linear = [
        name
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear) and _layer(name) is not None
    ]
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=linear), model)
