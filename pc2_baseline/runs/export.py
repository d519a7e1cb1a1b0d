"""A trained dual encoder as a folder that `transformers` reads."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from now_builder.errors import ConfigError
from now_builder.formats.io import replacing_folder
from pc2_baseline.methods.networks import encoder_inputs
from pc2_baseline.modules.reading import parts_of
from pc2_baseline.networks.dual_encoder import DualNetwork, without_adapters
from pc2_baseline.runs.open_run import open_run


@dataclass(frozen=True, slots=True)
class Exported:
    """Outcome of ``export``: the folders of the models."""

    folders: list[Path]

    def __str__(self) -> str:
        """Return a line a folder for the terminal."""
        return "\n".join(map(str, self.folders))


def export(run: Path | str, folder: Path) -> Exported:
    """Write the best epoch's dual encoder with its processor; several peers to ``FOLDER/0`` ….

    Adapters are merged into the weights. ``zero-shot``, ``rank-pairs`` and ``detect --embed`` take
    the folder as any other model.

    Raises:
        FormatError: If the run cannot be read.
        ConfigError: If its network is no dual encoder, or the folder is there.
    """
    if folder.exists():
        raise ConfigError(f"{folder}: is there already, expected a new folder")
    opened = open_run(run, device="cpu")
    nets = list(parts_of(opened.method, DualNetwork))[: opened.method.ensemble_size]
    if not nets:
        raise ConfigError(f"{run}: its network is no dual encoder, as --config clip trains")
    processor: Any = encoder_inputs(opened.record.settings.model.encoder).processor
    folders = [folder / str(number) for number in range(len(nets))] if len(nets) > 1 else [folder]
    for net, target in zip(nets, folders, strict=True):
        with replacing_folder(target) as temporary:
            without_adapters(net.towers[0].model).save_pretrained(temporary)
            processor.save_pretrained(temporary)
    return Exported(folders)
