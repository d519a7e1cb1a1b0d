"""Build a release from a URL list: run all stages, with presets and a plan."""

from pathlib import Path

_PRESETS = Path(__file__).parent / "presets"


def presets() -> dict[str, str]:
    """Return the presets of the package: name and first line of comment."""
    return {
        path.stem: path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        for path in sorted(_PRESETS.glob("*.toml"))
    }


def preset_path(name: str) -> Path:
    """Return the path of a preset, which may not exist."""
    return _PRESETS / f"{name}.toml"
