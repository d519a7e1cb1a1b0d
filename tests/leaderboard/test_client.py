"""The client and its commands, against a board on a real socket."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, nullcontext
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import httpx
import pytest

from leaderboard.client import TRIES, BoardClient, BoardError
from leaderboard.service.quotas import Quotas
from leaderboard.service.running import Settings, make_judge
from leaderboard.service.server import serve
from leaderboard.store.entries import read_results
from now_builder.errors import ConfigError
from tests.leaderboard.conftest import OPERATOR_TOKEN as OPERATOR
from tests.leaderboard.conftest import at_once


@pytest.fixture
def command(monkeypatch, now_leaderboard, plain):
    """The command itself, talking to the board as ann."""
    monkeypatch.setenv("NOW_LEADERBOARD_TOKEN", plain.token("ann"))
    monkeypatch.setenv("NOW_LEADERBOARD_URL", plain.url)
    return now_leaderboard


def test_a_submission_on_its_way_by_commands(command, plain, packed):
    code, told, progress = command("submit", packed, "--url", plain.url)
    name = told.partition(":")[0]
    assert code == 0
    assert f"{name}: filed: Mine, rSum 491.7" in told
    assert f"{plain.url}/entries/{name}.html" in progress
    assert "already there" in command("submit", packed, "--url", plain.url)[1]
    result = json.loads(command("submit", packed, "--url", plain.url, "--json")[1])
    assert result["method"]["name"] == "Mine"
    assert name in command("status")[1]
    assert json.loads(command("status", name, "--json")[1])["submitter"] == "ann"
    assert "scored submissions: 4 left; uploads: 47 left" in command("quota")[1]
    assert json.loads(command("quota", "--json")[1])["handle"] == "ann"
    assert "withdrawn" in command("withdraw", name, "--reason", "wrong file")[1]
    assert "withdrawn" in command("status")[1]
    assert command("status", name)[1] == f"{name}  withdrawn  jieba test  Mine\n"


def test_a_refusal_prints_every_problem_and_how_to_mend_it(command, plain, tmp_path):
    (tmp_path / "x.zip").write_bytes(b"PK not really")
    code, told, problem = command("submit", tmp_path / "x.zip", "--url", plain.url)
    assert (code, told) == (1, "")
    assert "[zip." in problem
    assert problem.count("expected a zip") == 1
    assert "expected a zip" in problem
    assert "error: " in problem
    assert "422" in problem
    code, _, problem = command("status", "none")
    lines = [line for line in problem.splitlines() if not line.startswith("{")]  # the service's log
    assert (code, len(lines)) == (1, 1)
    assert "404: no such entry" in lines[0]


def test_a_reason_that_is_none_is_refused_with_what_is_wrong_with_it(command, plain, packed):
    name = command("submit", packed, "--url", plain.url)[1].partition(":")[0]
    code, _, problem = command("withdraw", name, "--reason", "x" * 501)
    assert code == 1
    assert "422: body.reason: found " in problem
    assert "expected at most 500 characters" in problem


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("submit none.zip --url {url}", "none.zip: cannot be read"),
        ("submit . --url {url}", ".: cannot be read"),
        ("submit {packed}", "--url URL, or --store FOLDER"),
        ("submit {packed} --store s", "--url URL, or --store FOLDER"),
        ("submit {packed} --url ftp://x", "expected http(s)://host"),
        ("submit {packed} --url {url} --token-file none", "--token-file none: cannot be read"),
        ("serve --store s --database sqlite:///x", "need --release"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_1(command, plain, packed, arguments, message):
    code, told, problem = command(*arguments.format(url=plain.url, packed=packed).split())
    assert (code, told) == (1, "")
    assert message in problem
    assert problem.rstrip().rpartition("\n")[2].startswith("error: ")


def test_what_is_not_there_yet_is_asked_again_and_the_same_file_is_one_entry(
    plain, packed, tmp_path
):
    """A stand-in that is busy, then hangs up after taking all, then hands on to the board."""
    token, waits, content = plain.token("ann"), [], packed.read_bytes()
    busy = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 7\r\nConnection: close\r\n\r\n"
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(20)

    def stand_in():
        for answer in (busy, b""):
            line, _ = listener.accept()
            with line:
                taken = b""
                while not taken.endswith(content):
                    taken += line.recv(65536)
                assert plain.put(content, token).is_success
                line.sendall(answer)

    thread = threading.Thread(target=stand_in, daemon=True)
    thread.start()
    board = BoardClient(f"http://127.0.0.1:{listener.getsockname()[1]}", token, waits.append)

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 2:
            board._url = plain.url

    board._pause = wait
    moved = []
    filed = board.submit(packed, progress=moved.append)
    board.close()
    thread.join()
    listener.close()
    assert waits == [7.0, 2.0]
    assert not filed.new
    assert [entry.name for entry in read_results([tmp_path / "store"])] == [filed.name]
    assert moved[-1] == packed.stat().st_size


def test_what_never_answers_ends_in_one_line():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    waits = []
    board = BoardClient(f"http://127.0.0.1:{port}", "t" * 20, waits.append)
    with pytest.raises(BoardError, match=f"cannot be reached.*{TRIES} tries"):
        board.me()
    board.close()
    assert waits == [1, 2, 4, 8, 16]


class Elsewhere(BaseHTTPRequestHandler):
    """Another site, which answers everything alike."""

    answer: ClassVar[tuple[bytes, dict[str, str]]]

    def do_GET(self):
        body, headers = self.answer
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_POST = do_GET  # noqa: N815 - names of the library

    def log_message(self, *_):
        """Say nothing."""


@pytest.mark.parametrize(
    "answer",
    [
        (b"<html>hello</html>", {}),
        (b"[]", {}),
        (b"{}", {}),
        (b'{"submissions": [3], "quota": 3}', {"Location": "/x/y"}),
        (b"xx", {"Content-Encoding": "gzip"}),
    ],
    ids=["a page", "a list", "an empty object", "another object", "torn gzip"],
)
@pytest.mark.parametrize("arguments", ["quota", "status", "submit {packed}"])
def test_another_site_is_told_from_a_board_in_one_line(command, packed, arguments, answer):
    handler = type("Handler", (Elsewhere,), {"answer": answer})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        code, _, problem = command(*arguments.format(packed=packed).split(), "--url", url)
        server.shutdown()
    assert code == 1
    assert "(not a board of now-leaderboard?)" in problem
    assert "Traceback" not in problem


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "http://localhost:999999",
        "http://a b/",
        "http://x\x01y/",
        "http://ex\u200d..com",
    ],
)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ConfigError, match=r"--url: found .*, expected http\(s\)://host"):
        BoardClient(url, "t" * 20)


@pytest.mark.parametrize("token", ["é", "a b", "a\nb"])
def test_a_token_that_is_none_is_refused_before_it_is_sent(token):
    with pytest.raises(ConfigError, match="token"):
        BoardClient("http://127.0.0.1:1", token)


@pytest.mark.parametrize(
    ("url", "refused"),
    [
        ("http://board.example.org", True),
        ("HTTP://192.168.1.7:8000/", True),
        ("http://127.0.0.1.example.org", True),
        ("http://[2001:db8::1]:8000", True),
        ("https://board.example.org", False),
        ("http://localhost:8000", False),
        ("http://board.localhost", False),
        ("http://127.1.2.3:8000", False),
        ("http://[::1]:8000", False),
    ],
)
def test_no_token_travels_in_the_clear(url, refused):
    expected = pytest.raises(ConfigError, match="in the clear, expected https://")
    with expected if refused else nullcontext():
        BoardClient(url, "t" * 20).close()


@pytest.mark.parametrize("host", ["127.0.0.1", "no.such.host.test"])
def test_an_address_that_cannot_be_had_is_not_printed(tmp_path, release, capsys, host):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"{host}:{port}: cannot listen there \([\w ]+\); a"):
            serve(Settings(tmp_path / "store", make_judge(release, None, Quotas())), host, port)
    assert capsys.readouterr() == ("", "")
    assert not (tmp_path / "store").exists()


@pytest.fixture
def process(tmp_path, release):
    """Start the command serve as a process of its own; give it and its address."""
    started = []

    def start(**environment):
        known = {key: value for key, value in os.environ.items() if "LEADERBOARD" not in key}
        command = [sys.executable, "-c", "from leaderboard.cli import main; main()", "serve"]
        command += ["--store", tmp_path / "store", "--release", release, "--port", "0"]
        log = (tmp_path / "log").open("wb")
        server = subprocess.Popen(command, env=known | environment, stdout=log, stderr=log)
        started.append((server, log))
        for _ in range(2400):
            if said := re.search(r"(http://127\.0\.0\.1:\d+)/ \(", (tmp_path / "log").read_text()):
                break
            assert server.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.05)
        url = said[1]
        httpx.get(f"{url}/healthz").raise_for_status()  # it answers where it says, at once
        return server, url

    yield start
    for server, log in started:
        server.kill()
        server.wait()
        log.close()


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_serve_needs_no_configuration_and_curl_submits(process, packed, tmp_path):
    """The contract: one token in the environment, curl -T, and a board with its own database."""
    server, url = process(NOW_LEADERBOARD_TOKEN=OPERATOR)
    curl = ["curl", "-sS", "-T", packed, "-H", f"Authorization: Bearer {OPERATOR}"]
    told = subprocess.run(
        [*curl, f"{url}/v1/submissions"], check=True, capture_output=True, timeout=60
    )
    assert json.loads(told.stdout)["method"]["name"] == "Mine"
    assert "Mine" in httpx.get(url).text
    assert (tmp_path / "store" / "private" / "board.sqlite").is_file()
    assert "/private/" in (tmp_path / "store" / ".gitignore").read_text()
    server.send_signal(signal.SIGTERM)
    assert server.wait(30) == -signal.SIGTERM
    log = (tmp_path / "log").read_text()
    assert OPERATOR not in log
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert {"PUT /v1/submissions 201", "GET /index.html 200"} & {
        f"{line['method']} {line['path']} {line['status']}" for line in lines
    }
    assert "Traceback" not in log


def _taken(port):
    """Count the connections that a server has accepted and whose bytes it has read."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(
        local.endswith(f":{port:04X}") and state == "01" and unread.endswith(":00000000")
        for _, local, _, state, unread, _, _, _, _, inode, *_ in rows
        if inode != "0"  # one that waits to be accepted has none
    )


