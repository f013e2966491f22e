/* Heat in a plate: each step copies a source to the GPU, runs ten sweeps and copies a sum and a row back.
 *
 *   gcc -O2 -std=gnu11 -fopenacc -foffload=nvptx-none -foffload-options=-misa=sm_80 -I FOLDER_OF_NVTX3 heat.c -o heat -ldl
 *   nsys profile -t cuda,nvtx,openacc -s none --cpuctxsw=none -o openacc ./heat
 */
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

int main(void)
{
    float *plate = calloc(CELLS, sizeof *plate), *next = calloc(CELLS, sizeof *next), *source = malloc(CELLS * sizeof *source);
    if (!plate || !next || !source)
        return 1;
    for (int cell = 0; cell < CELLS; cell++)
        source[cell] = (float)(cell % 97);
    float total = 0;
#pragma acc enter data copyin(plate[0 : CELLS], next[0 : CELLS]) create(source[0 : CELLS])
    for (int step = 0; step < STEPS; step++) {
        nvtxRangePushA("step");
        nvtxRangePushA("load");
        for (int cell = 0; cell < SIDE; cell++)
            source[cell] += 1.0f;
#pragma acc update device(source[0 : CELLS])
        nvtxRangePop();
        nvtxRangePushA("sweeps");
#pragma acc parallel loop gang vector present(plate[0 : CELLS], source[0 : CELLS]) async(1)
        for (int cell = 0; cell < CELLS; cell++)
            plate[cell] += source[cell];
        for (int repeat = 0; repeat < SWEEPS; repeat += 2) {
            sweep(plate, next);
            sweep(next, plate);
        }
#pragma acc wait(1)
        nvtxRangePop();
        nvtxRangePushA("sum");
        total = 0;
#pragma acc parallel loop gang vector reduction(+ : total) present(plate[0 : CELLS]) copy(total)
        for (int cell = 0; cell < CELLS; cell++)
            total += plate[cell];
#pragma acc update self(plate[0 : SIDE])
        nvtxRangePop();
        nvtxRangePop();
    }
#pragma acc exit data delete(plate[0 : CELLS], next[0 : CELLS], source[0 : CELLS])
    printf("total %g on %s\n", total, acc_get_device_type() == acc_device_host ? "the host" : "a GPU");
    free(plate), free(next), free(source);
    return 0;
}
