"""Sites are laid out as their commits hold them; what cannot be had is a row with a reason."""

import csv
import signal
import socket
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from random import Random
from threading import Thread
from urllib.parse import urlsplit

import pytest

from now_builder.errors import ConfigError, FormatError
from now_builder.pinned.git import Source
from now_builder.pinned.make import Choice, _chosen, make
from now_builder.pinned.serve import PinnedAnswers
from now_builder.pinned.sites import read_sites
from now_builder.urls import canonical
from tests.kill_at_rename import run_until_rename
from tests.now_builder.pinned.conftest import HEADER, LINK, SUBMODULE, git, page

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
PROGRAM = (
    "import sys; from pathlib import Path; from now_builder.pinned.make import make\n"
    "from now_builder.pinned.git import Source\n"
    "web, listed, mirrors = map(Path, sys.argv[1:4]); make(web, listed, source=Source(mirrors))"
)


def rows_of(web):
    with (web / "sites.csv").open(encoding="utf-8", newline="") as file:
        return {row["host"]: row for row in csv.DictReader(file)}


def urls_of(web):
    return (web / "urls.txt").read_text(encoding="utf-8").splitlines()


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*") if path.is_file()
    }  # fmt: skip


@pytest.fixture
def made(mirrors, tmp_path):
    """Make a web of the mirrors; return its folder."""

    def call(**options):
        listed = mirrors.write(tmp_path / "list.csv")
        options = {"source": Source(mirrors.folder)} | options
        make(tmp_path / "web", listed, **options)
        return tmp_path / "web"

    return call


def test_a_part_of_the_list_is_chosen_by_repository_language_and_pages(mirrors, made, tmp_path):
    for name in "abc":
        pages = {f"{page_name}.html": page(f"{name} {page_name}") for page_name in range(60)}
        mirrors.add(f"ann/{name}", pages, pages=20)
    mirrors.listed = mirrors.listed.replace(",20,en,MIT,100,blog\n", ",20,ko,MIT,100,blog\n", 1)
    names = tmp_path / "names.txt"
    names.write_text("ann/a\n\nann/b\n")
    web = made(choice=Choice(only=names))
    assert set(rows_of(web)) == {"a.ann.test", "b.ann.test"}
    twenty = urls_of(web)
    web = made(choice=Choice(only=names, languages=["ko"], pages=50))
    assert set(rows_of(web)) == {"a.ann.test"}
    assert len(urls_of(web)) == 50
    assert {url for url in twenty if "//a." in url} < {*urls_of(web)}, "more pages, not others"
    names.write_text("ann/nobody\n")
    with pytest.raises(ConfigError, match=r"--only .*: no site of the list is ann/nobody"):
        made(choice=Choice(only=names))
    with pytest.raises(ConfigError, match=r"--languages: no site of the list is xx"):
        made(choice=Choice(languages=["xx", "ko"]))


def test_of_a_balanced_part_the_largest_kind_in_a_language_has_a_third_of_the_pages():
    listed = read_sites()
    sites = _chosen(listed, Choice(balanced=True))
    chinese = [one for one in listed if one.language[:2] == "zh" and one.kind == "blog"]
    kept, pages = {*sites}, sum(one.pages for one in sites)
    assert [one for one in listed if one in kept] == sites
    assert {*listed} - kept < {*chinese}, "all others stay"
    assert pages - 60 < 3 * sum(one.pages for one in chinese if one in kept) <= pages


def test_pages_of_any_name_are_listed_and_served_by_their_urls(mirrors, made):
    names = ["a b.html", "中文　页.html", "c#d.html", "e?f.html", "g%20h.html", "i&j'k;l.htm",
             "m+n.html", "ü/index.html", "o\tp.html"]  # fmt: skip
    mirrors.add("ann/site", {name: page(f"This is {name}") for name in [*names, "index.html"]})
    web = made()
    urls = urls_of(web)
    assert urls[0] == "http://site.ann.test/"
    assert set(urls) == {canonical(url) for url in urls}
    assert len(urls) == 9
    answers = PinnedAnswers(web)
    for url in urls:
        answer = answers.of("site.ann.test", urlsplit(url).path)
        assert (answer.status, answer.content_type) == (200, "text/html")
        assert b"This is " in answer.body
    row = rows_of(web)["site.ann.test"]
    assert (row["pages"], row["reason"]) == ("9", "left out: odd file names 1")


