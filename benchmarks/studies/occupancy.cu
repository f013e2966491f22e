// What cudaOccupancyMaxActiveBlocksPerMultiprocessor answers for kernels of several sizes, as JSON lines.
//
//     nvcc -O1 -std=c++17 occupancy.cu -o occupancy && ./occupancy > occupancy.jsonl
#include <cstdio>
#include <cuda_runtime.h>

template <int ACCUMULATORS, int THREADS, int BLOCKS>
__global__ void __launch_bounds__(THREADS, BLOCKS) work(float *data, int rounds) {
    float sums[ACCUMULATORS];
#pragma unroll
    for (int i = 0; i < ACCUMULATORS; ++i) sums[i] = data[i * blockDim.x + threadIdx.x];
    for (int r = 0; r < rounds; ++r)
#pragma unroll
        for (int i = 0; i < ACCUMULATORS; ++i) sums[i] = sums[i] * sums[(i + 1) % ACCUMULATORS] + 1.5f;
#pragma unroll
    for (int i = 0; i < ACCUMULATORS; ++i) data[i * blockDim.x + threadIdx.x] = sums[i];
}

template <typename Kernel>
void report(Kernel kernel) {
    cudaFuncAttributes attributes;
    cudaFuncGetAttributes(&attributes, kernel);
    for (int threads : {32, 96, 128, 256, 384, 512, 768, 1024}) {
        if (threads > attributes.maxThreadsPerBlock) continue;
        for (int shared : {0, 1000, 16384, 49152, 98304, 200000}) {
            if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared) != cudaSuccess) continue;
            int blocks = 0;
            if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared) != cudaSuccess) continue;
            printf("{\"threads\": %d, \"registers\": %d, \"shared_bytes\": %d, \"blocks\": %d}\n", threads,
                   attributes.numRegs, shared + (int)attributes.sharedSizeBytes, blocks);
        }
    }
}

int main() {
    report(work<1, 1024, 1>);
    report(work<16, 1024, 1>);
    report(work<32, 1024, 1>);
    report(work<40, 512, 1>);
    report(work<64, 512, 1>);
    report(work<100, 256, 1>);
    report(work<160, 256, 1>);
    report(work<230, 128, 1>);
    return 0;
}
