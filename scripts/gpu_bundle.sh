#!/usr/bin/env bash
# Download the wheels that `gpu_check.sh` needs on a machine without a network into .gpu-bundle/.
# PYTHON_VERSION (3.12): Python of that machine.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"
version=${PYTHON_VERSION:-3.12} bundle=${BUNDLE:-.gpu-bundle} limit_mib=40

# Packages that the code imports in addition to torch, torchvision, NumPy and h5py.
packages=(
  annotated-doc annotated-types beartype click iniconfig jaxtyping markdown-it-py mdurl packaging pillow pluggy
  pycocotools pydantic pydantic-core pygments pytest pytest-timeout rich safetensors shellingham tldextract
  filelock idna requests requests-file urllib3 certifi charset-normalizer
  tomli-w tqdm typer typing-extensions typing-inspection wadler-lindig
)

pinned() { # print the line of constraints.txt for a package, with any spelling of its name
  awk -F== -v name="$1" 'BEGIN { gsub(/[-_.]/, "-", name) }
    !/^#/ { found = tolower($1); gsub(/[-_.]/, "-", found); if (found == name) print $0 }' constraints.txt | grep .
}

gather_wheels() {
  local platform=(--platform any) wanted=() minor name
  for minor in 39 35 34 31 28 27 24 17 5; do platform+=(--platform "manylinux_2_${minor}_x86_64"); done
  platform+=(--platform manylinux2014_x86_64 --platform manylinux2010_x86_64 --platform manylinux1_x86_64)
  for name in "${packages[@]}"; do wanted+=("$(pinned "$name")"); done
  rm -rf "$bundle/wheels"
  python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --implementation cp \
    --python-version "$version" "${platform[@]}" --dest "$bundle/wheels" "${wanted[@]}"
}

mkdir -p "$bundle"
gather_wheels
echo "$version" >"$bundle/python-version"
# A copy of the checkout may have no .git: the report takes the commit from here.
{ git rev-parse HEAD; git diff --quiet HEAD || echo "with changes"; } >"$bundle/commit" 2>/dev/null || echo unknown >"$bundle/commit"

(cd "$bundle" && du -ak wheels | sort -rn) | awk '{ printf "%8.2f MiB  %s\n", $1 / 1024, $2 }'
kib=$(du -sk --apparent-size "$bundle" | cut -f1)
printf 'bundle for Python %s: %.1f MiB, at most %d\n' "$version" "$(awk -v k="$kib" 'BEGIN { print k / 1024 }')" "$limit_mib"
if [ "$kib" -gt $((limit_mib * 1024)) ]; then
  echo "gpu_bundle: too large" >&2
  exit 1
fi