def test_nothing_leaves_the_folder_and_what_is_left_out_is_counted(mirrors, made, tmp_path):
    mirrors.add("ann/site", {
        "docs/index.html": page("home"), "docs/new\nline.html": page("odd"),
        "docs/copy.html": (LINK, "deep/hop.html"), "docs/deep/hop.html": (LINK, "../index.html"),
        "docs/passwd.html": (LINK, "/etc/passwd"), "docs/up.html": (LINK, "../secret.html"),
        "docs/far.html": (LINK, "../../../../etc/passwd"), "docs/loop": (LINK, "loop"),
        "docs/folder": (LINK, "deep"), "docs/Index.html": page("second of a name"),
        "docs/module": (SUBMODULE, ""), "docs/a\\b": "x", "docs/big.mp4": LFS,
        "docs/INDEX.HTML/below": "x", "docs/least.bin": b"0" * 2**22,
        "docs/most.bin": b"0" * (2**22 - 1), "docs/run.sh": ("100755", "x"),
        "secret.html": page("no"),
    }, "docs")  # fmt: skip
    before = contents(mirrors.folder)
    web = made()
    assert {str(path) for path in contents(web / "site.ann.test")} == {
        "index.html", "copy.html", "deep/hop.html", "run.sh", "most.bin"
    }  # fmt: skip
    assert not any(path.is_symlink() for path in web.rglob("*"))
    row = rows_of(web)["site.ann.test"]
    assert row["status"] == "ok"
    assert row["reason"] == (
        "left out: files of 4 MiB and more 1, links to no file of the folder 5, "
        "names that differ by case alone 2, odd file names 2, pointers of Git LFS 1, submodules 1"
    )
    assert contents(mirrors.folder) == before
    assert {path.name for path in tmp_path.iterdir()} == {"mirrors", "web", "list.csv"}


def test_a_tree_that_git_itself_would_refuse_stays_inside(mirrors, made, tmp_path):
    """One leads out of its folder, one has more files than any disk holds."""
    for name, odd in (("site", ["..", "..", ".git", "."]), ("bomb", range(10))):
        mirrors.add(f"ann/{name}", {"index.html": page(name)})
        place = mirrors.folder / f"ann+{name}"
        blob = git(place, "rev-parse", "main:index.html")
        tree = f"100644 blob {blob}\tevil.html\n"
        for part in odd:
            inner = git(place, "mktree", given=tree.encode())
            if name == "site":
                tree = f"040000 tree {inner}\t{part}\n100644 blob {blob}\tevil.html\n"
            else:
                tree = "".join(f"040000 tree {inner}\t{number}\n" for number in range(10))
        top = git(place, "mktree", given=tree.encode())
        who = "-c", "user.name=T", "-c", "user.email=t@e.org"
        commit = git(place, *who, "commit-tree", top)
        mirrors.listed = mirrors.listed.replace(git(place, "rev-parse", "main"), commit)
    web = made()
    assert {str(path) for path in contents(web / "site.ann.test")} == {"evil.html"}
    assert "odd file names 4" in rows_of(web)["site.ann.test"]["reason"]
    assert not list(tmp_path.glob("evil.html"))
    assert rows_of(web)["bomb.ann.test"]["status"] == "too_large"


