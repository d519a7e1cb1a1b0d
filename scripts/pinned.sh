#!/usr/bin/env bash
# The pinned web, from the list in the package to a release. Run again, it goes on.
# SITES=100: a part of the list; FROM=FOLDER: of mirrors, no network; OUT=FOLDER to write.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-pinned-web}
mkdir -p "$out"
started=$SECONDS

stage() {
  local begun=$SECONDS
  printf '\n\033[1m> %s\033[0m\n' "$*" >&2
  "$@"
  printf '  %d s\n' $((SECONDS - begun)) >&2
}

stage now-builder pinned make "$out/web" ${SITES:+--sites "$SITES"} ${FROM:+--from "$FROM"}
rm -f "$out/.address"
now-builder pinned serve "$out/web" --port 0 --ready-file "$out/.address" &
server=$!
trap 'kill "$server" 2>/dev/null || true; rm -f "$out/.address"' EXIT
for _ in $(seq 600); do
  if [ -s "$out/.address" ]; then break; fi
  sleep 0.1
done
address=$(cat "$out/.address")

by=domain
if [ "${SITES:-1000}" -lt 100 ]; then by=page; fi  # too few domains for each of dev and test to get one
# No other host is asked, and one page a core has time to come to rest: two builds are alike.
stage now-builder crawl "$out/web/urls.txt" "$out/captures" \
  --allow-private --resolve "*.test:$address" --only '*.test' --image webp --split-by "$by" \
  --concurrency "$(nproc)" --settle-s 6
stage now-builder detect "$out/captures" "$out/features.h5"
stage now-builder tokenize "$out/captures" "$out/captions" --bert learn --no-jieba-white-space
# Of all sites, dev and test are the pairs that were judged to match.
judged=$out/web/judged.csv
matched=()
if [ -z "${SITES:-}" ] && [ -f "$judged" ]; then matched=(--matched "$judged"); fi
stage now-builder package "$out/captures" "$out/features.h5" "$out/captions" "$out/release" \
  "${matched[@]}" --name "Pinned web"
printf '\nDone in %d s: %s\n' $((SECONDS - started)) "$out/release"
