"""A release published on a hub: what is sent, what is asked, what is never sent."""

import io
import json
import re
import shutil
import signal
import time
from email.utils import formatdate

import pyarrow.parquet as pq
import pytest
import yaml

from now_builder.errors import ConfigError, FormatError
from now_builder.export.settings import PublishSettings
from now_builder.formats.io import write_json
from now_builder.hub.publish import prepare
from now_builder.package.run import package
from now_builder.package.settings import PackageSettings

NAME = "somebody/small"


@pytest.fixture
def release(small_release, tmp_path):
    copy = shutil.copytree(small_release, tmp_path / "release")
    licensed(copy, "other")
    return copy


def licensed(release, licence):
    tree = json.loads((release / "manifest.json").read_text(encoding="utf-8"))
    tree["settings"]["licence"] = licence
    write_json(release / "manifest.json", tree)


def test_a_release_goes_there_the_card_last_and_loads(hub, run, release):
    code, out, err = run("publish", release, NAME, "--yes", HF_TOKEN=hub.token)
    assert code == 0, err
    assert out == f"{hub.address}/datasets/{NAME}\n"
    assert hub.token not in err
    files = hub.files[NAME]
    parquets = {f"data/{split}-00000-of-00001.parquet" for split in ("train", "dev", "test")}
    assert set(files) == parquets | {"croissant.json", "README.md", "eval.yaml"}
    card = files["README.md"].decode()
    assert f'load_dataset("{NAME}")' in card
    assert yaml.safe_load(card.split("---\n")[1])["configs"]
    folder = release.with_name("release-hub")
    assert all(files[name] == (folder / name).read_bytes() for name in parquets)
    changed = [[line["value"]["path"] for line in lines[1:]] for lines in hub.commits]
    assert (len(changed[0]), changed[1:]) == (5, [["README.md"]])
    evaluation = yaml.safe_load(files["eval.yaml"])
    assert evaluation["name"] == "small"
    assert evaluation["evaluation_framework"] == "mteb", "one of those that the hub takes"
    places = [(task["id"], task["config"], task["split"]) for task in evaluation["tasks"]]
    assert places == [("i2t", "default", "test"), ("t2i", "default", "test")]


def test_where_the_hub_is_busy_it_waits_as_told_and_goes_on(hub, run, release):
    """By seconds, by a date, by the hub's own header, and where it says nothing of use."""
    soon = formatdate(time.time() + 2, usegmt=True)
    limit = {"RateLimit": '"api";r=0;t=1'}
    hub.busy = [
        ("whoami", {"Retry_After": "1"}),
        ("repos/create", {"Retry_After": soon}),
        (f"/api/datasets/{NAME}$", limit),
        ("commit/main", {"Retry_After": "0"}),
        ("commit/main", {"Retry_After": "2"}),
    ]
    start = time.monotonic()
    code, _, err = run("publish", release, NAME, "--yes", HF_TOKEN=hub.token)
    assert code == 0, err
    assert hub.busy == []
    assert time.monotonic() - start > 1 + 1 + 1 + 2
    assert len(hub.commits) == 2
    puts = [path for method, path, _ in hub.asked if method == "PUT"]
    assert len(puts) == 3, "what was sent is not sent again"
    assert "publish: somebody/small: the hub answered 429: too many requests. Retrying in 2 s" in (
        " ".join(err.split())
    )


def test_a_rerun_sends_what_is_missing_and_drops_what_is_old(hub, run, release):
    old = "data/train-00000-of-00009.parquet"
    hub.files[NAME] = {old: b"old", "notes.txt": b"mine"}
    hub.cut = 0
    code, _, err = run("publish", release, NAME, "--yes", HF_TOKEN=hub.token)
    assert code == 1
    assert "error: somebody/small: the hub answered 400" in err, err
    assert hub.files[NAME] == {old: b"old", "notes.txt": b"mine"}, "all or nothing"
    sent = len(hub.objects)
    code, _, err = run("publish", release, NAME, "--yes", HF_TOKEN=hub.token)
    assert code == 0, err
    puts = [path for method, path, _ in hub.asked if method == "PUT"]
    assert len(puts) == 1 + 3, "nothing that was there is sent again"
    assert sent < 3
    assert old not in hub.files[NAME]
    assert "notes.txt" in hub.files[NAME]


WITH_XET = {
    "HF_HUB_DISABLE_XET": "0",
    "HF_XET_CLIENT_RETRY_MAX_ATTEMPTS": "1",
    "HF_XET_CLIENT_RETRY_BASE_DELAY": "50ms",
}
"""As it is by default; the other tests go without, since their hub has none."""


