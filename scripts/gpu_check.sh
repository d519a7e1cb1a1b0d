#!/usr/bin/env bash
# Measure and test a GPU: scripts/gpu_check.sh [PART…] (a, b, d, f; default: all of them). See docs/gpu.md.
# DEVICE (cuda, cpu), SIZE (full, tiny), OUT (folder of gpu-check.json and .md), LIMIT_S (limit of a part), ALL_S, PYTHON.
set -uo pipefail
cd "$(dirname "$0")/.."
root=$PWD device=${DEVICE:-cuda} size=${SIZE:-full} bundle=${BUNDLE:-.gpu-bundle} all_s=${ALL_S:-420}
declare -A seconds=([a]=30 [b]=240 [d]=90) # limit of a part; f has the rest
if [ "$size" = tiny ]; then seconds=(); fi # the limits are for a GPU
export OUT=${OUT:-$root} BUNDLE=$bundle
export CUBLAS_WORKSPACE_CONFIG=:4096:8 PYTHONUNBUFFERED=1
if [ "$size" = tiny ]; then export OMP_NUM_THREADS=1; fi
python=${PYTHON:-}
if [ -z "$python" ]; then
  python=python3
  if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
fi
if [ "${1:-quick}" = quick ]; then set -- b a d f; fi

# Wheels need the same Python version; an environment with all packages needs none.
site=""
trap 'rm -rf "$site"' EXIT
install_bundle() {
  local have
  have=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  if [ "$have" != "$(cat "$bundle/python-version")" ]; then
    echo "gpu_check: $bundle is for Python $(cat "$bundle/python-version"), not $have: not used" >&2
    return
  fi
  site=$(mktemp -d)
  if "$python" -m pip --version >/dev/null 2>&1; then
    "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-compile \
      --root-user-action ignore --target "$site" "$bundle"/wheels/*.whl || exit 1
  else # a wheel is a zip archive of the installed files
    for wheel in "$bundle"/wheels/*.whl; do "$python" -m zipfile -e "$wheel" "$site" || exit 1; done
  fi
}
if [ -e "$bundle/python-version" ]; then install_bundle; fi
export PYTHONPATH="$root${site:+:$site}"
# Load the code from disk before the time of the first part begins.
if [ "$1$size" = bfull ]; then "$python" -c "import benchmarks.gpu.steps"; fi

failed=()
for part in "$@"; do
  begun=$SECONDS limit=${LIMIT_S:-${seconds[$part]:-$all_s}}
  if [ "$limit" -gt $((all_s - begun)) ]; then limit=$((all_s - begun)); fi
  echo "== part $part on $device, $size, at most $limit s" >&2
  if [ "$limit" -lt 1 ]; then
    "$python" -m benchmarks.gpu died "$part" "not begun: no time was left"
    failed+=("$part")
    continue
  fi
  timeout --kill-after=10 "$limit" "$python" -m benchmarks.gpu run "$part" --device "$device" --size "$size" --limit-s "$((limit - 5))"
  status=$?
  case $status in
    0) ;;
    124 | 137) "$python" -m benchmarks.gpu died "$part" "out of time or memory after $((SECONDS - begun)) s (exit $status)" ;;
    *) "$python" -m benchmarks.gpu died "$part" "exit $status after $((SECONDS - begun)) s" ;;
  esac
  if [ $status != 0 ]; then failed+=("$part"); fi
  echo "   part $part: exit $status, $((SECONDS - begun)) s" >&2
done
echo "$OUT/gpu-check.md" >&2
if [ ${#failed[@]} != 0 ]; then
  echo "gpu_check: failed: ${failed[*]}" >&2
  exit 1
fi
