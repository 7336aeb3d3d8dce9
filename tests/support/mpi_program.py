"""A program for MPI, compiled by Open MPI's compiler."""

from __future__ import annotations

import subprocess
from pathlib import Path

from servers import program

SOURCE = r"""
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv) {
  int rank, size, length, sum = 0;
  char host[MPI_MAX_PROCESSOR_NAME];
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Get_processor_name(host, &length);
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  printf("rank %d of %d on %s sum %d\n", rank, size, host, sum);
  return MPI_Finalize();
}
"""


def compile_mpi(folder: Path) -> Path:
    """Compile a program whose ranks print where they run, and the sum of ranks that they compute together."""
    source = folder / "ranks.c"
    source.write_text(SOURCE)
    subprocess.run([program("mpicc"), "-o", folder / "ranks", source], check=True)
    return folder / "ranks"
