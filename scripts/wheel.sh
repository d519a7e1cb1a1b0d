#!/usr/bin/env bash
# Build the wheel and install it alone into an environment that borrows its dependencies from .venv
# (a folder added by a .pth file does not have its own .pth files read, so the editable tree stays out).
set -euo pipefail
cd "$(dirname "$0")/.."
environment=$1

rm -rf dist "$environment"
.venv/bin/python -m build --wheel --no-isolation --outdir dist . >/dev/null
.venv/bin/python -m venv --without-pip "$environment"
site=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
.venv/bin/pip --python "$environment/bin/python" install --quiet --disable-pip-version-check --no-deps dist/*.whl
.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/dependencies.pth"
