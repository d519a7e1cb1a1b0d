"""The files of BEIR, and beside them a module of tasks that ``mteb`` runs from the folder."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from now_builder.export import beir
from now_builder.export.card import Loading
from now_builder.export.pairs import Part, Source
from now_builder.formats.io import write_text

_ABOUT = """

```python
import mteb
from now_tasks import TASKS  # a module in this folder

results = mteb.evaluate(mteb.get_model("mteb/baseline-random-encoder"), TASKS)
```"""

BESIDE = ("now_tasks.py",)
parts, write = beir.parts, beir.write


def finish(source: Source, out: Path, parts: Sequence[Part]) -> Loading:
    """Copy the tasks, and return the configurations."""
    for name in BESIDE:
        code = files("now_builder.export") / name
        write_text(out / name, code.read_text(encoding="utf-8"))
    loading = beir.finish(source, out, parts)
    return Loading(loading.configurations, loading.section + _ABOUT)
