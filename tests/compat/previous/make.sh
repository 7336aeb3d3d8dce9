#!/bin/bash
# Makes kept.tar.xz with the `merlin` on the PATH: a study that grew, one that was killed in the middle, and a training run.
# To be run with the version that the next one has to understand, in this directory.
set -euo pipefail
here=$PWD
place=$(mktemp -d)
cp simulate.py ./*.yaml "$place"
cd "$place"
merlin run study.yaml --local
mv kept_2* kept
merlin run study.yaml --local --extend kept --vars N_SAMPLES=64
setsid merlin run cut.yaml --local > /dev/null 2>&1 &
until ls cut_2*/waiting > /dev/null 2>&1; do :; done
until [ "$(find cut_2*/work -name out.json | wc -l)" -ge 15 ]; do :; done
kill -9 -- -$!
rm cut_2*/waiting
mv cut_2* cut
merlin train train.yaml data=kept directory=trained
merlin shards verify kept
tar cJf "$here/kept.tar.xz" kept cut trained
rm -r "$place"
