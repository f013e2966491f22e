"""Advice on launches: small kernels, loops of launches, streams."""

from __future__ import annotations

from traceview.pricing.fixes import Fix, Fixes

GRAPH_CODE = """cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
step(stream);                                   // launches and copies only
cudaStreamEndCapture(stream, &graph);
cudaGraphInstantiate(&executable, graph, 0);
for (int i = 0; i < steps; ++i) cudaGraphLaunch(executable, stream);"""
COMPILE_CODE = 'model = torch.compile(model, mode="reduce-overhead")'
GRAPH_NEEDS = (
    "A graph needs static shapes, no host synchronization and no data-dependent branch inside, and memory for its own "
    "buffers. "
)
NO_STREAMS = "More streams do not help, because the host is the limit."
TORCH_GRAPH = (
    "Launch the step as one CUDA graph (`make_graphed_callables`, or torch.compile with "
    f'mode="reduce-overhead"). {GRAPH_NEEDS}'
)
LAUNCH_BOUND = Fixes(
    cuda=Fix(
        f"Launch the step as one CUDA graph. {GRAPH_NEEDS}Otherwise give each kernel more work: fuse neighbours, "
        f"process several steps or items in one launch. {NO_STREAMS}",
        GRAPH_CODE,
    ),
    pytorch=Fix(
        f"{TORCH_GRAPH}Otherwise give each kernel more work: a larger batch, torch.compile's fusion, "
        f"`AdamW(..., fused=True)`. {NO_STREAMS}",
        f"{COMPILE_CODE}\n# or, by hand: model = torch.cuda.make_graphed_callables(model, (sample_batch,))",
    ),
    inference=Fix(
        f"{TORCH_GRAPH}A decode loop needs a cache of fixed size for it. Otherwise give each kernel more work: more "
        f"requests in a batch, torch.compile's fusion. {NO_STREAMS}",
        COMPILE_CODE,
    ),
    jax=Fix(
        "Put the whole step into one `jax.jit`, and several steps into one `lax.scan`: XLA then fuses small operations "
        "and launches them without Python between them. Operations outside `jit` are launched one by one. A larger "
        f"batch gives each kernel more work. {NO_STREAMS}",
        "state, outputs = jax.jit(lambda state, inputs: jax.lax.scan(step, state, inputs))(state, inputs)",
        remedy="Put the step into one `jax.jit`, and several steps into `lax.scan`.",
    ),
    tensorrt=Fix(
        "Capture the call of the engine in a CUDA graph and launch that (`trtexec --useCudaGraph` shows the gain): "
        "shapes must stay the same, and one call comes before the capture. Otherwise use a larger batch.",
        """context->enqueueV3(stream);                     // once before the capture
cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
context->enqueueV3(stream);
cudaStreamEndCapture(stream, &graph);""",
        remedy="Launch the engine as one CUDA graph, or use a larger batch.",
    ),
    onnx=Fix(
        "Let ONNX Runtime replay a CUDA graph: `enable_cuda_graph`, with static shapes and inputs and outputs bound to "
        "fixed memory. Otherwise use a larger batch; its graph optimizations fuse operations.",
        'session = InferenceSession(path, providers=[("CUDAExecutionProvider", {"enable_cuda_graph": "1"})])',
        remedy="Let ONNX Runtime replay a CUDA graph, or use a larger batch.",
    ),
    julia=Fix(
        "Launch the step as one CUDA graph (`CUDA.@captured`), which needs fixed arrays. Otherwise give each kernel "
        f"more work: fuse broadcasts into one expression with dots, process several steps in one kernel. {NO_STREAMS}",
        "@. y = a * x + b * z          # one kernel; not t = b .* z; y = a .* x .+ t",
        remedy="Fuse broadcasts, or launch the step as one CUDA graph.",
    ),
    openacc=Fix(
        "Let the host run ahead: `async` on the constructs, so that they are queued without a wait, and `wait` only "
        "where the host needs the result. Merge neighbouring loops into one construct, and `collapse` nested loops.",
        """#pragma acc parallel loop async(1)
for (int i = 0; i < n; ++i) y[i] = f(x[i]);
#pragma acc wait(1)                             // once, where the host needs y""",
        remedy="Queue constructs with `async`, and merge neighbouring loops.",
    ),
    openmp=Fix(
        "Let the host run ahead: `nowait` and `depend` on the target constructs, so that they are queued without a "
        "wait, and `taskwait` only where the host needs the result. Merge neighbouring loops, and `collapse` nested "
        "ones.",
        """#pragma omp target teams distribute parallel for nowait depend(out: y[0:n])
for (int i = 0; i < n; ++i) y[i] = f(x[i]);
#pragma omp taskwait                            // once, where the host needs y""",
        remedy="Queue constructs with `nowait`, and merge neighbouring loops.",
    ),
    arrays=Fix(
        "Each call from Python launches one small kernel. Fuse element-wise expressions into one kernel, process "
        "several steps or items in one call, or replay the step as a CUDA graph (CuPy and Numba can capture streams). "
        f"{GRAPH_NEEDS}{NO_STREAMS}",
        """@cupy.fuse()                  # CuPy: one kernel for the whole expression
def update(x, y):
    return a * x + b * y""",
        remedy="Fuse expressions into one kernel, or do more in each call.",
    ),
)
KERNEL_STORM = Fixes(
    cuda=Fix(
        "Replace the loop by one kernel over all elements, or one copy of all values. This always pays: one kernel can "
        "do the GPU work of the whole loop. Libraries have batched forms of small operations "
        "(`cublasSgemmStridedBatched`, batched FFTs).",
        """// for (int i = 0; i < n; ++i) set_one<<<1, 1>>>(x, i);
set_all<<<(n + 255) / 256, 256>>>(x, n);""",
    ),
    pytorch=Fix(
        "Replace the loop by one operation on the whole tensor: index with tensors instead of numbers, or fill a NumPy "
        "array or a list on the host and copy it once. This always pays: one kernel can do the GPU work of the whole "
        "loop.",
        """# for i, j in pairs: mask[i, j] = 1.0
rows, columns = torch.tensor(pairs, device=device).T
mask[rows, columns] = 1.0""",
    ),
    jax=Fix(
        "Replace the Python loop by one operation on the whole array (`jax.vmap`, indexing with arrays), or put it "
        "into `jit` as `lax.scan` or `lax.fori_loop`.",
        "mask = mask.at[rows, columns].set(1.0)          # not one .at[i, j] per element",
    ),
    julia=Fix(
        "Replace the loop by one broadcast or one kernel over all elements. Reading or writing single elements "
        "launches a copy each: `CUDA.allowscalar(false)` finds such places.",
        "mask[indices] .= 1f0          # not for i in indices; mask[i] = 1f0; end",
    ),
    openacc=Fix(
        "Put the loop inside the construct: one `parallel loop` over all elements instead of one construct for each. "
        "Update an array in one piece.",
        """#pragma acc parallel loop collapse(2)
for (int j = 0; j < m; ++j)
    for (int i = 0; i < n; ++i) y[j * n + i] = f(x[j * n + i]);""",
    ),
    openmp=Fix(
        "Put the loop inside the construct: one target construct over all elements instead of one for each. Update an "
        "array in one piece.",
        """#pragma omp target teams distribute parallel for collapse(2)
for (int j = 0; j < m; ++j)
    for (int i = 0; i < n; ++i) y[j * n + i] = f(x[j * n + i]);""",
    ),
    arrays=Fix(
        "Replace the loop by one operation on the whole array: index with arrays instead of numbers, or fill a NumPy "
        "array on the host and copy it once. This always pays: one kernel can do the GPU work of the whole loop.",
        "mask[rows, columns] = 1.0          # not one assignment per element",
    ),
)
OPERATION_GAPS = Fixes(
    cuda=Fix(
        "About 1 µs from one kernel to the next is hardware latency, a few µs for copies and memsets. Fewer and larger "
        "kernels need fewer such steps, and a CUDA graph starts its kernels faster.",
        GRAPH_CODE,
    ),
    pytorch=Fix(
        "About 1 µs from one kernel to the next is hardware latency, a few µs for copies and memsets. Larger or fused "
        "kernels need fewer such steps: torch.compile fuses element-wise operations, and CUDA graphs start their "
        "kernels faster.",
        "model = torch.compile(model)",
    ),
    jax=Fix("Larger or fused kernels need fewer such steps: put more of the program into one `jax.jit`."),
    openacc=Fix("Fewer and larger kernels need fewer such steps: merge neighbouring loops into one construct."),
    openmp=Fix("Fewer and larger kernels need fewer such steps: merge neighbouring loops into one construct."),
)
DEPENDENCY_WAIT = Fixes(
    cuda=Fix(
        "An event from one stream to another costs a few µs each time. Put operations that depend on each other on "
        "the same stream, and use other streams only for work that can overlap.",
        """// kernel_a<<<..., first>>>(x); cudaEventRecord(event, first); cudaStreamWaitEvent(second, event);
kernel_a<<<grid, block, 0, first>>>(x);
kernel_b<<<grid, block, 0, first>>>(x);         // needs x: the same stream, without an event""",
    ),
    pytorch=Fix(
        "An event from one stream to another costs a few µs each time. Put operations that depend on each other on "
        "the same stream, and use other streams only for work that can overlap: copies of the next batch, "
        "communication."
    ),
    openacc=Fix("Constructs that depend on each other belong to the same `async` queue; each `wait(n)` costs some µs."),
)
PROCESS_WAIT = Fixes(
    cuda=Fix(
        "Processes that share a GPU take turns, and each change of turns costs time. Give each process a GPU of its "
        "own, or let them run at the same time under the Multi-Process Service (MPS).",
        "nvidia-cuda-mps-control -d          # then start the processes as before",
        is_command=True,
    ),
)
LATE_START = Fixes(
    cuda=Fix(
        "The GPU's own latency is below 0.1 ms. Look for what the capture lacks: other programs on the GPU "
        "(`nvidia-smi`), migrations of managed memory (`--cuda-um-gpu-page-faults=true`), modules that load at the "
        "first launch (`CUDA_MODULE_LOADING=EAGER`), or a host that answers the GPU late."
    ),
)
UNUSED_STREAM_USE = "Use streams for independent work: copies of the next part, communication, independent kernels."
IDLE_STREAM = Fixes(
    cuda=Fix(
        "If its work depends on that of the busy stream, two streams cannot overlap them: remove the stream and its "
        f"events. {UNUSED_STREAM_USE}"
    ),
    pytorch=Fix(
        "The backward pass of a step depends on its forward pass, so two streams cannot overlap them. Remove the "
        "stream, its waits and its `record_stream` calls. Use streams for independent work: copies of the next batch, "
        "communication, branches of a model. To run a branch of backward on another stream, run its forward there.",
        """# with torch.cuda.stream(backward_stream): loss.backward()   <- runs on the forward's stream anyway
loss.backward()""",
    ),
    inference=Fix(
        "If its work depends on that of the busy stream, two streams cannot overlap them: remove the stream, its waits "
        f"and its `record_stream` calls. {UNUSED_STREAM_USE}"
    ),
)
UNUSED_STREAM = Fixes(
    cuda=Fix(
        "Events are recorded or awaited on these streams, but none of the captured work runs on them. Remove each such "
        "stream, or issue its work on it. Keep streams that belong to a library or that work before or after the "
        "capture."
    ),
    pytorch=Fix(
        "Events are recorded or awaited on these streams, but none of the captured work runs on them. Remove each such "
        "stream, or issue its work inside `with torch.cuda.stream(...)`. Keep streams that belong to a library or that "
        "work before or after the capture."
    ),
)
