"""The whole road: the tutorial's commands on a small web, then the other pages that crawl."""

import json
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pandas as pd
import pytest

from tests.end_to_end.documented import DOCS, command, run, runnable

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1200)]

SMALLER = {
    r"simweb make": "--pages 36 --sites 8 --topics 3 --awkward 2 --mismatch 0.2",
    r"now-builder crawl": "--page-timeout-s 8 --split-shares 0.7,0.12,0.18 --split-seed 2562 "
    "--split-by page",
    r"now-builder build": "--set crawl.page_timeout_s=8 --set crawl.split_shares=0.7,0.12,0.18 "
    "--set crawl.split_seed=2562 --set crawl.split_by=page --set detect.threads=1",
    r"builder (detect|label)": "--threads 1",
    r"pc2-baseline train": "--set train.device=cpu --set train.pictures=false "
    "--set train.tensorboard=false --set train.epochs=2",
}
"""Options that are added, so that it takes seconds."""


def run_page(name: str, port: str = "") -> None:
    """Run a page's commands, with another port; a server until the page's end."""
    with ExitStack() as stack:
        for line in runnable(DOCS / f"{name}.md"):
            if line.endswith("&"):
                call = command(*shlex.split(line.removesuffix("&").replace("8765", port)))
                server = stack.enter_context(subprocess.Popen(call))
                stack.callback(server.terminate)
                wait_for(int(port))
            else:
                run(line.replace("8765", port or "8765"), SMALLER)


def wait_for(port: int) -> None:
    for _ in range(300):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            time.sleep(0.1)


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which the tutorial was walked."""
    folder = tmp_path_factory.mktemp("tutorial")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HF_HUB_OFFLINE", "1")
        run_page("tutorial", port)
        yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_the_tutorial_ends_with_a_board_of_three_methods(walked: Path) -> None:
    assert len(list((walked / "board/results").glob("bert-test-*.json"))) == 3
    assert (walked / "site/boards/bert.html").exists()
    assert json.loads((walked / "crossfit.json").read_text())["track"] == "bert"
    assert (walked / "report.html").stat().st_size > 10_000


def test_every_url_is_a_pair_as_the_truth_has_it_or_a_reject_with_a_reason(walked: Path) -> None:
    listed = [line for line in (walked / "web/urls.txt").read_text().splitlines() if line]
    pairs, rejects = (
        pd.read_parquet(walked / "release" / f"{name}.parquet") for name in ("pairs", "rejects")
    )
    assert sorted([*pairs.url, *rejects.url]) == sorted(listed)
    assert rejects.reason.notna().all()
    truth = pd.read_parquet(walked / "web/truth.parquet").drop_duplicates("url").set_index("url")
    assert list(pairs.caption) == list(truth.caption[pairs.url])


def test_rebuilding_and_shares_go_on_from_there(walked: Path) -> None:
    """The page's crawl finds all pages visited: what a crawl does is the tutorial's to show."""
    shutil.copy(walked / "web/urls.txt", walked / "urls.txt")
    (walked / "out").mkdir()
    for made in ("captures", "features.h5", "captions"):
        (walked / "out" / made).symlink_to(walked / made)
    pairs = pd.read_parquet(walked / "release/pairs.parquet")
    judged = pd.DataFrame({"key": pairs.key, "url": pairs.url, "split": pairs.split, "lang": "",
                           "matched": "match", "judge": "judge", "at": "2026-11-01T10:00:00Z",
                           "seconds": 1.0, "note": ""})  # fmt: skip
    for name in ("judged", "dev", "test", "first", "second", "mine"):
        judged.to_csv(walked / f"{name}.csv", index=False)
    (walked / "unseen.txt").write_text(f"{pairs.site[0]}\n{pairs.site.iloc[-1]}\n")
    rows = [f"{site},MIT,a/b,c0ffee\n" for site in pairs.site.unique()]
    (walked / "sites.csv").write_text("".join(["host,licence,repository,commit\n", *rows]))
    run_page("how-to/rebuild-now")
    run_page("how-to/judge")
    run_page("how-to/cluster")
    assert (walked / "out/release/manifest.json").exists()
