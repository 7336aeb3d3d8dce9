#!/bin/bash
#flux: --job-name=merlin-workers
#flux: -N 2
#flux: --exclusive
#flux: -t 3600s

# Workers on every node of one Flux job:
#
#   flux batch workers/flux.sh SPEC             # what is said here wins: flux batch -N 8 -t 4h --bank=BANK -q QUEUE …
#
# The nodes need the file system of the study under the same path, and `merlin`: activate your environment before you
# submit, or put what does it here (module load …, source …/bin/activate).

set -eu
spec=${1:-${SPEC:?name the spec of the study}}
if [ -n "${VIRTUAL_ENV:-}" ]; then
    source "$VIRTUAL_ENV/bin/activate"
fi
exec merlin run-workers "$spec" --scheduler flux --foreground
