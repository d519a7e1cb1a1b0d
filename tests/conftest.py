"""Browsers go before all else; `make test-types` enforces promised shapes and types.

What takes long to make is made once for all workers.
"""

import errno
import fcntl
import importlib.util
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))  # for benchmarks; installed packages go first

if os.environ.get("NOW_TEST_TYPES"):
    from tests.type_hook import install

    install()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in what a script starts in the background; commands that are stopped here would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if importlib.util.find_spec("hypothesis"):  # not where only tests for a GPU run
    from hypothesis import HealthCheck, settings

    slow = [HealthCheck.too_slow]  # nor drawing examples slowly: a busy machine fails no test
    settings.register_profile("any load", deadline=None, suppress_health_check=slow)
    settings.load_profile("any load")

LONG = ("tests/benchmarks/", "tests/now_builder/detect/", "tests/pc2_baseline/")
"""Folders of tests that train."""

TIMED = (
    "tests/now_builder/crawl/browser/", "tests/now_builder/crawl/test_awkward.py",
    "tests/now_builder/crawl/test_hostile.py", "tests/now_builder/crawl/test_manners.py",
)  # fmt: skip
"""Browser tests that measure when pages come to rest: two at once would disturb each other."""


@cache
def _shows_pages(file: str) -> bool:
    return "mark.browser" in (ROOT / file).read_text(encoding="utf-8")


def _turn(file: str) -> int:
    return 0 if _shows_pages(file) else 1 if file.startswith(LONG) else 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long, so that no worker is left alone with it at the end.

    Raises:
        pytest.UsageError: If a test asks for a fixture that there is not, also if its marker is not
            chosen.
    """
    for item in items:
        asked = item._fixtureinfo
        if missing := {*asked.names_closure} - {*asked.name2fixturedefs, "request"}:
            raise pytest.UsageError(f"{item.nodeid}: no fixture {', '.join(sorted(missing))}")
    items.sort(key=lambda item: _turn(item.nodeid.split("::", 1)[0]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Assign two workers all files with browser tests: pages have time limits.

    One of them gets those that measure time, so that at most one other crawl is at work meanwhile.
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            if not _shows_pages(file):
                return file
            return "browser, timed" if file.startswith(TIMED) else "browser"

    config.option.loadscopereorder = False
    return Scheduling(config, log)


@cache
def _give_way() -> None:
    """Lower this worker's priority, below those of the two workers with browser tests."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        os.nice(5)


@pytest.fixture(scope="module", autouse=True)
def _browsers_first(request: pytest.FixtureRequest) -> None:
    """Let browser tests go before the others."""
    if not _shows_pages(request.node.nodeid):
        _give_way()


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    """Fail where a file changes the environment or the folder for the files after it."""
    before, folder = _steering(), Path.cwd()
    yield
    assert (_steering(), Path.cwd()) == (before, folder)


def _steering() -> dict[str, str]:
    """Return the environment variables that steer the commands, not those of torch or ray."""
    ours = ("HF_", "NOW_", "HOME", "XDG_", "OMP_", "TZ", "LANG", "LC_")
    return {key: value for key, value in os.environ.items() if key.startswith(ours)}


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable], Path]:
    """Make a folder once for all workers: ``shared(name, make)``; read only.

    The first worker that asks calls ``make`` with a path; the others wait and receive that path.
    """
    base = tmp_path_factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def once(name: str, make: Callable[[Path], object]) -> Path:
        with (root / f"{name}.lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_size == 0:  # nothing is written before it is whole
                make(root / name)
                file.write("made")
        return root / name

    return once


@pytest.fixture(scope="session")
def encoders():
    """The module that makes small dual encoders; without transformers its tests are skipped."""
    pytest.importorskip("transformers")
    spec = importlib.util.spec_from_file_location("encoders", ROOT / "tests" / "encoders.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def device():
    """What tests marked ``gpu`` run on: NOW_TEST_DEVICE, or else the first GPU."""
    import torch

    name = os.environ.get("NOW_TEST_DEVICE", "cuda")
    if name.startswith("cuda") and not torch.cuda.is_available():
        pytest.skip("no CUDA device; NOW_TEST_DEVICE=cpu runs these tests on the CPU")
    return torch.device(name)


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    from now_builder.machine.chromium import find_chromium

    driver = pytest.importorskip("playwright.sync_api")
    with driver.sync_playwright() as playwright:
        path = find_chromium()
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def full_float32():
    """Float32 in all its digits: by default cuDNN rounds it to TF32 in convolutions and GRUs."""
    import torch

    kinds = (torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    before = [kind.fp32_precision for kind in kinds]
    for kind in kinds:
        kind.fp32_precision = "ieee"
    yield
    for kind, precision in zip(kinds, before, strict=True):
        kind.fp32_precision = precision


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer as a network file system without a lock service does."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    monkeypatch.setattr("fcntl.lockf", refuse)


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Let no file grow beyond 64 KiB, as a disk does that is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
