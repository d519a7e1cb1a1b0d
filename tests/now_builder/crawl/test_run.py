"""The crawl as a whole: resumes after a kill, keeps its keys, repeats nothing."""

import hashlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from PIL import Image

from now_builder.crawl.browser import pool
from now_builder.crawl.plan import planning
from now_builder.crawl.plan.planning import make_plan
from now_builder.crawl.run import CrawlSummary, crawl
from now_builder.crawl.settings import CrawlSettings
from now_builder.crawl.status import crawl_status
from now_builder.errors import ConfigError, CrawlError, FormatError
from now_builder.formats.shard import read_captures, read_plan, read_rows
from now_builder.formats.split import read_split, suffix_list

from .awkward import Awkward
from .crawls import done, many, outcome, settings_for, start, visit, wait_until, write_list

pytestmark = [pytest.mark.browser]


def test_a_killed_crawl_ends_like_an_undisturbed_one_and_its_status_is_in_its_files(
    tmp_path: Path,
) -> None:
    captures = tmp_path / "killed"
    with Awkward() as server:
        lines = [*many(12), server.url("/404"), server.url("/none"), server.url("/none")]
        urls = write_list(tmp_path, lines)
        settings = settings_for(server, concurrency=2)
        crawl(urls, tmp_path / "whole", settings)
        process = start(urls, captures, settings)
        wait_until(lambda: done(captures) >= 3, process)
        half, plan = crawl_status(captures), read_plan(captures)
        descendants = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.join()
        gone, alive = psutil.wait_procs(descendants, timeout=15)
        assert not alive, (gone, alive)
        assert half.running
        assert 3 <= half.statuses.total() < half.pages == 15
        before = sorted(path.name for path in captures.rglob("*"))
        assert not crawl_status(captures).running
        assert sorted(path.name for path in captures.rglob("*")) == before
        kept, hits = done(captures), server.hits.copy()
        crawl(urls, captures, settings)
        visits = [path for path in (server.hits - hits).elements() if path.startswith("/page/")]
        assert len(visits) <= len(lines) - kept  # pages with a row are not visited again
    assert outcome(captures) == outcome(tmp_path / "whole")
    assert read_plan(captures) == plan
    assert not list(captures.glob("*.open*"))
    whole = crawl_status(captures)
    assert whole.statuses == {"ok": 13, "failed": 1, "duplicate": 1}
    assert (whole.captions, whole.to_do, whole.running) == (12, 0, False)
    assert whole.finished == whole.shards
    assert "http_404 1" in str(whole)


VICTIMS = {
    "browser": lambda name, line: "chrom" in name and "--type=" not in line,
    "driver": lambda name, line: "run-driver" in line,
}


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_browser_that_dies_costs_no_page_and_no_process_is_left(
    tmp_path: Path, victim: str
) -> None:
    lines = many(8)
    with Awkward() as server:
        urls = write_list(tmp_path, lines)
        process = start(urls, tmp_path / "captures", settings_for(server, concurrency=2))
        wait_until(lambda: done(tmp_path / "captures") >= 2, process)
        descendants = psutil.Process(process.pid).children(recursive=True)
        killed = 0
        for child in descendants:
            with suppress(psutil.Error):
                if VICTIMS[victim](child.name(), " ".join(child.cmdline())):
                    child.kill()
                    killed += 1
        process.join(150)
        assert process.exitcode == 0
        assert not psutil.wait_procs(descendants, timeout=15)[1]
    assert killed
    assert [row.status for row in read_rows(tmp_path / "captures")] == ["ok"] * len(lines)


@pytest.mark.parametrize(("number", "to_all"), [(signal.SIGINT, True), (signal.SIGUSR1, False)])
def test_a_signal_ends_a_crawl_in_one_line_that_says_what_is_kept(
    tmp_path: Path, number, to_all
) -> None:
    """Most pages are in flight or wait for a slow look-up or answer at that moment.

    A terminal and ``timeout`` send the signal to the browser and its driver too.
    """
    captures = tmp_path / "captures"
    with Awkward() as server:
        lines = [*many(8), *(server.url("/hang", f"h{place}.test") for place in range(12))]
        urls = write_list(tmp_path, lines)
        settings = settings_for(server, concurrency=12)
        command = [sys.executable, "-c", "from now_builder.cli import main; main()", "crawl",
                   str(urls), str(captures), "--concurrency", "12", "--allow-private",
                   "--resolve", settings.resolve[0]]  # fmt: skip
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        wait_until(lambda: done(captures) >= 3, process)
        if to_all:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 128 + number
        last = said.splitlines()[-1]
        assert last == (
            f"stopped: {done(captures)} of 20 pages are kept in {captures}; run the same command "
            "again to resume"
        )
        notes = ("crawl: ", "warning: ")
        assert [line for line in said.splitlines() if not line.startswith(notes)] == [last]
    kept = crawl_status(captures)
    assert (kept.pages, kept.statuses.total()) == (20, done(captures))


