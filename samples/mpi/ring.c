/* A ring of ranks: each step sends a halo to both neighbours, computes, and adds a number up; the last rank computes twice as long.
 *
 *   mpicc -O2 -I FOLDER_OF_NVTX3 ring.c -o ring -ldl
 *   mpirun -n 4 nsys profile -t mpi,nvtx -s none --cpuctxsw=none -o rank%q{PMI_RANK} ./ring
 */
#include <mpi.h>
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEPS = 12, HALO = 1 << 15, CELLS = 1 << 19 };

static double compute(double *cells, int rounds)
{
    double sum = 0;
    for (int round = 0; round < rounds; round++)
        for (int cell = 1; cell < CELLS; cell++)
            sum += cells[cell] = 0.5 * (cells[cell - 1] + cells[cell]);
    return sum;
}

int main(int count, char **words)
{
    int rank, ranks;
    double total = 0;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    double *cells = calloc(CELLS, sizeof *cells), *left = calloc(HALO, sizeof *left), *right = calloc(HALO, sizeof *right);
    if (!cells || !left || !right)
        MPI_Abort(MPI_COMM_WORLD, 1);
    cells[0] = rank + 1;
    int before = (rank + ranks - 1) % ranks, after = (rank + 1) % ranks;
    for (int step = 0; step < STEPS; step++) {
        nvtxRangePushA("step");
        nvtxRangePushA("exchange");
        MPI_Request requests[4];
        MPI_Irecv(left, HALO, MPI_DOUBLE, before, 0, MPI_COMM_WORLD, &requests[0]);
        MPI_Irecv(right, HALO, MPI_DOUBLE, after, 1, MPI_COMM_WORLD, &requests[1]);
        MPI_Isend(cells, HALO, MPI_DOUBLE, after, 0, MPI_COMM_WORLD, &requests[2]);
        MPI_Isend(cells + CELLS - HALO, HALO, MPI_DOUBLE, before, 1, MPI_COMM_WORLD, &requests[3]);
        MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
        nvtxRangePop();
        nvtxRangePushA("compute");
        double sum = compute(cells, rank == ranks - 1 ? 8 : 4);
        nvtxRangePop();
        nvtxRangePushA("sum");
        MPI_Allreduce(&sum, &total, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        nvtxRangePop();
        nvtxRangePop();
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("total %g of %d ranks\n", total, ranks);
    free(cells), free(left), free(right);
    MPI_Finalize();
    return 0;
}
