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
# What pages are drawn and read with. Debian's packages come while pip works; elsewhere, Playwright's own Chromium does.
system="fonts-noto-cjk fonts-noto-core fonts-noto-color-emoji tesseract-ocr-chi-sim tesseract-ocr-eng libatomic1"
apt_install() { as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }
system_packages() {
  # shellcheck disable=SC2086
  if dpkg -s chromium-headless-shell $system >/dev/null 2>&1; then return; fi
  echo "setup: installing Debian's Chromium, fonts and OCR data" >&2
  as_root apt-get update -qq
  # shellcheck disable=SC2086
  apt_install $system
  apt_install chromium-headless-shell || apt_install chromium
}
waiting=
if command -v apt-get >/dev/null; then
  system_packages &
  waiting=$!
fi
echo "setup: installing the pinned packages into .venv" >&2
.venv/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[all,dev,docs]'
if [ -n "$waiting" ]; then wait "$waiting" || echo "setup: Debian's packages are not all there; now-builder doctor names them" >&2; fi
if ! .venv/bin/now-builder doctor >/dev/null; then
  deps=$([ "$(id -u)" = 0 ] && echo --with-deps || true)
  # shellcheck disable=SC2086
  .venv/bin/python -m playwright install chromium --only-shell $deps || true
fi
.venv/bin/now-builder doctor
rm -f .venv/.installed-*
touch "$stamp"