@pytest.mark.parametrize("xet", [404, "http://127.0.0.1:9"])
def test_where_xet_is_refused_a_line_says_how_to_go_without(hub, run, release, xet):
    hub.xet = xet
    code, _, err = run("publish", release, NAME, "--yes", HF_TOKEN=hub.token, **WITH_XET)
    assert any("/xet-write-token/" in path for _, path, _ in hub.asked), "Xet was tried"
    last = err.splitlines()[-1]
    assert last.startswith(f"error: {NAME}: Xet, the hub's store of large files, failed")
    assert last.endswith("set HF_HUB_DISABLE_XET=1 to avoid Xet")
    assert (code, "Traceback" in err, hub.commits) == (1, False, [])
    assert run("publish", release, NAME, "--yes", HF_TOKEN=hub.token)[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_is_heard_while_xet_hangs(hub, command, release, number):
    hub.xet = 0
    with command("publish", release, NAME, "--yes", HF_TOKEN=hub.token, **WITH_XET) as process:
        until = time.monotonic() + 100
        while not any("/xet-write-token/" in path for _, path, _ in hub.asked):
            assert time.monotonic() < until
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    last = err.splitlines()[-1]  # behind bars
    assert "stopped: the export and uploaded files are kept" in last
    assert "Traceback" not in err
    assert hub.commits == []


def test_a_dry_run_lists_files_and_bytes_and_asks_the_hub_nothing(hub, run, release):
    code, out, _ = run("publish", release, NAME, "--dry-run", "--tokens", "--private")
    assert code == 0
    folder = release.with_name("release-hub")
    size = (folder / "croissant.json").stat().st_size
    assert f"{size:,}  croissant.json" in out
    assert out.endswith(f"private data set {NAME}: licence other, no screenshots\n")
    assert hub.asked == []


@pytest.mark.parametrize(
    ("words", "more", "line"),
    [(["--yes"], {"HF_TOKEN": "hf_wrong"}, "no valid token"),
     ([], {"HF_TOKEN": "right"}, "no terminal to ask on; nothing was sent"),
     (["--yes", "--private"], {"HF_TOKEN": "right"}, "public already")],
)  # fmt: skip
def test_nothing_is_sent_without_leave(hub, run, release, words, more, line):
    hub.files[NAME] = {}
    more = {key: value.replace("right", hub.token) for key, value in more.items()}
    code, _, err = run("publish", release, NAME, *words, **more)
    assert code == 1
    assert line in err.splitlines()[-1]
    assert "hf_wrong" not in err
    assert not hub.objects
    assert not hub.commits


def test_screenshots_go_only_where_the_licence_lets_them(release, small_crawl):
    settings = PublishSettings(captures=small_crawl)
    with pytest.raises(ConfigError, match="licence 'other' does not let others have the screens"):
        prepare(release, NAME, settings)
    assert not release.with_name("release-hub").exists()
    licensed(release, "cc-by-4.0")
    assert str(prepare(release, NAME, settings)).endswith("licence cc-by-4.0, with screenshots")


def test_a_release_packaged_licensed_goes_whole_whatever_its_own_licence(
    hub, run, small_crawl, small_features, small_captions, tmp_path
):
    rows = [f"a/b,c0ffee,site{n:02d}.test,{'MIT' if n % 2 else 'CC-BY-4.0'}" for n in range(20)]
    sites, release = tmp_path / "sites.csv", tmp_path / "release"
    sites.write_text("\n".join(["repository,commit,host,licence", *rows]))
    settings = PackageSettings(licensed=sites)
    package(small_crawl, small_features, small_captions, release, settings)
    words = ("publish", release, NAME, "--captures", small_crawl)
    code, _, err = run(*words, "--yes", HF_TOKEN=hub.token)
    assert code == 0, err
    assert re.search(r"licence other, pages (MIT|CC-BY-4.0) \d+, .* with screenshots\n", err)
    assert hub.files[NAME]["licences.csv"] == (release / "licences.csv").read_bytes()
    assert b"| MIT | " in hub.files[NAME]["README.md"]
    table = pq.read_table(io.BytesIO(hub.files[NAME]["data/test-00000-of-00001.parquet"]))
    assert table["image"][0]["bytes"].as_py()[:4] == b"\x89PNG"
    text = (release / "licences.csv").read_text(encoding="utf-8")
    (release / "licences.csv").write_text(text.replace("MIT", "GPL-3.0"), encoding="utf-8")
    with pytest.raises(FormatError, match=r"licences\.csv: \d+ bytes, expected"):
        prepare(release, NAME, PublishSettings(captures=small_crawl))


def test_a_name_that_is_no_users_and_a_torn_release_are_refused(release):
    for name in ("small", "a/b/c", "some body/x"):
        with pytest.raises(ConfigError, match="expected USER/NAME"):
            prepare(release, name, PublishSettings())
    (release / "pairs.parquet").write_bytes(b"torn")
    with pytest.raises(FormatError, match=r"pairs\.parquet"):
        prepare(release, NAME, PublishSettings())
