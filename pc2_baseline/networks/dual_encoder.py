"""Both towers of a dual encoder of `transformers` as a network that learns."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from now_builder.dual_encoder import DualTowers, EncoderInputs
from now_builder.errors import ConfigError
from now_builder.program.missing_package import install_extra
from pc2_baseline.config import DualEncoderSettings
from pc2_baseline.networks.encoders import CaptionCodes, ImageCodes
from pc2_baseline.networks.fused import unit
from pc2_baseline.networks.pooled import CosineSimilarity
from pc2_baseline.networks.similarity import MatchingNetwork
from pc2_baseline.process_groups import ProcessGroup


class DualNetwork(MatchingNetwork):
    """Encode screenshots and texts as one unit vector each, and compare them by their cosine.

    The ranks of a process group encode a share of a batch each, and gather the vectors. With
    ``chunk``, at most so many rows are encoded at once; in training, each chunk is recomputed in
    the backward pass. So a batch of any size needs the memory of a chunk, and its gradients are
    those of the whole batch: the loss sees all vectors at once.

    Source:
        Cached gradients as in GradCache (Gao et al., RepL4NLP 2021), by activation checkpointing.
    """

    def __init__(
        self,
        towers: DualTowers,
        group: ProcessGroup,
        chunk: int = 0,
        precision: Literal["fp32", "bf16"] = "fp32",
    ) -> None:
        super().__init__(towers, nn.Identity(), CosineSimilarity())
        self.towers = [towers]  # a list, so that they are not registered twice
        self.similarity.group = group
        self.chunk, self.precision = chunk, precision

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
        """Return all trained weights: each rank has the gradients of its share of a batch."""
        return (value for value in self.parameters() if value.requires_grad)

    def _precision(self, device: str) -> AbstractContextManager[Any]:
        return torch.autocast(device, torch.bfloat16) if self.precision == "bf16" else nullcontext()

    def _encode(self, tower: Callable[..., Tensor], *rows: Tensor) -> Float[Tensor, "all width"]:
        group, count = self.similarity.group, len(rows[0])
        # A rank without rows encodes one, since it must take part in the backward pass.
        share = torch.arange(count)[group.part :: group.parts]
        encoded = share if len(share) else torch.zeros(1, dtype=torch.long)
        vectors = []
        for part in torch.split(encoded, self.chunk or count):
            inputs = [values[part.to(values.device)] for values in rows]
            with self._precision(rows[0].device.type):
                if self.chunk and torch.is_grad_enabled():
                    vectors.append(checkpoint(tower, *inputs, use_reentrant=False))
                else:
                    vectors.append(tower(*inputs))
        units = unit(torch.cat(vectors).float())[: len(share)]
        return group.gather(units.T, count).T


def choose_weights(towers: DualTowers, lora_rank: int) -> None:
    """Choose the trained weights: all, or adapters of a rank next to the linear layers.

    The model's own scale and bias of the logits never learn.

    Raises:
        ConfigError: If `peft` is missing.

    Source:
        LoRA (Hu et al., ICLR 2022), by `peft`: twice the rank as alpha, no dropout.
    """
    model = towers.model
    if lora_rank:
        if find_spec("peft") is None:
            raise ConfigError(f"model.lora_rank: peft is missing; {install_extra('lora')}")
        from peft import LoraConfig, inject_adapter_in_model

        modules = model.named_modules()
        linear = [  # in the numbered layers of both towers
            name
            for name, part in modules
            if isinstance(part, nn.Linear) and any(map(str.isdigit, name.split(".")))
        ]
        adapters = LoraConfig(r=lora_rank, lora_alpha=2 * lora_rank, target_modules=linear)
        inject_adapter_in_model(adapters, model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("." in name and (not lora_rank or "lora_" in name))


class DualNetworkSettings(DualEncoderSettings):
    """A dual encoder that learns."""

    @property
    def pooled_width(self) -> int:
        """Width of the encoder's vectors."""
        return encoder_inputs(self.encoder).width

    def build(self, features: int, vocabulary: int, words: Any, group: ProcessGroup) -> DualNetwork:  # noqa: ARG002
        """Build the network."""
        towers = DualTowers(encoder_inputs(self.encoder))
        choose_weights(towers, self.lora_rank)
        return DualNetwork(towers, group, self.chunk, self.precision)


@cache
def encoder_inputs(name: str) -> EncoderInputs:
    """Return the input sizes and preprocessing of a dual encoder."""
    return EncoderInputs(name)
