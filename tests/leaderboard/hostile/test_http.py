"""Strangers at the door: who may do what, bodies that lie, secrets that stay, text that is text."""

import json
import logging
import socket
import sys
import threading
import time
from contextlib import suppress
from html.parser import HTMLParser
from urllib.parse import urlsplit

import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute

from leaderboard.service import guard
from leaderboard.service.access import Access, Public, check_routes, rule_of
from leaderboard.service.accounts import revoke_token, set_disabled
from leaderboard.service.guard import BODY_SECONDS, HEAD_SECONDS, LOG
from leaderboard.store.entries import read_results
from tests.leaderboard.conftest import OPERATOR_TOKEN as OPERATOR
from tests.leaderboard.conftest import at_once

PUBLIC = set()
RULES = {
    "PUT /v1/submissions": {"submit"},
    "POST /v1/validate": {"submit"},
    "GET /v1/me": {"read"},
    "GET /v1/submissions": {"read"},
    "GET /v1/entries/{name}": PUBLIC,
    "GET /v1/entries/{name}/result": PUBLIC,
    "POST /v1/entries/{name}/withdraw": {"admin", "submit"},
    "GET /v1/boards": PUBLIC,
    "GET /v1/boards/{board}": PUBLIC,
    "GET /v1/compare": PUBLIC,
    "GET /v1/schema/submission.json": PUBLIC,
    "GET /v1/schema/result.json": PUBLIC,
    "GET /healthz": PUBLIC,
    "GET /metrics": PUBLIC,
    "GET /openapi.json": PUBLIC,
    "GET /{path:path}": PUBLIC,
}
XSS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</style><svg onload=alert(1)>",
    "{{7*7}}${7*7}<%=7*7%>",
    "javascript:alert(1)",
    "<!--<a href=javascript:alert(1)>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "=HYPERLINK(1)|'\\input{x}`[a](javascript:b)",
)


def _routes(app):
    return [route for route in app.routes if isinstance(route, APIRoute)]


def _name(route):
    assert len(route.methods) == 1
    return f"{next(iter(route.methods))} {route.path}"


def test_every_route_declares_who_may_call_it_and_here_is_the_list(plain):
    assert len(_routes(plain.app)) == len(plain.app.routes), "a route that FastAPI does not guard"
    declared = {
        _name(route): set(getattr(rule_of(route), "scopes", PUBLIC)) for route in plain.app.routes
    }
    assert declared == RULES


def test_an_app_with_a_route_that_nobody_thought_about_cannot_be_made():
    bare = APIRouter()

    @bare.get("/v1/secrets")
    def _secrets():
        return "all of them"

    with pytest.raises(ValueError, match="/v1/secrets"):
        check_routes(bare.routes)


def _expected(rule, role, route):
    if isinstance(rule, Public):
        return {"open"}
    assert isinstance(rule, Access)
    if role["scopes"] is None:
        return {401}
    if not rule.scopes & set(role["scopes"]):
        return {403}
    if route == "POST /v1/entries/{name}/withdraw" and role.get("stranger"):
        return {403}
    return {"open"}


