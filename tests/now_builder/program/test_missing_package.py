"""Without the packages of an extra, a command says in one line what to install."""

import subprocess
import sys
from importlib.metadata import Distribution

import pytest

from now_builder.program.missing_package import describe_missing, install_extra

BLOCKED = """
import sys
module, package, *words = sys.argv[1:]
sys.modules[module] = None
sys.argv = [package, *words]
__import__(package + ".cli").cli.main()
"""


def run(module, package, *words):
    """Run a command in a process without a module."""
    return subprocess.run(
        [sys.executable, "-c", BLOCKED, module, package, *map(str, words)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("module", "package", "words", "extra"),
    [("playwright", "now_builder", ["crawl", "urls.txt", "captures"], "crawl"),
     ("torch", "now_builder", ["detect", "captures", "features.h5"], "detect"),
     ("torch", "pc2_baseline", ["train", "release", "run"], "baseline")],
)  # fmt: skip
def test_a_command_names_the_extra_that_it_lacks(
    tmp_path, monkeypatch, module, package, words, extra
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "urls.txt").write_text("https://example.org/\n")
    done = run(module, package, *words)
    assert done.returncode == 1
    line = f"error: {module}: package not installed. Run: {install_extra(extra)}"
    assert done.stderr.splitlines()[-1] == line
    assert "Traceback" not in done.stderr


def test_the_extra_is_the_commands_own_where_several_have_the_package():
    for module, words, extra in (
        ("transformers", ["now-builder", "tokenize"], "tokenize"),
        ("transformers", ["now-builder", "train-detector"], "detect"),
        ("sklearn.mixture", ["pc2-baseline", "train"], "baseline"),
        ("phonenumbers", [], "package"),
    ):
        line = describe_missing(ModuleNotFoundError(name=module), words)
        assert line is not None
        assert line.endswith(f"Run: {install_extra(extra)}")


def test_an_extra_comes_from_where_the_package_came_from(monkeypatch):
    distribution = type(Distribution.from_name("noise-of-web"))
    for origin, source in (
        (None, ""),
        ('{"url": "file:///src/now", "dir_info": {"editable": true}}', " @ file:///src/now"),
        ('{"url": "https://host/now.git", "vcs_info": {"vcs": "git", "commit_id": "12ab"}}',
         " @ git+https://host/now.git@12ab"),
    ):  # fmt: skip
        monkeypatch.setattr(distribution, "read_text", lambda self, name, text=origin: text)
        assert install_extra("ocr") == f"pip install 'noise-of-web[ocr]{source}'"


def test_a_module_of_no_extra_is_a_defect_and_keeps_its_traceback(tmp_path):
    assert describe_missing(ModuleNotFoundError(name="nowhere"), []) is None
    done = run("now_builder.detect.run", "now_builder", "detect", tmp_path, tmp_path / "f.h5")
    assert "Traceback" in done.stderr
