"""Hostile pages and answers: only transient errors are retried, and no process is left."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from now_builder.formats.shard import read_captures

from .awkward import Awkward
from .crawls import settings_for, visit, write_list
from .odd import LOST, TIMEOUT_S, Odd

pytestmark = [pytest.mark.browser]

STORMS: dict[str, set[str] | frozenset[str | None]] = {
    "/dripping-head": {"timeout"},
    "/endless-hints": {"timeout", "too_large"},
    **dict.fromkeys(
        ("/memory-buffers", "/memory-slowly", "/canvases", "/popups-timer", "/push-state", "/hash",
         "/frames-timer", "/text", "/nodes-scripted", "/console-timer", "/fetch-storm",
         "/downloads", "/mailto", "/sockets", "/titles", "/writes"),
        LOST | {None},
    ),
}  # fmt: skip
"""More hostile pages, which take longer, and their possible errors."""


def test_only_transient_errors_are_retried(odd: Odd) -> None:
    attempts = {path: row.attempts for path, row in odd.rows.items()}
    assert attempts["/nothing"] == attempts["/injected"] == attempts["/torn-gzip"] == 2
    for path in ("/big", "/reload", "/to-long-host", "/odd-status", "/blob"):
        assert attempts[path] == 1
    texts = [element.text for element in odd.shots["/surrogate-scripted"].elements]
    assert "\ufffd half" in texts


@pytest.mark.slow
def test_storms_end_in_time_too_and_leave_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("pool", "tab"):
        monkeypatch.setattr(f"now_builder.crawl.browser.{module}.MAX_BYTES", 20_000_000)
    monkeypatch.setattr("now_builder.crawl.browser.pool._PAGE_MB", 900)
    before = set(psutil.Process().children(recursive=True))
    with Awkward() as server:
        rows = visit(
            tmp_path, server, list(STORMS), page_timeout_s=TIMEOUT_S, settle_s=1.5, concurrency=2
        )
    assert {path: row.error for path, row in rows.items() if row.error not in STORMS[path]} == {}
    keys = {capture.key for capture in read_captures(tmp_path / "captures")}
    assert keys == {row.key for row in rows.values() if row.status == "ok"}
    slowest = max(rows.values(), key=lambda row: row.elapsed_s / row.attempts)
    assert slowest.elapsed_s / slowest.attempts < 2 * TIMEOUT_S, slowest
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.slow
def test_a_page_that_floods_its_browser_harms_no_other_page(tmp_path: Path) -> None:
    others, floods = [f"site{n}.test/page/{n}" for n in range(6)], ["/console", "/throws"]
    with Awkward() as server:
        rows = visit(
            tmp_path, server, [*others[:2], *floods, *others[2:]], concurrency=4,
            page_timeout_s=15, robots=False,
        )  # fmt: skip
    assert [rows[url].status for url in others] == ["ok"] * 6
    assert {rows[path].error for path in floods} <= LOST | {None}


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
