"""Find models in a folder or on the hub, and identify them by a hash."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from now_builder.errors import ConfigError
from now_builder.formats.io import sha256_of
from now_builder.hub.client import NO_XET, of_xet


def find_model(name: str, files: Sequence[str], revision: str | None = None) -> Path:
    """Return the folder of a model: ``name`` itself, or the download of that name on the hub.

    Raises:
        ConfigError: If it is not a folder and cannot be downloaded from the hub.
    """
    if name and Path(name).is_dir():
        return Path(name)
    if not name:
        raise ConfigError("neither a folder nor a name on the hub")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(files)))
    except Exception as error:
        if of_xet(error):
            raise ConfigError(f"{name}: cannot be downloaded ({error}). {NO_XET}") from None
        if not isinstance(error, HfHubHTTPError | HFValidationError | OSError | ValueError):
            raise
        problem = "neither a folder nor a name that can be downloaded from the hub"
        raise ConfigError(f"{problem}: {error}") from None


def hash_of_files(folder: Path, files: Sequence[str]) -> str:
    """Hash the names and contents of the files in a folder that match a pattern."""
    paths = sorted({path for pattern in files for path in folder.glob(pattern)})
    lines = "".join(f"{path.name} {sha256_of(path)}\n" for path in paths)
    return hashlib.sha256(lines.encode()).hexdigest()
