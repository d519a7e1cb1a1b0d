"""Models of the hub: found in a folder or downloaded, and identified by a hash."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from now_builder.errors import ConfigError
from now_builder.formats.io import sha256_of
from now_builder.hub.client import NO_XET, of_xet


def find_model(name: str, files: Sequence[str], revision: str | None = None) -> Path:
    """Return the folder of a model: the one named, or the hub's, downloaded if need be.

    Raises:
        ConfigError: If it is neither a folder nor can be had from the hub.
    """
    if name and Path(name).is_dir():
        return Path(name)
    if not name:
        raise ConfigError("neither a folder nor a name of the hub")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(files)))
    except Exception as error:
        if of_xet(error):
            raise ConfigError(f"{name}: cannot be had from the hub ({error}); {NO_XET}") from None
        if not isinstance(error, HfHubHTTPError | HFValidationError | OSError | ValueError):
            raise
        raise ConfigError(f"neither a folder nor a name of the hub to be had: {error}") from None


def hash_of_files(folder: Path, files: Sequence[str]) -> str:
    """Hash the names and contents of a folder's files that match some patterns."""
    found = sorted({path for pattern in files for path in folder.glob(pattern)})
    lines = "".join(f"{path.name} {sha256_of(path)}\n" for path in found)
    return hashlib.sha256(lines.encode()).hexdigest()
