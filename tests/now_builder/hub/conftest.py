"""A hub on loopback, and commands that know no other."""

import importlib.util
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("hub_server", Path(__file__).parent / "server.py")
_SERVER = importlib.util.module_from_spec(_SPEC)
sys.modules["hub_server"] = _SERVER
_SPEC.loader.exec_module(_SERVER)


@pytest.fixture
def hub():
    """What a hub holds; ``hub.address`` is where it listens."""
    hub = _SERVER.Hub()
    server = hub.start()
    server.waiting = hub.waiting = threading.Event()
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    hub.token = _SERVER.TOKEN
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield hub
    hub.waiting.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def command(hub, tmp_path):
    """Start ``now-builder`` with that hub; keyword arguments are environment variables."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    own = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.address}
    own |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

    def start(*words, **more):
        code = "import sys; from now_builder.cli import main; sys.argv[0] = 'now'; main()"
        return subprocess.Popen(
            [sys.executable, "-c", code, *map(str, words)], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**clean, **own, **more},
        )  # fmt: skip

    return start


@pytest.fixture
def run(command):
    """Run such a command to its end: its code, standard output and standard error."""

    def done(*words, **more):
        with command(*words, **more) as process:
            out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    return done