def test_each_role_reaches_exactly_what_the_rules_say(plain, zipped):
    board = plain
    ann = board.token("ann", "read", "submit")
    entry = board.put(zipped(), ann).headers["location"].rpartition("/")[2]
    expired, revoked = board.token("ann", seconds=0.5), board.token("ann")
    disabled = board.token("gone", "read", "submit", "admin")
    set_disabled(board.service.database, "gone")
    revoke_token(board.service.database, revoked.split("_")[1])
    roles = {
        "anonymous": {"token": None, "scopes": None},
        "nonsense": {"token": "nonsense", "scopes": None},
        "typing error": {"token": ann[:-1] + ("0" if ann[-1] != "0" else "1"), "scopes": None},
        "expired": {"token": expired, "scopes": None},
        "revoked": {"token": revoked, "scopes": None},
        "disabled": {"token": disabled, "scopes": None},
        "read": {"token": board.token("ann", "read"), "scopes": ["read"]},
        "submit": {"token": board.token("ann", "submit"), "scopes": ["submit"]},
        "other": {
            "token": board.token("bob", "read", "submit"),
            "scopes": ["read", "submit"],
            "stranger": True,
        },
        "admin": {"token": board.token("eve", "admin"), "scopes": ["admin"]},
        "operator": {"token": OPERATOR, "scopes": ["read", "submit", "admin"]},
    }
    time.sleep(0.6)
    filled = {"name": entry, "board": "jieba", "path:path": ""}
    for route in _routes(board.app):
        method, path = _name(route).split(" ")
        for field, value in filled.items():
            path = path.replace(f"{{{field}}}", value)
        body = {"reason": "why"} if path.endswith("withdraw") else {}
        for name, role in roles.items():
            answer = board.call(method, path, role["token"], json=body if method != "GET" else None)
            found = answer.status_code if answer.status_code in {401, 403} else "open"
            assert {found} == _expected(rule_of(route), role, _name(route)), (name, method, path)
            assert answer.status_code < 500


def _talk(board, request, *, pause=0.0, timeout=10.0):
    """Send bytes as they are; give what comes back until the other side closes or is silent."""
    parts = urlsplit(board.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=timeout) as line:
        for piece in [request] if isinstance(request, bytes) else request:
            line.sendall(piece)
            time.sleep(pause)
        answer = b""
        while b"\r\n\r\n" not in answer:
            piece = line.recv(65536)
            if not piece:
                break
            answer += piece
        return answer


def _head(board, *lines, token=OPERATOR):
    host = urlsplit(board.url).netloc
    return "\r\n".join(
        (
            "PUT /v1/submissions HTTP/1.1",
            f"Host: {host}",
            f"Authorization: Bearer {token}",
            *lines,
            "",
            "",
        )
    ).encode()


def _left(board):
    return list(board.service.incoming.iterdir())


def test_thirty_megabytes_of_a_stranger_are_refused_after_the_headers(plain):
    started = time.perf_counter()
    answer = _talk(plain, _head(plain, "Content-Length: 31457280", token="nobody"))
    assert answer.startswith(b"HTTP/1.1 401")
    assert time.perf_counter() - started < 5
    assert _left(plain) == []


def test_what_the_headers_announce_is_refused_before_it_is_sent(plain):
    answer = _talk(plain, _head(plain, "Content-Length: 9999999999"))
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in answer.lower()
    for length in ("-1", "abc", "1, 2", "1e9"):
        answer = _talk(plain, _head(plain, f"Content-Length: {length}"))
        assert answer.startswith(b"HTTP/1.1 400"), length
    both = ("Content-Length: 5", "Content-Length: 6")
    assert _talk(plain, _head(plain, *both)).startswith(b"HTTP/1.1 400")


