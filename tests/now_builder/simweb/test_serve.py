"""Every awkward kind behaves as it is named, over real connections."""

import gzip
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection

import pytest

from now_builder.program.web_server import serving
from now_builder.simweb.answer import Answers
from now_builder.simweb.make import make, read_world
from now_builder.simweb.settings import SimwebSettings
from now_builder.simweb.world import Page, World


class Response:
    """A response as it came over the wire."""

    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(status.split()[1])
        pairs = (line.partition(":") for line in lines)
        self.headers = {name.lower(): value.strip() for name, _, value in pairs}
        self.text = self.body.decode("latin-1")


@dataclass
class Web:
    """A simulated web that is being served."""

    world: World
    address: tuple[str, int]

    def page(self, kind: str) -> Page:
        return next(page for page in self.world.pages if page.kind == kind)

    def at(self, page: Page, target: str) -> str:
        return f"http://{self.world.sites[page.site].host}{target}"

    def send(self, text: str, *, most: int = 1 << 26, wait: float = 10) -> Response:
        with socket.create_connection(self.address, timeout=wait) as connection:
            connection.sendall(f"{text}\r\nConnection: close\r\n\r\n".encode())
            raw = b""
            while len(raw) < most and (part := connection.recv(1 << 16)):
                raw += part
        return Response(raw)

    def get(self, url: str, more: str = "", **options: float) -> Response:
        """Get a URL, or the first page of a kind."""
        url = url if ":" in url else self.page(url).url
        host, _, path = url.removeprefix("http://").partition("/")
        lines = f"GET /{path.partition('#')[0]} HTTP/1.1\r\nHost: {host}{more}"
        return self.send(lines, **options)


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    folder = tmp_path_factory.mktemp("simweb")
    make(folder, SimwebSettings(pages=300, awkward=60))
    with serving(Answers(read_world(folder))) as listening:
        host, _, port = listening.partition(":")
        yield Web(read_world(folder), (host, int(port)))


def test_a_page_is_served_whole_by_its_own_host(web: Web) -> None:
    page = web.page("page")
    answer = web.get(page.url)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert 'name="viewport"' in answer.text
    other = next(site.host for site in web.world.sites if site.number != page.site)
    assert web.get(f"http://{other}{page.target}").status == 404
    assert web.get("http://elsewhere.test/").status == 421


def test_pages_are_compressed_only_for_those_who_ask_and_have_pictures(web: Web) -> None:
    page = next(p for p in web.world.pages if p.kind == "page" and web.world.sites[p.site].gzip)
    plain, packed = web.get(page.url), web.get(page.url, "\r\nAccept-Encoding: gzip, br")
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    pages = ((page, web.get(page.url).text) for page in web.world.pages if page.kind == "page")
    page, text = next(pair for pair in pages if 'src="/pic/' in pair[1])
    target = text.split('src="')[1].split('"')[0]
    answer = web.get(web.at(page, target))
    assert answer.headers["content-type"] == "image/svg+xml"
    assert answer.text.startswith("<svg ")
    assert web.get(web.at(page, target[:6] + target[7:])).status == 404


def test_redirects_lead_to_a_page_in_one_hop_and_in_several_a_loop_to_its_start(web: Web) -> None:
    for kind, hops in (("redirect", 1), ("redirect_chain", 4)):
        page = web.page(kind)
        target = page.target
        for _ in range(hops):
            answer = web.get(web.at(page, target))
            assert answer.status in {301, 302, 303, 307, 308}
            target = answer.headers["location"]
        assert web.get(web.at(page, target)).status == 200
    page = web.page("redirect_loop")
    target, seen = page.target, []
    while target not in seen:
        seen.append(target)
        target = web.get(web.at(page, target)).headers["location"]
    assert target == page.target
    assert len(seen) == 3
    page = web.page("meta_refresh")
    first = web.get(page.url).text
    target = first.split('http-equiv="refresh" content="0;url=')[1].split('"')[0]
    second = web.get(web.at(page, target)).text
    assert "refresh" not in second
    assert second.split("<body>")[1] == first.split("<body>")[1]


def test_errors_and_answers_that_are_no_page_say_so(web: Web) -> None:
    assert web.get("not_found").status == 404
    assert web.get("server_error").status == 500
    empty = web.get("no_content")
    assert (empty.status, empty.body) == (204, b"")
    assert "content-length" not in empty.headers
    assert web.get("download").headers["content-disposition"].startswith("attachment")
    pdf = web.get("pdf")
    assert pdf.headers["content-type"] == "application/pdf"
    assert pdf.body.startswith(b"%PDF-")
    assert pdf.body.endswith(b"%%EOF\n")


def test_a_slow_page_takes_one_to_two_seconds_and_a_hanging_page_never_answers(web: Web) -> None:
    begun = time.monotonic()
    assert web.get("slow").status == 200
    assert 1 <= time.monotonic() - begun < 4
    late = Answers(web.world, latency_s=0.5).of("site00.test", "/")
    assert late.delay_s == 0.5
    with pytest.raises(TimeoutError):
        web.get("hanging", wait=1.5)


def test_an_endless_body_goes_on_a_truncated_one_breaks_off_a_huge_one_ends(web: Web) -> None:
    first = web.get("endless", most=5000)
    assert "content-length" not in first.headers
    further = web.get("endless", most=len(first.body) + 60_000)
    assert len(further.body) > len(first.body) + 40_000
    broken = web.get("truncated")
    assert len(broken.body) < int(broken.headers["content-length"])
    assert "</html>" not in broken.text
    assert "escription" in broken.text
    huge = web.get("huge")
    assert len(huge.body) > 2_000_000
    assert huge.text.count("<li>") > 5000


def test_robots_txt_forbids_the_robots_pages_and_duplicates_are_spellings_of_a_page(
    web: Web,
) -> None:
    page = web.page("robots")
    rules = web.get(web.at(page, "/robots.txt")).text
    assert page.target.startswith(rules.split("Disallow: ")[1].strip())
    assert web.get(page.url).status == 200
    duplicates = [page for page in web.world.pages if page.kind == "duplicate"]
    assert duplicates
    for page in duplicates:
        original = web.world.pages[page.original]
        assert page.url != original.url
        assert page.caption == original.caption
        assert web.get(page.url).body == web.get(original.url).body


def test_a_connection_is_kept_and_other_requests_than_get_have_no_body(web: Web) -> None:
    page = web.page("page")
    with closing(HTTPConnection(*web.address, timeout=10)) as connection:
        sockets, bodies = set(), set()
        for _ in range(3):
            host = web.world.sites[page.site].host
            connection.request("GET", page.target, headers={"Host": host})
            bodies.add(connection.getresponse().read())
            sockets.add(connection.sock)
    assert len(sockets) == len(bodies) == 1
    for line, status in [("HEAD / HTTP/1.1", 200), ("DELETE / HTTP/1.1", 405), ("hello", 400)]:
        answer = web.send(f"{line}\r\nHost: site00.test")
        assert (answer.status, answer.body) == (status, b"")