def test_what_cannot_be_had_is_a_row(mirrors, made):
    mirrors.add("ann/first", {"index.html": page("home")})
    mirrors.add("ann/other", {"index.html": page("home")}, commit="2" * 40)
    mirrors.add("ann/large", {"index.html": page("home"), "a.bin": b"\0" * 5000})
    mirrors.add("ann/silent", {"index.html": "<p>no description"})
    mirrors.add("ann/empty", {"read.me": "x"})
    mirrors.add("ann/moved", {"index.html": page("home")}, "public")
    mirrors.add("bob/second", {"a.html": page("no index")}, at="{owner}/{name}.git")
    mirrors.add("bob/third", {"index.html": page("home")}, at="{owner}+{name}/repo")
    mirrors.add("bob/fourth", {"index.html": page("home")}, at="{owner}+{name}/.git")
    mirrors.add("ann/broken", {"index.html": page("home"), "b.html": page("b")})
    mirrors.listed += f"ann/gone,{'3' * 40},,gone.ann.test,3,,,0,\n"
    name = git(mirrors.folder / "ann+broken", "rev-parse", "main:b.html")
    damaged = mirrors.folder / "ann+broken" / "objects" / name[:2] / name[2:]
    damaged.chmod(0o644)
    damaged.write_bytes(damaged.read_bytes()[:-9])
    web = made(source=Source(mirrors.folder, size=4000))
    rows = rows_of(web)
    head = git(mirrors.folder / "ann+other", "rev-parse", "main")
    assert {host.partition(".test")[0]: row["status"] for host, row in rows.items()} == {
        "first.ann": "ok", "other.ann": "other_commit", "large.ann": "too_large",
        "silent.ann": "no_pages", "empty.ann": "no_pages", "moved.ann": "no_pages",
        "second.bob": "ok", "third.bob": "ok", "fourth.bob": "ok", "broken.ann": "damaged",
        "gone.ann": "gone",
    }  # fmt: skip
    assert rows["other.ann.test"]["reason"] == f"the mirror has {head}"
    assert rows["moved.ann.test"]["reason"] == "no readable folder /public at the commit"
    assert rows["large.ann.test"]["reason"] == "0.0 MB, at most 0.0 MB"
    assert urls_of(web) == ["http://first.ann.test/", "http://second.bob.test/a.html",
                            "http://third.bob.test/", "http://fourth.bob.test/"]  # fmt: skip


def test_pages_are_chosen_by_a_rule_and_those_of_a_project_listed_below_its_name(mirrors, made):
    refresh = "<meta http-equiv=refresh content='0; url=/a.html'>"
    mirrors.add("ann/site", {
        **{f"{name}.html": page("same") for name in "abc"},
        "z.html": page("of its own", f"<!--[if lt IE 9]>{refresh}<![endif]-->"),
        "index.html": page("home", f"<noscript>{refresh}</noscript>"),
        "404.html": page("x"), "_layouts/post.html": page("y"), ".cache/a.html": page("z"),
        "0.html": "---\n---\n" + page("front matter"), "1.html": "<meta name=description>",
        "2.html": page("moved", refresh), "site/s.css": "",
    }, pages=4)  # fmt: skip
    style = page("home", "<link rel=stylesheet href=/Project.x/s.css>")
    files = {"index.html": style, "s.css": "x", "b/index.html": page("b")}
    mirrors.add("ann/Project.x", files, host="x.ann.test")
    assert urls_of(made()) == [
        *(f"http://site.ann.test/{name}" for name in ("", "a.html", "b.html", "z.html")),
        "http://x.ann.test/Project.x/", "http://x.ann.test/Project.x/b/",
    ]  # fmt: skip


def test_a_commit_is_fetched_alone_and_no_hook_or_filter_runs(mirrors, made, tmp_path, monkeypatch):
    hook = tmp_path / "hooks" / "reference-transaction"
    hook.parent.mkdir()
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    (tmp_path / "gitconfig").write_text(
        f'[core]\nhooksPath = {hook.parent}\n[filter "lfs"]\nsmudge = touch {tmp_path}/ran\n'
    )
    noise = bytes(range(256)) * 4
    files = {"index.html": page("home"), ".gitattributes": "* filter=lfs", "x.bin": noise}
    mirrors.add("ann/first", files)
    mirrors.add("ann/first", files | {"index.html": page("newer")}, host="newer.ann.test")
    mirrors.add("ann/other", files, commit="2" * 40)
    mirrors.add("ann/large", {"index.html": page("home"), "a.bin": Random(0).randbytes(60_000)})
    mirrors.listed += f"ann/gone,{'3' * 40},,gone.ann.test,3,,,0,\n"
    origin = f"file://{mirrors.folder}/{{}}"
    for place in mirrors.folder.iterdir():
        owner, _, name = place.name.partition("+")
        (mirrors.folder / owner).mkdir(exist_ok=True)
        place.rename(mirrors.folder / owner / name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(tmp_path / "nowhere"))
    web = made(source=Source(origin=origin, size=12_000))
    statuses = {host.partition(".")[0]: row["status"] for host, row in rows_of(web).items()}
    assert statuses == {"first": "ok", "newer": "ok", "other": "other_commit", "gone": "gone",
                        "large": "too_large"}  # fmt: skip
    assert (web / "first.ann.test" / "index.html").read_text() == page("home")
    assert (web / "newer.ann.test" / "x.bin").read_bytes() == noise
    assert not (tmp_path / "ran").exists()
    assert not list(web.glob(".*.tmp"))