def test_a_chunked_body_is_counted_and_an_honest_one_is_scored(plain, zipped):
    content = zipped()
    chunks = [content[start : start + 500] for start in range(0, len(content), 500)]
    assert plain.put(iter(chunks)).status_code == 201
    limit = plain.service.settings.judge.max_bytes
    head = _head(plain, "Transfer-Encoding: chunked")
    chunk = b"100000\r\n" + bytes(2**20) + b"\r\n"

    def endless():
        yield head
        for _ in range(limit // 2**20 + 1):
            yield chunk

    assert _talk(plain, endless()).startswith(b"HTTP/1.1 413")
    assert _left(plain) == []


def test_a_length_that_lies_files_nothing(plain, zipped, tmp_path):
    content = zipped()
    short = _talk(plain, _head(plain, f"Content-Length: {len(content) - 7}") + content)
    assert short.startswith(b"HTTP/1.1 422")
    parts = urlsplit(plain.url)
    with socket.create_connection((parts.hostname, parts.port)) as line:
        line.sendall(_head(plain, f"Content-Length: {len(content) + 7}") + content)
    _until(lambda: _left(plain) == [])
    assert list((tmp_path / "store").glob("results/*")) == []
    assert plain.put(content).status_code == 201


def test_a_slow_body_is_cut_off(plain, monkeypatch):
    assert BODY_SECONDS > 10
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.5)

    def drip():
        yield _head(plain, "Content-Length: 5000")
        for _ in range(8):
            yield b"x"

    assert _talk(plain, drip(), pause=0.1).startswith(b"HTTP/1.1 408")
    head = _head(plain, "Content-Length: 50").replace(
        b"PUT /v1/sub", b"POST /v1/entries/x/withdraw?"
    )
    assert _talk(plain, [head, b"{"]).startswith(b"HTTP/1.1 408")
    assert _left(plain) == []


