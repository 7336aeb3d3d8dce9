#!/bin/bash
#PBS -N merlin-workers
#PBS -l select=2:mpiprocs=1
#PBS -l place=scatter:excl
#PBS -l walltime=01:00:00
#PBS -r y

# Workers on every node of one PBS job:
#
#   qsub -V -v SPEC=my.yaml workers/pbs.sh      # what is said here wins: qsub -l select=8:mpiprocs=1 -l walltime=4:00:00 …
#
# The nodes need the file system of the study under the same path, and `merlin`: activate your environment before you
# submit, or put what does it here (module load …, source …/bin/activate).

set -eu
cd "$PBS_O_WORKDIR"   # PBS begins in the home directory
spec=${1:-${SPEC:?name the spec of the study}}
if [ -n "${VIRTUAL_ENV:-}" ]; then
    source "$VIRTUAL_ENV/bin/activate"
fi
exec merlin run-workers "$spec" --scheduler pbs --foreground
