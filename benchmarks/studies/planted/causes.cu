// CUDA C++ programs, each with one planted cause of lost GPU time: causes CAUSE [STEPS]
//
//     nvcc -O2 -std=c++17 causes.cu -o causes && nsys profile -t cuda -s none --cpuctxsw=none -o sync ./causes sync
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>
#include <vector>
#include <cuda_runtime.h>

#define CHECK(call) do { cudaError_t e = (call); if (e != cudaSuccess) { fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e)); exit(1); } } while (0)

constexpr int N = 1 << 24;

__global__ void stencil(const float *in, float *out, int n, int rounds) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < 1 || i >= n - 1) return;
    float value = in[i];
    for (int r = 0; r < rounds; ++r) value = 0.25f * in[i - 1] + 0.5f * value + 0.25f * in[i + 1];
    out[i] = value;
}

__global__ void scan_rows(float *data, int rounds) {
    float value = data[threadIdx.x];
    for (int r = 0; r < rounds; ++r) value = value * 1.0001f + 0.5f;
    data[threadIdx.x] = value;
}

static void compute(const float *in, float *out, int rounds, cudaStream_t stream = 0) {
    stencil<<<(N + 255) / 256, 256, 0, stream>>>(in, out, N, rounds);
}

int main(int argc, char **argv) {
    std::string cause = argc > 1 ? argv[1] : "";
    int steps = argc > 2 ? atoi(argv[2]) : 100;
    size_t bytes = N * sizeof(float);
    float *a, *b, *pinned;
    CHECK(cudaMalloc(&a, bytes));
    CHECK(cudaMalloc(&b, bytes));
    CHECK(cudaMemset(a, 0, bytes));
    CHECK(cudaMallocHost(&pinned, bytes));
    std::vector<float> pageable(N, 1.0f);
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    cudaGraphExec_t graph = nullptr;
    if (cause == "graph-host") {
        cudaGraph_t captured;
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        for (int k = 0; k < 20; ++k) compute(k % 2 ? b : a, k % 2 ? a : b, 10, stream);
        CHECK(cudaStreamEndCapture(stream, &captured));
        CHECK(cudaGraphInstantiate(&graph, captured, nullptr, nullptr, 0));
    }
    for (int step = 0; step < steps; ++step) {
        if (cause == "sync") {  // the host waits after each of many short kernels
            for (int k = 0; k < 50; ++k) {
                stencil<<<128, 256>>>(a, b, 128 * 256, 10);
                CHECK(cudaDeviceSynchronize());
            }
        } else if (cause == "pageable") {  // input comes from ordinary memory
            CHECK(cudaMemcpy(a, pageable.data(), bytes, cudaMemcpyHostToDevice));
            for (int k = 0; k < 10; ++k) compute(a, b, 20);
        } else if (cause == "output") {  // results go back on the stream that computes
            for (int k = 0; k < 10; ++k) compute(a, b, 20, stream);
            CHECK(cudaMemcpyAsync(pinned, b, bytes, cudaMemcpyDeviceToHost, stream));
        } else if (cause == "malloc") {  // memory is allocated in each step
            float *temporary;
            CHECK(cudaMalloc(&temporary, bytes));
            compute(a, temporary, 20);
            compute(temporary, b, 20);
            CHECK(cudaFree(temporary));
        } else if (cause == "launch") {  // kernels are shorter than their launches
            for (int k = 0; k < 300; ++k) stencil<<<4, 256>>>(a, b, 1024, 1);
        } else if (cause == "one-block") {  // a kernel uses 1 of 132 SMs
            compute(a, b, 5);
            scan_rows<<<1, 256>>>(b, 2000000);
        } else if (cause == "host") {  // the host works for 5 ms between kernels
            for (int k = 0; k < 10; ++k) compute(a, b, 20);
            CHECK(cudaStreamSynchronize(0));
            usleep(5000);
        } else if (cause == "graph-host") {  // the host works for 5 ms between replays
            CHECK(cudaGraphLaunch(graph, stream));
            CHECK(cudaStreamSynchronize(stream));
            usleep(5000);
        } else if (cause == "compute") {  // nothing is wrong
            for (int k = 0; k < 10; ++k) compute(k % 2 ? b : a, k % 2 ? a : b, 200);
        } else {
            fprintf(stderr, "causes: sync pageable output malloc launch one-block host graph-host compute\n");
            return 2;
        }
    }
    CHECK(cudaDeviceSynchronize());
    printf("%s: %d steps\n", cause.c_str(), steps);
    return 0;
}
