#!/bin/bash
#SBATCH --job-name=merlin-workers
#SBATCH --nodes=2
#SBATCH --time=01:00:00
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --open-mode=append

# Workers on every node of one Slurm job:
#
#   sbatch workers/slurm.sh SPEC                # what is said here wins: sbatch --nodes=8 --time=4:00:00 -A BANK -p QUEUE …
#
# The nodes need the file system of the study under the same path, and `merlin`: activate your environment before you
# submit, or put what does it here (module load …, source …/bin/activate).

set -eu
spec=${1:-${SPEC:?name the spec of the study}}
if [ -n "${VIRTUAL_ENV:-}" ]; then
    source "$VIRTUAL_ENV/bin/activate"
fi
exec merlin run-workers "$spec" --scheduler slurm --foreground
