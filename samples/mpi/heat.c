/* Heat in a plate that ranks share, each on a GPU: a step sweeps ten times, swaps edges with the neighbours and adds a sum up.
 *
 *   mpicc -O2 -std=gnu11 -fopenacc -foffload=nvptx-none -foffload-options=-misa=sm_80 -I FOLDER_OF_NVTX3 heat.c -o heat -ldl
 *   mpirun -n 2 nsys profile -t cuda,nvtx,mpi -s none --cpuctxsw=none -o rank%q{PMI_RANK} ./heat
 *   nsys profile -t cuda,nvtx,mpi -s none --cpuctxsw=none -o ranks mpirun -n 2 ./heat
 */
#include <mpi.h>
#include <nvtx3/nvToolsExt.h>
#include <openacc.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIDE = 1024, CELLS = SIDE * SIDE, STEPS = 12, SWEEPS = 10 };

static void sweep(const float *restrict from, float *restrict to)
{
#pragma acc parallel loop gang vector collapse(2) present(from[0 : CELLS], to[0 : CELLS]) async(1)
    for (int row = 1; row < SIDE - 1; row++)
        for (int column = 1; column < SIDE - 1; column++) {
            int cell = row * SIDE + column;
            to[cell] = 0.25f * (from[cell - 1] + from[cell + 1] + from[cell - SIDE] + from[cell + SIDE]);
        }
}

static void exchange(float *plate, int before, int after)
{
    MPI_Request requests[4];
#pragma acc update self(plate[SIDE : SIDE])
#pragma acc update self(plate[CELLS - 2 * SIDE : SIDE])
    MPI_Irecv(plate, SIDE, MPI_FLOAT, before, 0, MPI_COMM_WORLD, &requests[0]);
    MPI_Irecv(plate + CELLS - SIDE, SIDE, MPI_FLOAT, after, 1, MPI_COMM_WORLD, &requests[1]);
    MPI_Isend(plate + CELLS - 2 * SIDE, SIDE, MPI_FLOAT, after, 0, MPI_COMM_WORLD, &requests[2]);
    MPI_Isend(plate + SIDE, SIDE, MPI_FLOAT, before, 1, MPI_COMM_WORLD, &requests[3]);
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
#pragma acc update device(plate[0 : SIDE])
#pragma acc update device(plate[CELLS - SIDE : SIDE])
}

int main(int count, char **words)
{
    int rank, ranks;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    float *plate = calloc(CELLS, sizeof *plate), *next = calloc(CELLS, sizeof *next);
    if (!plate || !next)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (int cell = 0; cell < CELLS; cell++)
        plate[cell] = (float)((cell + rank) % 97);
    float mine = 0, total = 0;
#pragma acc enter data copyin(plate[0 : CELLS], next[0 : CELLS])
    for (int step = 0; step < STEPS; step++) {
        nvtxRangePushA("step");
        nvtxRangePushA("exchange");
        exchange(plate, (rank + ranks - 1) % ranks, (rank + 1) % ranks);
        nvtxRangePop();
        nvtxRangePushA("sweeps");
        for (int repeat = 0; repeat < SWEEPS * (1 + rank); repeat += 2) { /* a later rank has more to do */
            sweep(plate, next);
            sweep(next, plate);
        }
#pragma acc wait(1)
        nvtxRangePop();
        nvtxRangePushA("sum");
        mine = 0;
#pragma acc parallel loop gang vector reduction(+ : mine) present(plate[0 : CELLS]) copy(mine)
        for (int cell = 0; cell < CELLS; cell++)
            mine += plate[cell];
        MPI_Allreduce(&mine, &total, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        nvtxRangePop();
        nvtxRangePop();
    }
#pragma acc exit data delete(plate[0 : CELLS], next[0 : CELLS])
    if (rank == 0)
        printf("total %g of %d ranks on %s\n", total, ranks, acc_get_device_type() == acc_device_host ? "the host" : "a GPU");
    free(plate), free(next);
    MPI_Finalize();
    return 0;
}
