#!/usr/bin/env bash
# Make .venv with the pinned packages; find or install a Chromium, fonts and OCR data. Cheap when done.
set -euo pipefail
cd "$(dirname "$0")/.."

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

find_python() {
  for name in python3.11 python3.12 python3.13 python3; do
    if command -v "$name" >/dev/null && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$name"
      return
    fi
  done
  echo "Python 3.11 or newer is needed and was not found on the PATH" >&2
  exit 1
}

stamp=".venv/.installed-$(cat pyproject.toml constraints.txt scripts/setup.sh | sha256sum | cut -c1-16)"
if [ -e "$stamp" ]; then exit 0; fi

python=$(find_python)
if [ ! -x .venv/bin/pip ]; then
  if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    echo "setup: installing python3-venv" >&2
    as_root apt-get update -qq
    as_root apt-get install -y -qq python3-venv >/dev/null
  fi
  "$python" -m venv .venv
fi
echo "setup: installing the pinned packages into .venv" >&2
.venv/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[all,dev,docs]'
.venv/bin/now-builder doctor --mend
rm -f .venv/.installed-*
touch "$stamp"
