"""Pages and answers that mean harm: each ends as a row with its reason, within its time."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from now_builder.formats.shard import Capture, CaptureRow, read_captures

from .awkward import Awkward
from .crawls import settings_for, visit, write_list
from .hostile import CHINESE

pytestmark = [pytest.mark.browser]

TIMEOUT_S = 6.0
PAGE_MB = 900

CAPTIONS: dict[str, str | None] = {
    "/print": "prints",
    "/asks": "asks for all",
    "/refresh-data": "to data",
    "/refresh-script": "to script",
    "/worker": "a worker that spins",
    "/surrogate": "a \ufffd b \ufffd c",
    "/surrogate-scripted": "half \ufffd",
    "/surrogate-bytes": "before \ufffd\ufffd\ufffd after",
    "/invalid": "before \ufffd\ufffd\ufffd(\ufffd after",
    "/nul": "before \ufffd after",
    "/noncharacters": "before \uffff\ufdd0\u202e after",
    "/gbk-as-utf-8": CHINESE.encode("gbk").decode("utf-8", "replace"),
    "/parts": "big parts",
    "/fetches": "fetches on",
    "/word-status": "whole",
    "/wrong-length": "whole",
    "/vast-length": "whole",
    "/empty": None,
}
"""Pages that are captured, with their captions."""

LOST: set[str | None] = {"timeout", "renderer_hung", "renderer_crashed", "browser_crashed"}
"""What a page that takes all it gets may end as: by time, or by memory."""

ERRORS: dict[str, set[str | None]] = {
    "/reload": {"redirect_loop", "unstable_page"},
    "/blob": {"not_html"},
    "/to-long-host": {"dns_error"},
    "/to-long-labels": {"dns_error"},
    "/to-data": {"net_error"},
    "/to-script": {"net_error"},
    "/to-nothing": {"http_302"},
    "/to-bytes": {"http_404"},
    "/no-status": {"not_html"},
    "/bare": {"net_error"},
    "/noise": {"net_error"},
    "/nothing": {"net_error"},
    "/odd-status": {"http_999"},
    "/zero-status": {"http_0"},
    "/injected": {"net_error"},
    "/two-lengths": {"net_error"},
    "/torn-gzip": {"net_error"},
    "/no-gzip": {"net_error"},
    "/bad-chunks": {"net_error"},
    "/big": {"too_large"},
    "/big-declared": {"too_large"},
    "/half-head": {"timeout"},
    "/memory": LOST,
    "/push-state-loop": LOST,
    # How far these get is a matter of the machine.
    "/popups-1000": {None} | LOST,
    "/frames": {None} | LOST,
    "/nodes": {None} | LOST,
}
"""How the other pages may end; ``None``: captured."""

STORMS: dict[str, set[str | None]] = {
    "/dripping-head": {"timeout"},
    "/endless-hints": {"timeout", "too_large"},
    **dict.fromkeys(
        ("/memory-buffers", "/memory-slowly", "/canvases", "/popups-timer", "/push-state", "/hash",
         "/frames-timer", "/text", "/nodes-scripted", "/console-timer", "/fetch-storm",
         "/downloads", "/mailto", "/sockets", "/titles", "/writes"),
        {None} | LOST,
    ),
}  # fmt: skip
"""More of the kind, which take longer."""

Crawled = tuple[dict[str, CaptureRow], dict[str, Capture], int]


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory) -> Crawled:
    return _crawl(tmp_path_factory.mktemp("hostile"), list(ERRORS))


@pytest.fixture(scope="module")
def harmless(tmp_path_factory: pytest.TempPathFactory) -> Crawled:
    """Crawled by themselves, with more time: a busy machine must not make one of them hang."""
    return _crawl(tmp_path_factory.mktemp("harmless"), list(CAPTIONS), 3 * TIMEOUT_S)


@pytest.fixture(scope="module")
def stormed(tmp_path_factory: pytest.TempPathFactory) -> Crawled:
    return _crawl(tmp_path_factory.mktemp("storms"), list(STORMS))


def _crawl(folder: Path, paths: list[str], timeout_s: float = TIMEOUT_S) -> Crawled:
    """The rows by path, the captures by key, and how many of its processes outlived the crawl."""
    before = set(psutil.Process().children(recursive=True))
    with Awkward() as server:
        rows = visit(
            folder,
            server,
            paths,
            page_timeout_s=timeout_s,
            settle_s=1.5,
            max_bytes=20_000_000,
            concurrency=2,  # so that the worst of them hold up few others
            page_memory_mb=PAGE_MB,
        )
    left = set(psutil.Process().children(recursive=True)) - before
    assert set(rows) == set(paths)
    captures = {capture.key: capture for capture in read_captures(folder / "captures")}
    return rows, captures, len(left)


@pytest.mark.parametrize("path", CAPTIONS)
def test_a_page_that_only_looks_harmful_is_captured(harmless: Crawled, path: str) -> None:
    row = harmless[0][path]
    assert (row.status, row.caption) == ("ok", CAPTIONS[path]), row


@pytest.mark.parametrize("path", ERRORS)
def test_a_page_that_means_harm_ends_as_a_row_with_its_reason(crawled: Crawled, path: str) -> None:
    row = crawled[0][path]
    assert row.error in ERRORS[path], row


def _check_time(rows: dict[str, CaptureRow]) -> None:
    slowest = max(rows.values(), key=lambda row: row.elapsed_s / row.attempts)
    assert slowest.elapsed_s / slowest.attempts < 2 * TIMEOUT_S, slowest


def test_every_page_ends_within_its_time(crawled: Crawled) -> None:
    _check_time(crawled[0])


def test_what_was_captured_can_be_read_back(harmless: Crawled) -> None:
    rows, captures, _ = harmless
    assert set(captures) == {row.key for row in rows.values() if row.status == "ok"}
    texts = [element.text for element in captures[rows["/surrogate-scripted"].key].elements]
    assert "\ufffd half" in texts


def test_only_what_may_pass_is_tried_again(crawled: Crawled) -> None:
    attempts = {path: row.attempts for path, row in crawled[0].items()}
    assert attempts["/nothing"] == attempts["/injected"] == attempts["/torn-gzip"] == 2
    for path in ("/big", "/reload", "/to-long-host", "/odd-status", "/blob"):
        assert attempts[path] == 1


def test_half_a_document_or_half_its_parts_are_told(harmless: Crawled) -> None:
    for path in ("/parts", "/vast-length"):
        assert harmless[0][path].load_state == "partial"


def test_no_process_is_left(crawled: Crawled, harmless: Crawled) -> None:
    assert (crawled[2], harmless[2]) == (0, 0)


@pytest.mark.slow
def test_storms_end_within_their_time_too_and_leave_nothing(stormed: Crawled) -> None:
    rows, captures, left = stormed
    assert {path: row.error for path, row in rows.items() if row.error not in STORMS[path]} == {}
    assert set(captures) == {row.key for row in rows.values() if row.status == "ok"}
    _check_time(rows)
    assert left == 0


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/console", "/throws"])
def test_a_page_that_floods_its_browser_takes_no_other_with_it(tmp_path: Path, path: str) -> None:
    others = [f"site{n}.test/page/{n}" for n in range(6)]
    with Awkward() as server:
        rows = visit(
            tmp_path, server, [*others[:2], path, *others[2:]], concurrency=4,
            page_memory_mb=PAGE_MB, page_timeout_s=15, robots=False,
        )  # fmt: skip
    assert [rows[url].status for url in others] == ["ok"] * 6
    assert rows[path].error in {None} | LOST


def test_a_body_of_300_mb_costs_little_memory(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom now_builder.crawl.run import crawl\n"
        "from now_builder.crawl.settings import CrawlSettings\n"
        "settings = CrawlSettings.model_validate_json(sys.argv[3])\n"
        "print(crawl(Path(sys.argv[1]), Path(sys.argv[2]), settings).errors)\n"
        "held = Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0]\n"
        "print(int(held) // 1024)\n"  # getrusage would count the parent's memory before exec, too
    )
    with Awkward() as server:
        lines = [server.url(path) for path in ("/big", "/big-declared", "/parts")]
        urls = write_list(tmp_path, lines)
        settings = settings_for(server, page_timeout_s=30.0)
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", program, urls, tmp_path / "captures",
             settings.model_dump_json()],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        took = time.monotonic() - begun
    errors, megabytes = done.stdout.splitlines()
    assert errors == "{'too_large': 2}"
    assert int(megabytes) < 700
    assert took < 30
