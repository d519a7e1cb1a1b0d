"""Every awkward kind behaves as it is named, over real connections."""

import gzip
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest

from now_builder.errors import NowError
from now_builder.simweb.make import make, read_world
from now_builder.simweb.serve import serve, serving
from now_builder.simweb.settings import SimwebSettings
from now_builder.simweb.world import Page, World


class Response:
    """A response as it came over the wire."""

    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split()[1])
        self.headers = {
            line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in lines[1:]
        }


Get = Callable[..., Response]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simweb")
    make(folder, SimwebSettings(pages=300, awkward=60))
    return folder


@pytest.fixture(scope="module")
def world(folder: Path) -> World:
    return read_world(folder)


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[tuple[str, int]]:
    with serving(folder) as listening:
        host, _, port = listening.partition(":")
        yield host, int(port)


def receive(connection: socket.socket, most: int = 1 << 26) -> Response:
    """Read until the other side ends, or as much as is asked for."""
    raw = b""
    while len(raw) < most and (part := connection.recv(1 << 16)):
        raw += part
    return Response(raw)


@pytest.fixture
def get(address: tuple[str, int]) -> Get:
    def fetch(url: str, *, most: int = 1 << 26, wait: float = 10, more: str = "") -> Response:
        host, _, path = url.removeprefix("http://").partition("/")
        request = f"GET /{path.partition('#')[0]} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
        with socket.create_connection(address, timeout=wait) as connection:
            connection.sendall(f"{request}{more}\r\n".encode())
            return receive(connection, most)

    return fetch


def of_kind(world: World, kind: str) -> Page:
    return next(page for page in world.pages if page.kind == kind)


def host_of(page: Page, world: World) -> str:
    return world.sites[page.site].host


def test_a_page_is_served_whole_by_its_own_host(world: World, get: Get) -> None:
    page = of_kind(world, "page")
    answer = get(page.url)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert b'name="viewport"' in answer.body
    other = next(site.host for site in world.sites if site.number != page.site)
    assert get(page.url.replace(host_of(page, world), other)).status == 404
    assert get("http://elsewhere.test/").status == 421


def test_pages_are_compressed_only_for_those_who_ask(world: World, get: Get) -> None:
    page = next(p for p in world.pages if p.kind == "page" and world.sites[p.site].gzip)
    plain, packed = get(page.url), get(page.url, more="Accept-Encoding: gzip, br\r\n")
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body


def test_pictures_of_a_page_can_be_fetched_and_name_no_topic(world: World, get: Get) -> None:
    for page in (page for page in world.pages if page.kind == "page"):
        body = get(page.url).body.decode("latin-1")
        if 'src="/pic/' in body:
            target = body.split('src="')[1].split('"')[0]
            answer = get(f"http://{host_of(page, world)}{target}")
            assert answer.headers["content-type"] == "image/svg+xml"
            assert answer.body.startswith(b"<svg ")
            assert get(f"http://{host_of(page, world)}{target[:6]}{target[7:]}").status == 404
            return
    pytest.fail("no page with an image file")


def test_redirects_lead_to_a_page_in_one_hop_and_in_several(world: World, get: Get) -> None:
    for kind, hops in (("redirect", 1), ("redirect_chain", 4)):
        page = of_kind(world, kind)
        target = page.target
        for _ in range(hops):
            answer = get(f"http://{host_of(page, world)}{target}")
            assert answer.status in {301, 302, 303, 307, 308}
            target = answer.headers["location"]
        assert get(f"http://{host_of(page, world)}{target}").status == 200


def test_a_redirect_loop_comes_back_to_its_start(world: World, get: Get) -> None:
    page = of_kind(world, "redirect_loop")
    target, seen = page.target, []
    while target not in seen:
        seen.append(target)
        target = get(f"http://{host_of(page, world)}{target}").headers["location"]
    assert target == page.target
    assert len(seen) == 3


@pytest.mark.parametrize(("kind", "status"), [("not_found", 404), ("server_error", 500)])
def test_errors_come_with_their_status(kind: str, status: int, world: World, get: Get) -> None:
    assert get(of_kind(world, kind).url).status == status


def test_answers_that_are_no_page_say_so(world: World, get: Get) -> None:
    empty = get(of_kind(world, "no_content").url)
    assert (empty.status, empty.body) == (204, b"")
    assert "content-length" not in empty.headers
    download = get(of_kind(world, "download").url)
    assert download.headers["content-disposition"].startswith("attachment")
    pdf = get(of_kind(world, "pdf").url)
    assert pdf.headers["content-type"] == "application/pdf"
    assert pdf.body.startswith(b"%PDF-")
    assert pdf.body.endswith(b"%%EOF\n")


def test_a_slow_page_takes_one_to_two_seconds_and_a_hanging_page_never_answers(
    world: World, get: Get
) -> None:
    begun = time.monotonic()
    assert get(of_kind(world, "slow").url).status == 200
    assert 1 <= time.monotonic() - begun < 4
    with pytest.raises(TimeoutError):
        get(of_kind(world, "hanging").url, wait=1.5)


def test_an_endless_body_goes_on_and_a_truncated_one_breaks_off(world: World, get: Get) -> None:
    page = of_kind(world, "endless")
    first = get(page.url, most=5000)
    assert "content-length" not in first.headers
    assert len(get(page.url, most=len(first.body) + 60_000).body) > len(first.body) + 40_000

    answer = get(of_kind(world, "truncated").url)
    assert len(answer.body) < int(answer.headers["content-length"])
    assert b"</html>" not in answer.body
    assert b"escription" in answer.body


