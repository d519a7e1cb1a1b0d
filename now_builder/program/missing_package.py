"""Name the extra that installs a missing package."""

import json
import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution, requires

DISTRIBUTION = "noise-of-web"
INSTALL_DETECTRON2 = (
    'pip install "setuptools>=70.1" && '
    "pip install --no-build-isolation git+https://github.com/facebookresearch/detectron2"
)
"""detectron2 is not on PyPI; older versions of setuptools cannot build its wheel."""

_DISTRIBUTIONS = {
    "bs4": "beautifulsoup4",
    "phonenumbers": "phonenumberslite",
    "sklearn": "scikit-learn",
}
"""Distributions by module, where the names differ."""

_EXTRAS_OF_PROGRAM = {
    "now-builder": ("crawl", "detect", "tokenize", "package", "hub"),
    "pc2-baseline": ("baseline", "zero-shot"),
}
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+).*extra == ['\"]([A-Za-z0-9._-]+)['\"]")
_COMBINED = {"all", "dev"}  # extras that repeat the others


def describe_missing(error: ModuleNotFoundError, words: Sequence[str]) -> str | None:
    """Return the command that installs a missing package; ``None`` if no extra contains it.

    If several extras contain it, one named like the command is preferred, then an extra of the
    program. ``words`` are the name of the program and its arguments.
    """
    module = (error.name or "").partition(".")[0]
    package = _normal(_DISTRIBUTIONS.get(module, module))
    try:
        lines = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return None
    pairs = [match.groups() for line in lines if (match := _REQUIREMENT.fullmatch(line))]
    extras = [extra for name, extra in pairs if _normal(name) == package and extra not in _COMBINED]
    if not extras:
        return None
    preferred = [*words[1:], *_EXTRAS_OF_PROGRAM.get(words[0] if words else "", ())]
    extra = next((word for word in preferred if word in extras), extras[0])
    return f"{module}: package not installed. Run: {install_extra(extra)}"


def install_extra(extra: str) -> str:
    """Return the command that installs an extra from the origin of the installed package."""
    try:
        origin = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        origin = {}
    source = f" @ {origin['url']}" if origin else ""
    if vcs := origin.get("vcs_info"):
        source = f" @ {vcs['vcs']}+{origin['url']}@{vcs['commit_id']}"
    return f"pip install '{DISTRIBUTION}[{extra}]{source}'"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
