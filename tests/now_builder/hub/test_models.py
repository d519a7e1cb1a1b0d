"""Models of the hub: problems are reported in one line."""

import os
import subprocess
import sys

import pytest

FIND = """
import sys
from now_builder.errors import NowError
from now_builder.hub.models import find_model
try:
    print((find_model(sys.argv[1], ["*.json"]) / "config.json").read_text())
except NowError as error:
    sys.exit(f"error: {error}")
"""


@pytest.mark.parametrize("without", ["0", "1"])
def test_a_model_in_xet_can_be_had_without_it(hub, tmp_path, without):
    hub.files["somebody/model"] = {"config.json": b'{"a": 1}'}
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    more = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": hub.address, "HF_HUB_DISABLE_XET": without}
    done = subprocess.run(
        [sys.executable, "-c", FIND, "somebody/model"], env={**clean, **more},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if without == "1":
        assert (done.returncode, done.stdout) == (0, '{"a": 1}\n'), done.stderr
        return
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: somebody/model: cannot be downloaded")
    assert "HF_HUB_DISABLE_XET=1" in last