def test_robots_txt_forbids_what_the_robots_pages_are(world: World, get: Get) -> None:
    page = of_kind(world, "robots")
    rules = get(f"http://{host_of(page, world)}/robots.txt").body.decode()
    assert rules.splitlines()[0] == "User-agent: *"
    assert page.target.startswith(rules.split("Disallow: ")[1].strip())
    assert get(page.url).status == 200


def test_duplicates_are_other_spellings_of_a_page(world: World, get: Get) -> None:
    duplicates = [page for page in world.pages if page.kind == "duplicate"]
    assert duplicates
    for page in duplicates:
        original = world.pages[page.original]
        assert page.url != original.url
        assert page.caption == original.caption
        assert get(page.url).body == get(original.url).body


def test_a_refresh_leads_once_to_the_same_page_without_one(world: World, get: Get) -> None:
    page = of_kind(world, "meta_refresh")
    first = get(page.url).body.decode("latin-1")
    target = first.split('http-equiv="refresh" content="0;url=')[1].split('"')[0]
    second = get(f"http://{host_of(page, world)}{target}").body.decode("latin-1")
    assert "refresh" not in second
    assert second.split("<body>")[1] == first.split("<body>")[1]


def test_a_huge_page_has_megabytes_and_many_elements(world: World, get: Get) -> None:
    body = get(of_kind(world, "huge").url).body
    assert len(body) > 2_000_000
    assert body.count(b"<li>") > 5000


def test_descriptions_stand_where_their_kind_says(world: World, get: Get) -> None:
    body = {
        kind: get(of_kind(world, kind).url).body.decode("latin-1")
        for kind in ("body_description", "late_description", "og_only", "no_description", "dialog",
                     "script_loop", "legacy_late", "empty_description")
    }  # fmt: skip
    low = {kind: text.lower() for kind, text in body.items()}
    assert low["body_description"].index("description") > low["body_description"].index("<body>")
    late = low["late_description"]
    assert 1024 < late.index("description") < late.index("<body>")
    assert 'property="og:description"' in low["og_only"]
    assert '="description"' not in low["og_only"]
    assert "description" not in low["no_description"]
    assert "alert(" in low["dialog"]
    assert "while(1)" in low["script_loop"]
    assert low["legacy_late"].index("charset") > 1024
    assert 'content=""' in low["empty_description"]


def test_a_connection_is_kept_for_further_requests(world: World, address: tuple[str, int]) -> None:
    page = of_kind(world, "page")
    request = f"GET {page.target} HTTP/1.1\r\nHost: {host_of(page, world)}\r\n\r\n".encode()
    with socket.create_connection(address, timeout=10) as connection:
        sizes = []
        for _ in range(3):
            connection.sendall(request)
            raw = connection.recv(1 << 16)
            while b"\r\n\r\n" not in raw:
                raw += connection.recv(1 << 16)
            answer = Response(raw)
            left = int(answer.headers["content-length"]) - len(answer.body)
            while left > 0:
                left -= len(connection.recv(min(left, 1 << 16)))
            sizes.append(answer.headers["content-length"])
    assert len(set(sizes)) == 1


@pytest.mark.parametrize(
    ("line", "status"), [("HEAD / HTTP/1.1", 200), ("DELETE / HTTP/1.1", 405), ("hello", 400)]
)
def test_other_requests_than_get_are_answered_without_a_body(
    address: tuple[str, int], line: str, status: int
) -> None:
    with socket.create_connection(address, timeout=10) as connection:
        head = f"{line}\r\nHost: site00.test\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode())
        answer = receive(connection)
    assert (answer.status, answer.body) == (status, b"")


def test_hundreds_of_connections_are_served_while_others_hang(world: World, get: Get) -> None:
    """A page is fetched by many at once; hanging connections hold nobody up."""
    hanging, page = of_kind(world, "hanging").url, of_kind(world, "page").url
    statuses: list[int] = []

    def hang() -> None:
        with pytest.raises(TimeoutError):
            get(hanging, wait=3)

    def fetch() -> None:
        statuses.append(get(page, wait=100).status)

    threads = [Thread(target=do) for do in [hang] * 60 + [fetch] * 300]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 300


def test_serve_says_when_it_listens_and_stops_when_told(tmp_path: Path) -> None:
    make(tmp_path, SimwebSettings(pages=20))
    code = (
        "import sys; from pathlib import Path; from now_builder.simweb.serve import serve\n"
        "at = Path(sys.argv[1])\n"
        "serve(at, 0, ready_file=at / 'address', latency_s=0.5, access_log=at / 'requests.txt')"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "address").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        host, _, port = (tmp_path / "address").read_text("utf-8").partition(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            asked = time.monotonic()
            connection.sendall(b"GET / HTTP/1.1\r\nHost: site00.test\r\nConnection: close\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
            assert time.monotonic() - asked >= 0.5
        assert (tmp_path / "requests.txt").read_text("utf-8") == "site00.test/\n"
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(20) == 0
        assert f"{host}:{port}" in process.stdout.read()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_port_that_is_taken_is_the_users_mistake(tmp_path: Path) -> None:
    make(tmp_path, SimwebSettings(pages=10))
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(NowError, match="--port"):
        serve(tmp_path, taken.getsockname()[1])
