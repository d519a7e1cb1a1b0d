#!/usr/bin/env bash
# Install the wheel with one extra at a time into a bare environment, and do what the extra promises.
#   scripts/extras.sh [none|EXTRA ...]     by default all; those with torch take some gigabytes
# A folder of wheels or an index is named as for pip: PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL (UV_… with uv).
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
tiny=$root/tests/data/tiny
python=${PYTHON:-.venv/bin/python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m build --wheel --no-isolation --outdir "$work" . >/dev/null
wheel=$(echo "$work"/*.whl)

install() {  # EXTRA
  local what="noise-of-web @ file://$wheel"
  if [ "$1" != none ]; then what="noise-of-web[$1] @ file://$wheel"; fi
  if command -v uv >/dev/null; then
    uv venv --quiet --python "$("$python" -c 'import sys; print(sys.executable)')" "$work/$1/env"
    uv pip install --quiet --python "$work/$1/env/bin/python" --constraint constraints.txt "$what"
  else
    "$python" -m venv "$work/$1/env"
    "$work/$1/env/bin/pip" install --quiet --disable-pip-version-check --constraint constraints.txt "$what"
  fi
}

fails_in_one_line() {  # WORDS COMMAND...: exit 1, no traceback, and a last line with those words
  local code=0 words=$1
  shift
  "$@" >out.txt 2>err.txt || code=$?
  if [ "$code" != 1 ] || grep -q Traceback err.txt || ! tail -n 1 err.txt | grep -qF "$words"; then
    echo "$*: exit $code, expected 1 and a last line with: $words" >&2
    cat err.txt >&2
    return 1
  fi
}

ready() {  # COMMAND...: until it succeeds
  for _ in $(seq 300); do
    if "$@" >/dev/null 2>&1; then return; fi
    sleep 0.2
  done
  echo "not ready: $*" >&2
  return 1
}

try_none() {
  python -c 'import numpy as np; np.save("s.npy", np.eye(len(open(r"'"$tiny"'/release/now100k_precomp/test_ids.txt").readlines()), dtype="f4"))'
  now-leaderboard pack s.npy -o s.zip --release "$tiny/release" --track jieba --split test --method eye
  now-leaderboard score s.zip --release "$tiny/release" --json | python -c 'import json, sys; assert json.load(sys.stdin)["rsum"] == 600'
  python -c 'import sys, leaderboard.cli, now_builder.cli, pc2_baseline.cli; sys.exit(any("drawings" in name for name in sys.modules))'
  echo https://example.org/ >urls.txt
  local lacks="pip install 'noise-of-web" at=" @ file://$wheel'" # from where it came
  fails_in_one_line "$lacks[crawl]$at" now-builder crawl urls.txt captures
  fails_in_one_line "$lacks[detect]$at" now-builder detect "$tiny/captures" f.h5
  fails_in_one_line "$lacks[detect]$at" now-builder train-detector "$tiny/captures" w.safetensors
  fails_in_one_line "$lacks[tokenize]$at" now-builder tokenize "$tiny/captures" captions
  fails_in_one_line "$lacks[package]$at" now-builder package "$tiny/captures" "$tiny/features.h5" "$tiny/captions" release
  fails_in_one_line "$lacks[crawl]$at" now-builder build urls.txt out
  fails_in_one_line "$lacks[hub]$at" now-builder fetch-now NoW
  fails_in_one_line "$lacks[hub]$at" now-builder publish "$tiny/release" me/tiny --yes
  fails_in_one_line "$lacks[export]$at" now-builder export "$tiny/release" shards --to webdataset --captures "$tiny/captures"
  fails_in_one_line "$lacks[baseline]$at" pc2-baseline train "$tiny/release" run
  fails_in_one_line "$lacks[baseline]$at" pc2-baseline evaluate run
  fails_in_one_line "$lacks[baseline]$at" pc2-baseline predict run -o x.zip
  fails_in_one_line "$lacks[baseline]$at" pc2-baseline table "$tiny/release" tables --methods ridge
  fails_in_one_line "$lacks[zero-shot]$at" pc2-baseline zero-shot "$tiny/release" --captures "$tiny/captures" --model x/y -o x.zip
}

try_crawl() {
  now-builder simweb make web --pages 12 --sites 3 --awkward 0 >/dev/null
  now-builder simweb serve web --port 0 --ready-file address &
  ready test -s address
  now-builder crawl web/urls.txt captures --allow-private --resolve "*.test:$(cat address)" | grep -q ' ok'
}

try_cluster() { python -c 'import ray'; }
try_detect() { now-builder detect "$tiny/captures" f.h5 | grep -q pages; }
try_tokenize() { now-builder tokenize "$tiny/captures" captions --bert learn && test -s captions/bert.txt; }
try_package() {  # no caption of dev or test has a word that the train pool's vocabularies know
  cp -r "$tiny/captions" .
  sed -i 's/\<3\>/4/g' captions/*.txt
  sed -i 's/"ids_sha256"/"ids_were"/' captions/*.vocab.json
  now-builder package "$tiny/captures" "$tiny/features.h5" captions release
  now-builder verify release
  now-builder export release parquet --to parquet
}
try_export() { now-builder export "$tiny/release" shards --to webdataset --captures "$tiny/captures" | grep -q complete; }
try_mteb() {
  now-builder export "$tiny/release" tasks --to mteb --captures "$tiny/captures"
  PYTHONPATH=tasks python -c 'from now_tasks import TASKS; assert len(TASKS) == 2'
}
try_baseline() {
  pc2-baseline plant planted --mismatch 0.4
  pc2-baseline train planted run --config pc2-paper --on planted
  pc2-baseline predict run -o x.zip
  now-leaderboard score x.zip --release planted
}
try_lora() { python -c 'import peft'; }
try_zero_shot() { fails_in_one_line "neither a folder nor a name" pc2-baseline zero-shot "$tiny/release" --captures "$tiny/captures" --model no/such -o x.zip; }
try_hub() { unset HF_HUB_OFFLINE; fails_in_one_line "the hub cannot be reached" now-builder fetch-now NoW --endpoint http://127.0.0.1:9; }
try_ocr() { python -c 'import tesserocr; tesserocr.tesseract_version()'; }

if [ $# = 0 ]; then
  set -- none crawl cluster detect tokenize package export mteb baseline zero-shot hub ocr
fi
for extra in "$@"; do
  begun=$SECONDS
  mkdir -p "$work/$extra"
  install "$extra"
  (
    cd "$work/$extra"
    trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
    PATH="$work/$extra/env/bin:$PATH"
    unset PYTHONPATH
    "try_${extra//-/_}" >&2 # set -e holds in it: no "||" here
  )
  size=$(du -sm "$work/$extra/env" | cut -f1)
  echo "$extra: does what it promises ($size MB, $((SECONDS - begun)) s)"
  rm -rf "${work:?}/$extra/env"
done
