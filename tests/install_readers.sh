#!/usr/bin/env bash
# `make test` calls this: MosaicML's streaming, to read our MDS exports with, in .cache/mds-<version>.
# The package asks for gigabytes of clouds' libraries and an old NumPy; reading local shards needs only what is here.
# Without an index it says so and the test is skipped, or fails where CI is set.
set -euo pipefail

cd "$(dirname "$0")/.."
version=0.13.0
folder=.cache/mds-$version
[ -e "$folder/.complete" ] && exit 0

python=${PYTHON:-.venv/bin/python}
mkdir -p .cache
staging=$(mktemp -d .cache/mds.XXXXXX)
trap 'rm -rf "$staging"' EXIT
if ! "$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --target "$staging" \
  "mosaicml-streaming==$version" catalogue==2.0.10 tqdm xxhash zstd > "$staging/.log" 2>&1; then
  tail -n 3 "$staging/.log" >&2
  echo "could not install mosaicml-streaming $version; the test that reads MDS with it is skipped" >&2
  [ -z "${CI:-}" ] || exit 1
  exit 0
fi
touch "$staging/.complete"
chmod 755 "$staging"
rm -rf "$folder"
mv "$staging" "$folder"
trap - EXIT
