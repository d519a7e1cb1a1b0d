"""The service: pages, one way in, and what it refuses, over a real socket."""

import contextlib
import socket
import threading
import time

import httpx
import pytest
import uvicorn

from leaderboard.page import Site
from leaderboard.server import make_app, make_judge, read_token
from leaderboard.store import read_results
from now_builder.errors import ConfigError

TOKEN = "a-token-for-the-tests-only"
AUTH = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def serving():
    """Start apps on free ports of loopback; give their addresses."""
    servers = []

    def start(app):
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        servers.append((server, thread, listener))
        while not server.started:
            time.sleep(0.01)
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for server, thread, listener in servers:
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture
def judge(release):
    return make_judge(release, None, TOKEN)


@pytest.fixture
def board(serving, tmp_path, judge):
    return serving(make_app(tmp_path / "store", judge))


def _is_problem(answer, status):
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    tree = answer.json()
    assert tree["status"] == status
    assert set(tree) == {"type", "title", "status", "detail"}
    return tree["detail"]


def test_a_submission_is_scored_filed_and_shown(board, packed, tmp_path):
    first = httpx.put(f"{board}/v1/submissions", content=packed.read_bytes(), headers=AUTH)
    assert first.status_code == 201
    assert first.json()["method"]["name"] == "Mine"
    again = httpx.put(f"{board}/v1/submissions", content=packed.read_bytes(), headers=AUTH)
    assert (again.status_code, again.text) == (200, first.text)
    entries = read_results([tmp_path / "store"])
    assert [entry.result.to_json() for entry in entries] == [first.text]
    page = httpx.get(board + first.headers["location"])
    assert "Mine" in page.text
    assert httpx.get(f"{board}/results/{entries[0].name}.json").text == first.text


def test_the_pages_are_those_of_the_static_site(board, tmp_path):
    page = httpx.get(f"{board}/")
    assert page.text == httpx.get(f"{board}/index.html").text == Site([]).get("index.html")[0]
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert httpx.head(f"{board}/").status_code == 200
    assert httpx.get(f"{board}/healthz").json()["status"] == "ok"


@pytest.mark.parametrize(
    "value", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, "Bearer é"]
)
def test_without_the_token_nothing_is_read(board, packed, tmp_path, value):
    headers = {"Authorization": value.encode("utf-8")}
    answer = httpx.put(f"{board}/v1/submissions", content=packed.read_bytes(), headers=headers)
    assert TOKEN not in _is_problem(answer, 401)
    assert answer.headers["www-authenticate"] == "Bearer"
    assert list((tmp_path / "store").glob("results/*")) == []


def test_a_body_over_the_cap_is_refused_with_and_without_a_length(board, judge):
    url = f"{board}/v1/submissions"
    _is_problem(httpx.put(url, content=bytes(judge.max_bytes + 1), headers=AUTH), 413)

    def endless():
        for _ in range(200):
            yield bytes(2**16)

    # The server may hang up while we are still sending.
    with contextlib.suppress(httpx.WriteError, httpx.ReadError):
        _is_problem(httpx.put(url, content=endless(), headers=AUTH), 413)


def test_a_refused_submission_says_why_and_is_not_filed(board, tmp_path):
    answer = httpx.put(f"{board}/v1/submissions", content=b"PK not really", headers=AUTH)
    assert "expected a zip" in _is_problem(answer, 422)
    assert str(tmp_path) not in answer.text
    assert list((tmp_path / "store").glob("results/*")) == []


def test_what_is_not_there_is_a_problem_too(board):
    for path in ("/nothing", "/../../etc/passwd", "/entries/%2e%2e/index.html", "/docs"):
        _is_problem(httpx.get(board + path), 404)
    for method in ("POST", "DELETE", "PATCH"):
        _is_problem(httpx.request(method, f"{board}/v1/submissions"), 405)


def test_a_board_without_a_release_is_read_only(serving, tmp_path, packed):
    board = serving(make_app(tmp_path / "store"))
    answer = httpx.put(f"{board}/v1/submissions", content=packed.read_bytes(), headers=AUTH)
    assert "read-only" in _is_problem(answer, 403)


def test_many_at_once_are_neither_lost_nor_doubled(board, packed, tmp_path):
    answers = []

    def submit():
        content = packed.read_bytes()
        answers.append(httpx.put(f"{board}/v1/submissions", content=content, headers=AUTH))

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    assert len({answer.text for answer in answers}) == 1
    assert len(list((tmp_path / "store").glob("results/*"))) == 1


def test_a_token_is_needed_long_and_never_kept(tmp_path, monkeypatch, release):
    monkeypatch.delenv("NOW_LEADERBOARD_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="NOW_LEADERBOARD_TOKEN"):
        read_token(None)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert read_token(tmp_path / "token") == TOKEN
    with pytest.raises(ConfigError, match="found 5 characters"):
        make_judge(release, None, "short")
    assert TOKEN not in repr(make_judge(release, None, TOKEN))


def test_the_cap_follows_the_release(judge):
    """24 test pairs: 8 bytes for each of 24 x 24 numbers, and room for the description."""
    assert 24 * 24 * 8 < judge.max_bytes < 24 * 24 * 8 + 5 * 2**20