class Refusing(BaseHTTPRequestHandler):
    """Answers with the status that the path begins with."""

    def do_GET(self):
        self.send_response(int(self.path.split("/")[1]))
        self.send_header("WWW-Authenticate", 'Basic realm="GitHub"')
        self.end_headers()

    def log_message(self, *_):
        pass


def test_a_server_that_refuses_or_stalls_is_a_row_and_nobody_is_asked(
    mirrors, made, tmp_path, monkeypatch
):
    ask = tmp_path / "ask"
    ask.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n")
    ask.chmod(0o755)
    monkeypatch.setenv("SSH_ASKPASS", str(ask))
    for name in ("401/a", "404/b", "451/c", "503/d"):
        mirrors.listed += f"{name},{'3' * 40},,{name.replace('/', '.')}.test,3,,,0,\n"
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        web = made(source=Source(origin=f"http://127.0.0.1:{server.server_port}/{{}}"))
        server.shutdown()
    rows = rows_of(web).values()
    assert [row["status"] for row in rows] == ["gone", "gone", "gone", "unreachable"]
    assert not (tmp_path / "asked").exists()
    mirrors.listed = HEADER
    mirrors.add("ann/site", {"index.html": page("home")})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        origin = f"http://127.0.0.1:{silent.getsockname()[1]}/{{}}"
        web = made(source=Source(origin=origin, seconds=1.0))
    (row,) = rows_of(web).values()
    assert (row["status"], row["reason"]) == ("timeout", "not fetched in 1 s")
    assert rows_of(made())["site.ann.test"]["status"] == "ok"  # tried again


def test_ctrl_c_ends_what_runs(mirrors, tmp_path):
    mirrors.add("ann/site", {"index.html": page("home")})
    listed = mirrors.write(tmp_path / "list.csv")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        origin = f"http://127.0.0.1:{silent.getsockname()[1]}/{{}}"
        program = PROGRAM.replace("Source(mirrors)", f"Source(origin={origin!r})")
        command = [sys.executable, "-c", program, tmp_path / "web", listed, mirrors.folder]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
            with silent.accept()[0]:
                process.send_signal(signal.SIGINT)
                assert process.wait(30) != 0
            assert b"KeyboardInterrupt" in process.stderr.read()
    assert not (tmp_path / "web" / "sites.csv").exists()


def test_killed_anywhere_it_goes_on_and_a_second_make_is_the_same(mirrors, made, tmp_path):
    for number in range(3):
        mirrors.add(f"ann/site{number}", {"index.html": page("home"), "b.html": page("b")})
    mirrors.listed += f"ann/gone,{'3' * 40},,gone.ann.test,3,,,0,\n"
    whole = contents(made())
    listed = tmp_path / "list.csv"
    for point in (1, 3):
        web = tmp_path / f"web{point}"
        assert run_until_rename(point, PROGRAM, web, listed, mirrors.folder).returncode == -9
        assert not (web / "sites.csv").exists()
        (web / ".left.1.999999999.tmp").mkdir()
        assert run_until_rename(0, PROGRAM, web, listed, mirrors.folder).returncode == 0
        assert contents(web) == whole
        assert not list(web.glob(".*.tmp"))
    assert contents(made()) == whole
    assert contents(made(force=True)) == whole


