"""A pinned web answers as the servers do from which its sites come."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from http.client import HTTPConnection

import pytest

from now_builder.errors import FormatError
from now_builder.pinned.git import Source
from now_builder.pinned.make import make
from now_builder.pinned.serve import PinnedAnswers, serve
from tests.now_builder.pinned.conftest import Mirrors, page

FILES = {
    "index.html": page("home"), "about.html": page("about"), "docs/index.html": page("docs"),
    "old/index.htm": page("old"), "both.html": page("both"), "both/index.html": page("folder"),
    "404.html": "lost", "robots.txt": "User-agent: *", "s.css": "", "s.JS": "", "p.webp": "",
    "f.woff2": "", "a.tar.gz": "", "no-ending": "", "empty/x.txt": "", "d é/index.html": page("é"),
}  # fmt: skip


@pytest.fixture(scope="module")
def web(tmp_path_factory):
    place = tmp_path_factory.mktemp("pinned")
    mirrors = Mirrors(place / "mirrors")
    mirrors.add("ann/Project", FILES)
    mirrors.add("bob/bob.github.io", {"index.html": page("bob")}, host="bob.bob.test")
    mirrors.add("bob/none", {"index.html": "x"})
    make(place / "web", mirrors.write(place / "list.csv"), source=Source(mirrors.folder))
    (place / "web" / "project.ann.test" / "out.txt").symlink_to("/etc/passwd")
    (place / "web" / "project.ann.test" / "outer").symlink_to("/etc")
    return place / "web"


ANSWERS = (
    [
        ("/", 200, "home"), ("/index.html?x=1", 200, "home"), ("/about", 200, "about"),
        ("/about.html", 200, "about"), ("/docs", 301, "/docs/"), ("/docs?a=1", 301, "/docs/?a=1"),
        ("/docs/", 200, "docs"), ("//docs//", 200, "docs"), ("//docs", 301, "/docs/"),
        ("/old/", 200, "old"), ("/both", 200, "both"), ("/both/", 200, "folder"),
        ("/d%20%C3%A9", 301, "/d%20%C3%A9/"), ("/d%20%C3%A9/", 200, "é"), ("/lost", 404, "lost"),
        ("/about/", 404, "lost"), ("/empty", 404, "lost"), ("/empty/", 404, "lost"),
        ("/robots.txt", 200, "User-agent"), ("/Project/about", 200, "about"),
        ("/project/docs", 301, "/project/docs/"), ("/Project/", 200, "home"),
        ("/Project", 301, "/Project/"), ("/Project?a=1", 301, "/Project/?a=1"),
        ("/out.txt", 404, "lost"), ("/outer/passwd", 404, "lost"), ("/..", 404, "lost"),
        ("/../sites.csv", 404, "lost"), ("/%2e%2e/sites.csv", 404, "lost"),
        ("/..%2fsites.csv", 404, "lost"), ("/%00", 404, "lost"), ("/%ff", 404, "lost"),
        ("/" + "x" * 5000, 404, "lost"), ("", 200, "home"),
    ]
)  # fmt: skip
TYPES = {
    "/": "text/html", "/s.css": "text/css", "/s.JS": "text/javascript", "/p.webp": "image/webp",
    "/f.woff2": "font/woff2", "/robots.txt": "text/plain", "/lost": "text/html",
    "/a.tar.gz": "application/octet-stream", "/no-ending": "application/octet-stream",
}  # fmt: skip


def test_a_path_is_answered_as_a_server_of_pages_does(web):
    answers = PinnedAnswers(web)
    for path, status, holds in ANSWERS:
        answer = answers.of("Project.ann.test:80", path)
        assert answer.status == status, path
        said = dict(answer.headers)["Location"] if status == 301 else answer.body.decode()
        assert holds in said, path
    types = {path: answers.of("project.ann.test", path).content_type for path in TYPES}
    assert types == TYPES
    assert b"bob" in answers.of("bob.bob.test.", "/").body
    assert answers.of("bob.bob.test", "/about").status == 404
    assert {answers.of(host, "/").status for host in ("none.bob.test", "", "..")} == {421}


def test_a_site_made_later_is_served_too_and_a_file_that_is_gone_is_absent(web, tmp_path):
    """Else a crawl of the longer list ends with a row of http_421 for each of its pages."""
    copy = shutil.copytree(web, tmp_path / "web", symlinks=True)
    answers, table = PinnedAnswers(copy), copy / "sites.csv"
    shutil.copytree(copy / "bob.bob.test", copy / "new.bob.test")
    row = next(line for line in table.read_text().splitlines() if "bob.bob.test" in line)
    table.write_text(table.read_text() + row.replace("bob.bob.test", "new.bob.test") + "\n")
    assert answers.of("new.bob.test", "/").status == 200
    table.unlink()  # made anew
    assert answers.of("none.bob.test", "/").status == 421
    assert answers.of("bob.bob.test", "/").status == 200
    for gone, body in (("about.html", b"lost"), ("404.html", b"not found\n")):
        (copy / "project.ann.test" / gone).unlink()
        found = answers.of("project.ann.test", "/about")
        assert (found.status, found.body) == (404, body)


def test_it_says_when_it_listens_and_stops_when_told(web, tmp_path):
    command = [sys.executable, "-c", "from now_builder.cli import main; main()", "pinned", "serve",
               web, "--port", "0", "--ready-file", tmp_path / "address"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / "address").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        address = (tmp_path / "address").read_text()
        with closing(HTTPConnection(address, timeout=10)) as connection:
            for method, body in [("HEAD", b""), ("GET", page("home").encode())]:
                connection.request(method, "/", headers={"Host": "project.ann.test"})
                answer = connection.getresponse()
                assert int(answer.headers["Content-Length"]) == len(page("home"))
                assert answer.read() == body
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(20) == 0
        assert process.stdout.read() == f"serving 2 sites on {address}\n"


def test_what_is_no_pinned_web_is_refused(web, tmp_path):
    with pytest.raises(FormatError, match=r"sites\.csv: file not found; .*pinned make"):
        serve(tmp_path, 0)
    text = (web / "sites.csv").read_text()
    (tmp_path / "sites.csv").write_text(text.replace(",ok,", ",gone,"))
    with pytest.raises(FormatError, match="no site is ok"):
        serve(tmp_path, 0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Exception, match=f"--port {port}: cannot listen"):
            serve(web, port)