@pytest.mark.parametrize("start", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nX: "])
def test_a_slow_head_is_cut_off_on_new_connections_and_later(plain, monkeypatch, start):
    assert HEAD_SECONDS > 10
    monkeypatch.setattr(guard, "HEAD_SECONDS", 0.3)
    drops = [start, b"x", b"x", b"x"] if start else []
    assert _cut_off(plain, drops) == b""
    whole = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    assert _cut_off(plain, [whole, *drops]).startswith(b"HTTP/1.1 200")


def _cut_off(board, pieces):
    """Send pieces with pauses and wait for the end; give what came back."""
    parts = urlsplit(board.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as line:
        with suppress(OSError):
            for piece in pieces:
                line.sendall(piece)
                time.sleep(0.15)
        answer = b""
        with suppress(ConnectionResetError):
            while piece := line.recv(65536):
                answer += piece
        return answer


@pytest.mark.parametrize("before", [b"", b"3\r\nabc\r\n"])
@pytest.mark.parametrize(
    "line", [b"3;x=%b\r\nabc\r\n0\r\n\r\n", b"3;x=%b", b"0%b3\r\nabc\r\n0\r\n\r\n"]
)
@pytest.mark.parametrize("size", [70_000, 1_000_000])
def test_chunks_with_long_lines_are_refused_at_once(plain, line, before, size):
    head = _head(plain, "Transfer-Encoding: chunked", "Connection: close")
    answer = _cut_off(plain, [head + before + line % (size * b"0")])
    assert answer[9:12] in {b"400", b"422", b""}
    assert _left(plain) == []


def test_who_hangs_up_leaves_nothing_behind(plain, zipped, tmp_path):
    parts, content = urlsplit(plain.url), zipped()
    for _ in range(20):
        with socket.create_connection((parts.hostname, parts.port)) as line:
            line.sendall(_head(plain, f"Content-Length: {len(content)}") + content[:1000])
    idle = "now_uploads_in_progress 0.0"
    _until(lambda: _left(plain) == [] and idle in plain.call("GET", "/metrics").text)
    assert list((tmp_path / "store").glob("results/*")) == []


def test_a_small_route_takes_no_large_body_from_anybody(plain):
    path, body = "/v1/entries/x/withdraw", b'{"reason": "' + bytes(2**17) + b'"}'
    headers = {"Content-Type": "application/json"}
    for token in (None, OPERATOR):
        for content in (body, iter([body])):
            answer = plain.call("POST", path, token, content=content, headers=headers)
            assert answer.status_code == 413
    deep = b"[" * 50_000
    answer = plain.call("POST", path, OPERATOR, content=deep, headers=headers)
    assert answer.status_code in {400, 422}


@pytest.mark.parametrize("text", ["\\ud800", "x\\udfff", "\\u0000"])
def test_text_that_no_database_holds_is_refused_and_no_fault(board, zipped, text):
    entry = board.put(zipped()).headers["location"]
    for path, body in (
        (entry, f'{{"reason": "{text}"}}'),
        (entry, f'{{"reason": "bo", "{text}": 1}}'),
        (entry, f'"{text}"'),
        ("/v1/entries/%00", '{"reason": "bo"}'),
    ):
        headers = {"Content-Type": "application/json"}
        answer = board.call("POST", f"{path}/withdraw", OPERATOR, content=body, headers=headers)
        assert answer.status_code in {404, 422}, body


def test_requests_that_say_two_things_reach_no_other_route(plain, zipped):
    """Two lengths, a long extension of a chunk, a method in a header, another host."""
    smuggled = b"0\r\n\r\nGET /v1/submissions HTTP/1.1\r\nHost: x\r\n\r\n"
    head = _head(plain, "Content-Length: 4", "Transfer-Encoding: chunked")
    assert _talk(plain, head + smuggled)[:12] in {b"HTTP/1.1 400", b"HTTP/1.1 422"}
    tiny = b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n"
    answer = _talk(plain, _head(plain, "Transfer-Encoding: chunked") + tiny)
    assert answer.startswith(b"HTTP/1.1 422")
    many = b"".join(b"X-%d: y\r\n" % number for number in range(20_000))
    answer = _talk(plain, b"GET / HTTP/1.1\r\nHost: x\r\n" + many + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 400")
    override = {"X-HTTP-Method-Override": "PUT"}
    answer = plain.call("POST", "/v1/submissions", OPERATOR, headers=override, content=zipped())
    assert answer.status_code == 405
    host = b'evil.test"><script>'
    assert host not in _talk(plain, b"GET / HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")


@pytest.mark.parametrize(
    "name",
    [
        "....//",
        "../../etc/passwd",
        "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "..%5c..%5cwin.ini",
        "a" * 4000,
        "%00",
        "con\u202egnp",
        "*",
        "%3F(a)",
        "private",
        "board.sqlite",
    ],
)
def test_a_name_that_is_a_path_leads_nowhere(plain, zipped, name):
    plain.put(zipped())
    for path in ("/v1/entries/{}", "/v1/entries/{}/result", "/entries/{}", "/results/{}", "/{}"):
        answer = plain.call("GET", path.format(name))
        assert answer.status_code in {404, 400}, (path, answer.text)
        assert "root:" not in answer.text
    for path in ("/private/board.sqlite", "/../private/board.sqlite", "/.gitignore", "/filings/"):
        assert plain.call("GET", path).status_code == 404
    answer = plain.call(
        "POST", f"/v1/entries/{name}/withdraw", OPERATOR, json={"reason": "because"}
    )
    assert answer.status_code in {404, 405, 400}


def test_tokens_are_in_no_log_no_answer_and_no_file(plain, zipped, tmp_path, caplog):
    LOG.setLevel(logging.INFO)
    with caplog.at_level(logging.DEBUG):
        secret = plain.token("ann")
        answers = [
            plain.put(zipped(), secret),
            plain.put(b"nonsense", secret),
            plain.put(secret.encode(), secret),
            plain.call("GET", f"/v1/me?token={secret}", secret),
            plain.call("GET", f"/{secret}"),
            plain.call("GET", f"/v1/entries/{secret}"),
            plain.call("GET", "/metrics"),
            plain.call("GET", "/v1/submissions", OPERATOR),
        ]
    ours = [record for record in caplog.records if not record.name.startswith("http")]
    lines = [record.getMessage() for record in ours if record.name == LOG.name]
    assert len(lines) >= len(answers)
    for line in lines:
        assert set(json.loads(line)) == {"at", "method", "path", "status", "bytes", "ms"}
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("store/**/*") if path.is_file())
    for token in (secret, OPERATOR):
        assert not any(token in record.getMessage() for record in ours)
        assert token.encode() not in kept
        for answer in answers:
            assert token not in answer.text
            assert token not in str(answer.headers)


def test_a_fault_says_nothing_of_itself(plain, monkeypatch, caplog):
    def fail():
        raise RuntimeError("the password is swordfish")

    monkeypatch.setattr(plain.service.pages, "snapshot", fail)
    answer = plain.call("GET", "/v1/boards")
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert "frame-ancestors" in answer.headers["content-security-policy"]
    assert "swordfish" not in answer.text + caplog.text
    assert "RuntimeError" in caplog.text


class _Page(HTMLParser):
    """Finds what could run: scripts, handlers, odd addresses."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        if tag in {"script", "iframe", "object", "embed", "base", "form"}:
            self.found.append(tag)
        for name, value in attributes:
            if name.startswith("on") or "javascript:" in (value or "").lower().replace(" ", ""):
                self.found.append(f"{tag} {name}={value}")


@pytest.mark.parametrize("text", XSS)
def test_text_of_strangers_stays_text(plain, zipped, text):
    details = {
        "authors": [text],
        "affiliation": text[:120],
        "training": {"external_data": text, "pretrained_backbones": [text]},
        "postprocessing": {"kind": "per_query", "description": text},
        "compute": {"hardware": text},
    }
    entry = plain.put(zipped(0, text, **details)).headers["location"]
    name = entry.rpartition("/")[2]
    for path in ("/", f"/entries/{name}.html"):
        page = _Page()
        answer = plain.call("GET", path)
        page.feed(answer.text)
        own = [tag for tag in page.found if tag != "script"]
        assert own == [], path
        assert "script-src 'unsafe" not in answer.headers["content-security-policy"]
        assert text not in answer.text or not set(text) & set("<>\"'&")
    plain.call("POST", f"{entry}/withdraw", OPERATOR, json={"reason": text})
    for path in (entry, f"{entry}/result", "/v1/boards/jieba", "/v1/submissions"):
        answer = plain.call("GET", path, OPERATOR)
        gone = answer.status_code == 410
        assert answer.headers["content-type"] == f"application/{'problem+' if gone else ''}json"
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_no_address_that_a_user_gives_is_ever_visited(board, zipped):
    reached = []

    def watch(event, arguments):
        if not stopped.is_set() and event in {"socket.connect", "socket.getaddrinfo"}:
            reached.append((event, str(arguments)))

    stopped = threading.Event()
    sys.addaudithook(watch)
    port = urlsplit(board.url).port
    links = {
        "paper": "https://169.254.169.254/latest/meta-data/",
        "code": "https://canary.example/code",
        "weights": "https://127.0.0.1.nip.io/",
        "model_card": "https://canary.example/card",
    }
    answer = board.put(zipped(links=links))
    assert answer.status_code == 201
    for path in ("/", board.call("GET", answer.headers["location"]).json()["page"]):
        assert board.call("GET", path).status_code == 200
    stopped.set()
    assert reached, "the watch sees this very test connect"
    # Our own calls to the board; PostgreSQL stands behind a file.
    known = (f"'127.0.0.1', {port}", "now-pg")
    strange = [what for what in reached if not any(own in what[1] for own in known)]
    assert strange == []


def test_more_uploads_at_once_than_the_quota_allows(make_board, database_url, zipped, tmp_path):
    board = make_board(database_url, scored=3, attempts=15)
    ann, contents = board.token("ann"), [zipped(seed) for seed in range(18)]
    answers = at_once(lambda content: board.put(content, ann), contents)
    assert sorted(answer.status_code for answer in answers) == [201] * 3 + [429] * 15
    assert len(read_results([tmp_path / "store"])) == 3
    quota = board.call("GET", "/v1/me", ann).json()["quota"]
    assert (quota["attempts"], quota["scored"]) == (0, 0)


def _until(fine):
    for _ in range(500):
        if fine():
            return
        time.sleep(0.01)
    pytest.fail("it never came to be")