def test_a_complete_crawl_does_nothing_and_force_removes_only_its_own_files(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(planning, "_SHARD_SIZE", 3)
    with Awkward() as server:
        urls, captures = write_list(tmp_path, many(3)), tmp_path / "captures"
        crawl(urls, captures, settings_for(server))
        hits = sum(server.hits.values())
        begun = time.monotonic()
        summary = crawl(urls, captures, settings_for(server))
        assert time.monotonic() - begun < 1
        assert (summary.pages, summary.visited) == (3, 0)
        assert sum(server.hits.values()) == hits
        before = {path.name: path.read_bytes() for path in captures.iterdir()}
        (captures / "00001.tar").write_text("mine", "ascii")
        write_list(tmp_path, many(4))
        with pytest.raises(CrawlError, match=r"00001\.tar: not part of a plan"):
            crawl(urls, captures, settings_for(server), force=True)
        (captures / "00001.tar").unlink()
        assert {path.name: path.read_bytes() for path in captures.iterdir()} == before
        assert crawl(urls, captures, settings_for(server), force=True).visited == 4


def test_added_urls_get_new_shards_and_the_split_stays(tmp_path: Path, caplog) -> None:
    with Awkward() as server:
        urls = write_list(tmp_path, many(4))
        captures = tmp_path / "captures"
        crawl(urls, captures, settings_for(server, split_seed=5, split_shares="0.6,0.2,0.2"))
        split, plan = read_split(captures / "split.toml"), read_plan(captures)
        rows = read_rows(captures)
        assert (split.seed, split.by, split.shares.dev) == (5, "domain", 0.2)
        write_list(tmp_path, [*reversed(many(4)), "http://new.test/page/5"])
        assert "--split-by" not in caplog.text
        settings = settings_for(server, split_seed=6, split_by="site")
        assert crawl(urls, captures, settings).visited == 1
        assert "--split-by site is ignored: this crawl is split by domain" in caplog.text
        assert read_plan(captures)[:4] == plan
        assert read_rows(captures)[:4] == rows
        assert read_split(captures / "split.toml") == split
        assert split.suffixes == suffix_list()
    make_plan(tmp_path, [f"http://{host}/" for host in ("a.test", "www.a.test")], CrawlSettings())
    assert read_split(tmp_path / "split.toml").by == "page"  # a list of one domain


def test_a_duplicate_is_a_row_with_the_caption_of_the_first(tmp_path: Path) -> None:
    lines = ["http://a.test/page/1", "http://A.test:80/page/1#top", "http://a.test/page/1",
             "http://a.test/404", "http://a.test/404#x"]  # fmt: skip
    with Awkward() as server:
        urls = write_list(tmp_path, lines)
        summary = crawl(urls, tmp_path / "captures", settings_for(server))
        assert server.hits["/page/1"] == 1
        assert summary.statuses == {"duplicate": 3, "ok": 1, "failed": 1}
        write_list(tmp_path, [*lines, "http://a.test/./page/1"])
        crawl(urls, tmp_path / "captures", settings_for(server))
        assert server.hits["/page/1"] == 1
    rows = {row.url: row for row in read_rows(tmp_path / "captures")}
    first = next(row for row in read_rows(tmp_path / "captures") if row.status == "ok")
    assert rows["http://A.test:80/page/1#top"].caption == first.caption == "number 1"
    assert rows["http://a.test/./page/1"].duplicate_of == first.key
    assert rows["http://a.test/404#x"].caption is None


def test_failed_pages_are_visited_again_only_on_request_and_keep_their_keys(tmp_path: Path) -> None:
    failing = ["site00.test/404", "site01.test/late", "site01.test/late#x"]
    captures = tmp_path / "captures"
    with Awkward() as server:
        urls = write_list(tmp_path, [*many(4), *(f"http://{page}" for page in failing)])
        crawl(urls, captures, settings_for(server))
        plan = read_plan(captures)
        assert crawl(urls, captures, settings_for(server)).visited == 0
        server.pages["/late"] = server.pages["/plain"]
        summary = crawl(urls, captures, settings_for(server, retry_failed=True))
        assert summary.visited == 2
        assert summary.statuses == {"ok": 5, "failed": 1, "duplicate": 1}
    assert read_plan(captures) == plan
    rows = {row.url: row for row in read_rows(captures)}
    assert rows["http://site01.test/late"].caption == "a plain page"
    assert rows["http://site01.test/late#x"].caption == "a plain page"
    assert {capture.key for capture in read_captures(captures)} == {
        row.key for row in rows.values() if row.status == "ok"
    }


def test_a_damaged_shard_is_mended_as_its_message_says(tmp_path: Path) -> None:
    with Awkward() as server:
        urls = write_list(tmp_path, many(3))
        crawl(urls, tmp_path / "captures", settings_for(server))
        whole = outcome(tmp_path / "captures")
        tar = max((tmp_path / "captures").glob("*.tar"))
        os.truncate(tar, tar.stat().st_size // 2)
        with pytest.raises(FormatError) as caught:
            list(read_captures(tmp_path / "captures"))
        files = re.findall(r"\d{5}\.(?:tar|parquet)(?= and)", caught.value.problem)
        assert files == [tar.name, tar.with_suffix(".parquet").name]
        for name in files:
            (tmp_path / "captures" / name).unlink()
        crawl(urls, tmp_path / "captures", settings_for(server))
    assert outcome(tmp_path / "captures") == whole


@pytest.mark.parametrize(
    ("statuses", "errors", "words"),
    [({"ok": 1, "failed": 99}, {"dns_error": 99}, None),
     ({"refused": 2, "failed": 1}, {"never": 2, "bad_url": 1}, None),
     ({"refused": 8, "duplicate": 1}, {"robots": 4, "opt_out": 2, "quota": 1, "only": 1}, None),
     ({"failed": 8, "duplicate": 1}, {"http_404": 6, "timeout": 2}, "6 of 9: http_404"),
     ({"failed": 1, "refused": 8}, {"robots": 8, "http_500": 1}, "1 of 9: http_500"),
     ({"failed": 9}, {"dns_error": 8, "net_error": 1}, "8 of 9: dns_error"),
     ({"failed": 9}, {"tls_error": 9}, "Is the clock right"),
     ({"refused": 9}, {"private_address": 9}, "--force"),
     ({"refused": 8, "failed": 1}, {"robots_unreachable": 8, "net_error": 1}, "--force")],
)  # fmt: skip
def test_a_crawl_without_a_captured_page_is_an_error_with_the_most_common_reason(
    statuses, errors, words, caplog
) -> None:
    """It is no error if the user or the sites exclude all pages; for a share, it is a warning."""
    summary = CrawlSummary(9, statuses, errors, 9, 1.0)
    with nullcontext() if words is None else pytest.raises(CrawlError, match=words):
        summary.check(Path("captures"))
    replace(summary, shares=2).check(Path("captures"))
    assert (words or "") in caplog.text
    assert bool(caplog.text) == (words is not None)


def test_two_crawls_of_one_folder_do_not_mix(tmp_path: Path) -> None:
    with Awkward() as server:
        urls = write_list(tmp_path, ["http://a.test/silent"])
        settings = settings_for(server, page_timeout_s=3.0)
        process = start(urls, tmp_path / "captures", settings)
        wait_until(lambda: server.hits["/silent"] > 0, process)
        with pytest.raises(CrawlError, match="another crawl"):
            crawl(urls, tmp_path / "captures", settings)
        process.join(60)
        assert process.exitcode == 0


def test_a_mapped_host_has_no_limits_and_no_host_in_never_is_contacted(tmp_path: Path) -> None:
    (tmp_path / "never.txt").write_text("# not these\nhttps://barred.test/x\n", "utf-8")
    with Awkward() as server:
        server.pages["/leads"] = b'<meta http-equiv="refresh" content="0; url=http://barred.test/">'
        pages = [*(f"a.test/page/{n}" for n in range(4)), "www.barred.test/gbk", "b.test/leads"]
        rows = visit(tmp_path, server, pages, per_host_quota=2, never=tmp_path / "never.txt")
        assert not {"/gbk", "/"} & set(server.hits)
    outcomes = [(row.status, row.error) for row in rows.values()]
    assert outcomes == [("ok", None)] * 4 + [("refused", "never")] * 2


def test_ipv6_literals_are_crawled_if_private_hosts_are_allowed(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    with Awkward(host="::1") as server:
        pages = [f"[::1]:{server.port}/{name}" for name in ("plain", "hidden")]
        errors = [
            [row.error for row in visit(tmp_path, server, pages, str(may), **may).values()]
            for may in ({"allow_private": True}, {"allow_private": False})
        ]
    assert errors == [[None, "robots"], ["private_address"] * 2]


def test_an_invalid_setting_is_an_error_before_anything_is_visited(tmp_path: Path) -> None:
    urls = write_list(tmp_path, ["http://a.test/"])
    for changes in ({"split_shares": "0.5,0.5"}, {"split_shares": "0.5,0.6,0.7"},
                    {"resolve": ["nonsense"]}):  # fmt: skip
        with pytest.raises(ConfigError):
            crawl(urls, tmp_path / "captures", CrawlSettings.model_validate(changes))


def test_a_busy_site_is_left_alone_for_as_long_as_it_asks(tmp_path: Path) -> None:
    attempts = {"s0.test/busy/429/1": 3, "s1.test/busy/503/0": 3, "s2.test/busy/503/3600": 1,
                "s3.test/plain": 1}  # fmt: skip
    with Awkward() as server:
        started = time.monotonic()
        rows = visit(tmp_path, server, list(attempts))
        assert time.monotonic() - started > 2  # twice a second, as asked
        assert {page: server.hits[page[7:]] for page in attempts} == attempts
        assert {page: row.attempts for page, row in rows.items()} == attempts
        assert [row.error for row in rows.values() if row.error] == ["http_503"]


def test_robots_txt_is_obeyed_wherever_a_page_leads(tmp_path: Path) -> None:
    leads = {"/to-hidden": "http://other.test", "/meta": "http://other.test", "/script": ""}
    named = b"<meta name=description content=x>"
    with Awkward() as server:
        server.pages |= {
            "/meta": named
            + b'<meta http-equiv="refresh" content="0; url=http://other.test/hidden">',
            "/script": named + b"<script>location.replace('/hidden')</script>",
            "/hidden": b"<meta name=description content=hidden><p>text",
        }
        rows = visit(tmp_path, server, [*leads, "/redirect"], page_timeout_s=30.0)
        obeyed = server.hits.copy()
        ignored = visit(tmp_path, server, list(leads), "ignored", robots=False)
    assert rows.pop("/redirect").caption == "a plain page"
    for path, host in leads.items():
        row = rows[path]
        assert (row.status, row.error, row.robots) == ("refused", "robots", "disallowed")
        assert row.redirects == [server.url(path)]
        assert row.final_url == f"{host or 'http://site.test'}/hidden"
    assert obeyed["/hidden"] == 0
    assert obeyed["/robots.txt"] == 2
    assert {row.caption for row in ignored.values()} == {"hidden"}


def test_webp_keeps_every_pixel_in_fewer_bytes(tmp_path: Path) -> None:
    kept = {}
    with Awkward() as server:
        for image in ("png", "webp"):
            (row,) = visit(tmp_path, server, ["/picture"], image, image=image).values()
            (shot,) = read_captures(tmp_path / image)
            assert shot.extension == image
            assert row.sha256 == hashlib.sha256(shot.screenshot).hexdigest()
            kept[image] = shot.screenshot
    one, two = (Image.open(io.BytesIO(content)) for content in kept.values())
    assert two.size == (720, 1280)
    assert one.convert("RGB").tobytes() == two.convert("RGB").tobytes()
    assert len(kept["webp"]) < len(kept["png"])


def test_dialogs_and_permission_prompts_are_refused(tmp_path: Path) -> None:
    with Awkward() as server:
        here = [f"localhost:127.0.0.1:{server.port}"]  # trusted, so that the page may ask
        visit(tmp_path, server, ["localhost/permissions"], resolve=here)
    (capture,) = read_captures(tmp_path / "captures")
    said = next(element.text for element in capture.elements if "confirm" in element.text)
    answers = json.loads(said)
    assert (answers["confirm"], answers["prompt"]) == (False, None)
    assert answers.get("notify") in ("denied", "default")
    assert answers.get("place") in (1, 2)
    assert answers.get("camera", "").endswith("Error")


def test_what_moves_is_stopped_at_its_end_or_after_a_second(tmp_path: Path) -> None:
    with Awkward() as server:
        visit(tmp_path, server, [f"s{number}.test/moving" for number in range(4)])
    captures = list(read_captures(tmp_path / "captures"))
    assert len({capture.screenshot for capture in captures}) == 1
    boxes = {element.tag: element.box for element in captures[0].elements}
    forth_px = 400 * (1.0 - 2 * 0.37) / 0.37  # a second into an animation that goes forth and back
    assert boxes["b"][0] - boxes["i"][0] == pytest.approx(400 - forth_px, abs=1)


def test_a_missing_browser_or_driver_is_an_error_and_a_missing_contact_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    urls = write_list(tmp_path, ["http://a.test/"])
    monkeypatch.setattr(pool, "find_chromium", lambda: Path("/bin/false"))
    for contact in ("https://who.test/", ""):
        assert "--user-agent-url" not in caplog.text
        with pytest.raises(CrawlError, match="/bin/false does not start"):
            crawl(urls, tmp_path / "captures", CrawlSettings(user_agent_url=contact))
    assert "--user-agent-url" in caplog.text
    monkeypatch.setattr(pool, "find_chromium", lambda: None)
    with pytest.raises(CrawlError, match="no Chromium found"):
        crawl(urls, tmp_path / "captures", CrawlSettings())
    monkeypatch.undo()
    monkeypatch.setenv("PLAYWRIGHT_NODEJS_PATH", "/bin/false")
    with pytest.raises(CrawlError, match=r"Playwright's driver does not start .*doctor"):
        crawl(urls, tmp_path / "captures", CrawlSettings())
