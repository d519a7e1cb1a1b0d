"""What a user imports from the package."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest

import pc2_baseline


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, pc2_baseline; assert not {'torch', 'numpy', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there_and_no_other():
    assert set(pc2_baseline.__all__) <= set(dir(pc2_baseline))
    for name in pc2_baseline.__all__:
        assert getattr(pc2_baseline, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'trains'"):
        _ = pc2_baseline.trains


def test_the_example_of_the_docstring_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = pc2_baseline.__doc__.partition("::\n")[2].partition("Nothing is imported")[0]
    names = {}
    exec(textwrap.dedent(example), names)  # noqa: S102 - our own
    assert names["matrix"].shape == (8, 8)
    assert names["matrix"].dtype == np.float32
