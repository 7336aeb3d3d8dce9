#!/bin/bash
#BSUB -J merlin-workers
#BSUB -nnodes 2
#BSUB -W 01:00
#BSUB -o merlin-workers.out
#BSUB -x
#BSUB -r

# Workers on every node of one LSF job:
#
#   SPEC=my.yaml bsub < workers/lsf.sh          # what is said here wins: bsub -nnodes 8 -W 4:00 -G BANK -q QUEUE …
#
# The nodes need the file system of the study under the same path, and `merlin`: activate your environment before you
# submit, or put what does it here (module load …, source …/bin/activate).

set -eu
spec=${1:-${SPEC:?name the spec of the study}}
if [ -n "${VIRTUAL_ENV:-}" ]; then
    source "$VIRTUAL_ENV/bin/activate"
fi
exec merlin run-workers "$spec" --scheduler lsf --foreground
