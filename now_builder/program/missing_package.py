"""Explain in one line that a package of an optional extra is not installed."""

import json
import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution, requires

DISTRIBUTION = "noise-of-web"
INSTALL_DETECTRON2 = (
    'pip install "setuptools>=70.1" && '
    "pip install --no-build-isolation git+https://github.com/facebookresearch/detectron2"
)
"""detectron2 is on no registry; older versions of setuptools cannot make its wheel."""

_DISTRIBUTIONS = {
    "bs4": "beautifulsoup4",
    "phonenumbers": "phonenumberslite",
    "sklearn": "scikit-learn",
}
"""Distributions whose module has another name."""

_OWN = {
    "now-builder": ("crawl", "detect", "tokenize", "package", "hub"),
    "pc2-baseline": ("baseline", "zero-shot"),
}
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+).*extra == ['\"]([A-Za-z0-9._-]+)['\"]")
_OURS = {"all", "dev"}  # which repeat the others


def describe_missing(error: ModuleNotFoundError, words: Sequence[str]) -> str | None:
    """Return the line that names the extra of a missing package; ``None`` if no extra has it.

    ``words`` are the name of the program and the words of its command line: of several extras, the
    one named like the command is proposed, then the program's own.
    """
    module = (error.name or "").partition(".")[0]
    package = _normal(_DISTRIBUTIONS.get(module, module))
    try:
        lines = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return None
    found = [match.groups() for line in lines if (match := _REQUIREMENT.fullmatch(line))]
    extras = [extra for name, extra in found if _normal(name) == package and extra not in _OURS]
    if not extras:
        return None
    preferred = [*words[1:], *_OWN.get(words[0] if words else "", ())]
    extra = next((word for word in preferred if word in extras), extras[0])
    return f"{module} is not installed, expected it here: {install_extra(extra)}"


def install_extra(extra: str) -> str:
    """Return the command that installs an extra, from where this package was installed from."""
    try:
        told = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        told = {}
    source = f" @ {told['url']}" if told else ""
    if vcs := told.get("vcs_info"):
        source = f" @ {vcs['vcs']}+{told['url']}@{vcs['commit_id']}"
    return f"pip install '{DISTRIBUTION}[{extra}]{source}'"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