def test_what_is_being_scored_is_finished_before_the_service_stops(process, zipped, tmp_path):
    server, url = process(NOW_LEADERBOARD_TOKEN=OPERATOR)
    address = httpx.URL(url)
    sent, statuses = [], []

    def submit(content):
        with closing(HTTPConnection(address.host, address.port, timeout=60)) as client:
            headers = {"Authorization": f"Bearer {OPERATOR}"}
            client.request("PUT", "/v1/submissions", content, headers)
            sent.append(len(content))
            statuses.append(client.getresponse().status)

    threads = [threading.Thread(target=submit, args=(zipped(seed),)) for seed in range(6)]
    for thread in threads:
        thread.start()
    ends = time.monotonic() + 60
    while len(sent) < 6 or _taken(address.port) + len(statuses) < 6:
        assert time.monotonic() < ends
        time.sleep(0.005)
    server.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join()
    assert server.wait(30) == -signal.SIGTERM
    assert statuses == [201] * 6
    assert len(read_results([tmp_path / "store"])) == 6


def test_a_service_killed_while_it_scores_loses_nothing_that_it_acknowledged(
    process, zipped, tmp_path
):
    server, url = process(NOW_LEADERBOARD_TOKEN=OPERATOR)
    contents, kept, lock = [zipped(seed) for seed in range(10)], [], threading.Lock()

    def submit(content):
        headers = {"Authorization": f"Bearer {OPERATOR}"}
        try:
            answer = httpx.put(f"{url}/v1/submissions", content=content, headers=headers)
        except httpx.TransportError:
            return
        with lock:
            kept.append(answer.text)
            if len(kept) == 3:
                server.kill()

    at_once(submit, contents)
    assert server.wait(30) == -signal.SIGKILL
    assert len(kept) >= 3
    _, url = process(NOW_LEADERBOARD_TOKEN=OPERATOR)
    filed = {entry.result.to_json() for entry in read_results([tmp_path / "store"])}
    assert set(kept) <= filed
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    for content in contents:
        answer = httpx.put(f"{url}/v1/submissions", content=content, headers=headers, timeout=60)
        assert answer.status_code in {200, 201}
    assert len(read_results([tmp_path / "store"])) == 10
    assert list((tmp_path / "store" / "private" / "incoming").iterdir()) == []