def test_what_is_done_is_kept_and_a_new_commit_is_fetched(mirrors, made):
    for number in range(4):
        files = {"index.html": page("home"), "old.html": page(f"old {number}")}
        first = mirrors.add(f"ann/site{number}", files)
    drawn = [set(rows_of(made(choice=Choice(number)))) for number in (2, 3, 4, 9)]
    assert drawn[0] < drawn[1] < drawn[2] == drawn[3]
    kept = made() / "site0.ann.test" / "index.html"
    inode = kept.stat().st_ino
    again, mirrors.listed = mirrors.listed, ""
    second = mirrors.add("ann/site3", {"index.html": page("new")})
    mirrors.listed = again.replace(first, second).replace(",blog", ",shop")
    web = made()
    assert not (web / "site3.ann.test" / "old.html").exists()
    assert kept.stat().st_ino == inode
    assert rows_of(web)["site0.ann.test"]["kind"] == "shop"


def test_verdicts_beside_the_list_go_along_with_their_pages(mirrors, made, tmp_path):
    mirrors.add("own/judged", {"index.html": page("one"), "b.html": page("two")})
    table = tmp_path / "judged.csv"
    rows = ["url,verdict,kind\n", "http://judged.own.test/b.html,mismatch,other page\n"]
    table.write_text("".join([*rows, "http://gone.own.test/,match,\n"]), encoding="utf-8")
    web = made()
    assert (web / "judged.csv").read_text(encoding="utf-8") == "".join(rows)
    table.write_text("key,verdict\n")
    before = contents(web)
    with pytest.raises(FormatError, match=r"judged\.csv: columns .*'verdict'\], expected url"):
        made(force=True)
    assert contents(web) == before
    table.unlink()
    assert not (made() / "judged.csv").exists()


def test_a_part_of_the_packages_list_has_its_verdicts(mirrors, made, tmp_path, monkeypatch):
    """A site at another commit has other pages, so that no verdict holds for it."""
    (tmp_path / "package").mkdir()
    monkeypatch.setattr("now_builder.pinned.make.LIST", tmp_path / "package" / "sites.csv")
    for name in ("ann/same", "ann/newer", "ann/absent"):
        mirrors.add(name, {"index.html": page("home")})
    mirrors.write(tmp_path / "package" / "sites.csv")
    rows = [f"http://{name}.ann.test/,match\n" for name in ("absent", "newer", "same")]
    (tmp_path / "package" / "judged.csv").write_text("url,verdict\n" + "".join(rows))
    mirrors.listed = "".join(mirrors.listed.splitlines(keepends=True)[:2])
    mirrors.add("ann/newer", {"index.html": page("another")})
    mirrors.add("bob/own", {"index.html": page("home")})
    assert (made() / "judged.csv").read_text() == f"url,verdict\n{rows[2]}"


def test_a_folder_or_a_list_of_other_things_is_left_as_it_is(mirrors, made, tmp_path):
    mirrors.add("ann/site", {"index.html": page("home")})
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "sites.csv").write_text("mine")
    with pytest.raises(ConfigError, match="web: contains other files"):
        made()
    assert (tmp_path / "web" / "sites.csv").read_text() == "mine"
    with pytest.raises(ConfigError, match=r"--from .*nothing: folder not found"):
        made(source=Source(tmp_path / "nothing"))
    (tmp_path / "web" / "sites.csv").unlink()
    web = made()
    before = contents(web)
    (tmp_path / "link").symlink_to(web / "sites.csv")
    for listed in (web / "sites.csv", tmp_path / "link"):
        with pytest.raises(ConfigError, match=r"--list .*: in the folder to write"):
            make(web, listed, source=Source(mirrors.folder))
    assert contents(web) == before


def test_a_mirror_that_would_fetch_what_it_lacks_does_not(mirrors, made, tmp_path):
    mirrors.add("ann/site", {"index.html": page("home"), "lost.html": page("lost")})
    place = mirrors.folder / "ann+site"
    name = git(place, "rev-parse", "main:lost.html")
    (place / "objects" / name[:2] / name[2:]).unlink()
    for key, value in {
        "core.repositoryFormatVersion": "1", "extensions.partialClone": "it",
        "remote.it.promisor": "true", "remote.it.url": place,
        "remote.it.uploadpack": f"touch {tmp_path}/ran;",
    }.items():  # fmt: skip
        git(place, "config", key, value)
    row = rows_of(made())["site.ann.test"]
    assert (row["status"], row["reason"]) == ("ok", "left out: files of 4 MiB and more 1")
    assert not (tmp_path / "ran").exists()
