"""All stages in a row: presets, the plan of a build, the build."""

from pathlib import Path

_PRESETS = Path(__file__).parent / "presets"


def presets() -> dict[str, str]:
    """List the presets that come with the package: name and first line of comment."""
    return {
        path.stem: path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        for path in sorted(_PRESETS.glob("*.toml"))
    }


def preset_path(name: str) -> Path:
    """Return the file of a preset; it need not exist."""
    return _PRESETS / f"{name}.toml"
