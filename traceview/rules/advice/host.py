"""Advice on the host: synchronization, memory, data loading and other code between launches."""

from __future__ import annotations

from traceview.pricing.fixes import Fix, Fixes

NO_COST = (
    "A wait while the GPU is busy costs nothing. The cost is the time in which the GPU has run out of work and the "
    "host launches again. "
)
LAUNCHES_FIRST = (
    " This helps only if the host can then run ahead of the GPU; if the loop is launch-bound, fix that first."
)
SYNCHRONIZE = Fixes(
    cuda=Fix(
        f"{NO_COST}Remove `cudaDeviceSynchronize` from the loop. Order streams by events (`cudaStreamWaitEvent`), copy "
        "results to pinned memory with `cudaMemcpyAsync` and read them one step later, and test for convergence every "
        f"N steps.{LAUNCHES_FIRST}",
        """residual<<<blocks, threads, 0, stream>>>(x, error);
if (step % 50 == 0) {                           // not in every step
    cudaMemcpyAsync(host_error, error, sizeof(float), cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
}""",
    ),
    pytorch=Fix(
        f"{NO_COST}Remove `torch.cuda.synchronize()`. Read scalars every N steps, or copy them with "
        "`non_blocking=True` to pinned memory and read them one step later. Replace `if tensor > x` and boolean "
        f"indexing by `torch.where`.{LAUNCHES_FIRST}",
        """losses.append(loss.detach())                      # stays on the GPU
if step % 50 == 0:
    log(torch.stack(losses).mean().item()); losses.clear()""",
    ),
    inference=Fix(
        f"{NO_COST}Remove `torch.cuda.synchronize()`. Keep tokens and scores on the GPU, copy results with "
        "`non_blocking=True` to pinned memory and read them one step later, and test for the end every N steps. "
        f"Replace `if tensor > x` and boolean indexing by `torch.where`.{LAUNCHES_FIRST}",
        """token = logits.argmax(-1)                         # stays on the GPU, and is the next input
if step % 8 == 0 and bool((token == end).all()):  # not in every step
    break""",
    ),
    jax=Fix(
        f"{NO_COST}`float(x)`, `np.asarray(x)`, `print(x)` and `block_until_ready()` wait. Dispatch the next step "
        f"first and read the values of the step before it, or read them every N steps.{LAUNCHES_FIRST}",
        """state, metrics = step(state, inputs)              # returns before the GPU has finished
if i % 50 == 0:
    log(jax.device_get(metrics))""",
    ),
    tensorrt=Fix(
        f"{NO_COST}Keep two calls of the engine in flight, each with its own execution context, stream and buffers, "
        f"and wait for the older one.{LAUNCHES_FIRST}",
        """contexts[i % 2]->enqueueV3(streams[i % 2]);
cudaStreamSynchronize(streams[(i + 1) % 2]);      // the call before this one""",
    ),
    onnx=Fix(
        f"{NO_COST}`run` waits for its outputs. Bind inputs and outputs to GPU memory (`io_binding`) and call "
        "`run_with_iobinding`, so that only what the host needs is copied and awaited; let two threads call the "
        f"session in turn.{LAUNCHES_FIRST}"
    ),
    julia=Fix(
        f"{NO_COST}`CUDA.@sync`, `synchronize()`, `Array(x)` and reading one element wait. Keep values in arrays on "
        f"the GPU and test for convergence every N steps.{LAUNCHES_FIRST}",
        "step % 50 == 0 && maximum(error) < tolerance && break    # not in every step",
    ),
    openacc=Fix(
        f"{NO_COST}Without `async`, each construct waits for its end. Put `async` on constructs and updates, and "
        f"`wait` only where the host needs a result; test for convergence every N steps.{LAUNCHES_FIRST}",
        """#pragma acc parallel loop async(1)
for (int i = 0; i < n; ++i) y[i] = f(x[i]);
if (step % 50 == 0) {
#pragma acc update self(error) wait(1)
}""",
    ),
    openmp=Fix(
        f"{NO_COST}Without `nowait`, each target construct waits for its end. Put `nowait` and `depend` on them, and "
        f"`taskwait` only where the host needs a result; test for convergence every N steps.{LAUNCHES_FIRST}",
        """#pragma omp target teams distribute parallel for nowait depend(inout: y[0:n])
for (int i = 0; i < n; ++i) y[i] = f(y[i]);
if (step % 50 == 0) {
#pragma omp taskwait
}""",
    ),
    arrays=Fix(
        f"{NO_COST}Converting an array to a number or to NumPy waits (`float(x)`, `x.get()`, `if x > limit`). Keep "
        f"values in arrays on the GPU and read them every N steps.{LAUNCHES_FIRST}",
        """if step % 50 == 0 and float(residual) < tolerance:   # not in every step
    break""",
    ),
)
ALLOCATION = Fixes(
    cuda=Fix(
        "Allocate before the loop and reuse the memory. For memory that must be allocated in the loop, use the "
        "stream-ordered pool (`cudaMallocAsync`, `cudaFreeAsync`), which does not wait for the GPU if the pool keeps "
        "freed memory.",
        """cudaDeviceGetDefaultMemPool(&pool, device);
uint64_t keep = UINT64_MAX;
cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep);
cudaMallocAsync(&buffer, bytes, stream);        // later cudaFreeAsync(buffer, stream)""",
    ),
    pytorch=Fix(
        "Allocate before the loop and reuse the memory: remove `torch.cuda.empty_cache()` from the loop, keep the "
        "caching allocator on (unset `PYTORCH_NO_CUDA_MEMORY_CACHING`), allocate pinned buffers once instead of for "
        "each batch, and pad inputs to a few shapes or enable expandable segments. "
        "If the GPU's memory is nearly full, the allocator must free before it allocates: use a smaller batch or cache "
        "less.",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True COMMAND",
        is_command=True,
    ),
    jax=Fix(
        "JAX takes its memory once, at the start, unless `XLA_PYTHON_CLIENT_PREALLOCATE` or "
        "`XLA_PYTHON_CLIENT_ALLOCATOR` says otherwise: remove these settings. `donate_argnums` lets outputs reuse the "
        "memory of inputs. Pad inputs to a few shapes.",
        "step = jax.jit(step, donate_argnums=(0,))",
    ),
    tensorrt=Fix(
        "Create the execution context, its inputs and its outputs once, at the largest shape, and bind the same memory "
        "in each call.",
        "context->setTensorAddress(name, buffer);          // once, before the loop",
    ),
    onnx=Fix(
        "Bind inputs and outputs to memory that is allocated once, and keep the arena of the CUDA provider on; pad "
        "inputs to a few shapes.",
        "binding = session.io_binding()                    # once; then session.run_with_iobinding(binding)",
    ),
    julia=Fix(
        "Allocate arrays before the loop and write into them (`.=`, `mul!`). Each new array comes from a pool that the "
        "garbage collector must empty: `CUDA.unsafe_free!` returns memory at once.",
        "y .= a .* x .+ y              # writes into y; not y = a .* x .+ y",
    ),
    openacc=Fix(
        "Open one data region around the loop: a data clause on a construct inside it allocates and frees each time.",
        """#pragma acc data copyin(x[0:n]) create(work[0:n])
for (int step = 0; step < steps; ++step) advance(x, work, n);   // constructs with present(x, work)""",
    ),
    openmp=Fix(
        "Open one data region around the loop: a map clause on a construct inside it allocates and frees each time.",
        """#pragma omp target data map(to: x[0:n]) map(alloc: work[0:n])
for (int step = 0; step < steps; ++step) advance(x, work, n);""",
    ),
    arrays=Fix(
        "Allocate before the loop and write into existing arrays (`out=`). Keep the library's memory pool: do not "
        "empty it in the loop, and allocate pinned buffers once."
    ),
)
MORE_WORKERS = (
    "Load batches in worker processes, ahead of the loop: `num_workers` near the number of free cores, "
    "`prefetch_factor` 2 to 4, `persistent_workers=True`. Decode and augment in the workers, not in the loop. The "
    "workers together must deliver one batch per step time; otherwise the throughput of the loader is the limit."
)
DATA_AHEAD = (
    "Prepare the next input in another thread or process while the GPU works on this one, with two buffers in turn. If "
    "preparing takes longer than the GPU works, share it among several threads or do it on the GPU."
)
DATA_LOADING = Fixes(
    cuda=Fix(
        DATA_AHEAD,
        """auto next = std::async(std::launch::async, load, step + 1);   // while the GPU computes this step
compute(current, stream);
current = next.get();""",
    ),
    pytorch=Fix(
        MORE_WORKERS,
        """loader = DataLoader(dataset, batch_size=..., num_workers=8, prefetch_factor=4,
                    persistent_workers=True, pin_memory=True)""",
    ),
    inference=Fix(DATA_AHEAD),
    jax=Fix(DATA_AHEAD),
    julia=Fix(DATA_AHEAD, "following = Threads.@spawn load(step + 1)     # while the GPU computes this step"),
    python=Fix(
        DATA_AHEAD,
        """following = executor.submit(load, step + 1)       # while the GPU computes this step
compute(current)
current = following.result()""",
    ),
)
FIND_HOST_CODE = (
    "Add NVTX ranges or sample the process ({tool}) to find it. Then move it to another thread, run it every N steps, "
    "or run it while the GPU still has queued work."
)
HOST_BOUND = Fixes(
    cuda=Fix(
        "The launching thread ran code outside CUDA: input and output, computation on the host, a lock, memory "
        f"management. {FIND_HOST_CODE.replace('{tool}', '`perf record`, `nsys profile -s process-tree`')}",
        """nvtxRangePushA("write output");
write_output(host_buffer);
nvtxRangePop();""",
    ),
    python=Fix(
        "The launching thread ran code outside CUDA: Python between operations, logging, a lock or the garbage "
        f"collector. {FIND_HOST_CODE.replace('{tool}', '`py-spy record`')}",
        "gc.disable()   # if collections show up here; then call gc.collect() every N steps",
    ),
    jax=Fix(
        "The launching thread ran code outside CUDA: compilation of a function for new shapes, Python that prepares "
        f"inputs, logging. Keep shapes and static arguments the same. "
        f"{FIND_HOST_CODE.replace('{tool}', '`py-spy record`')}",
        'jax.config.update("jax_log_compiles", True)   # names what is compiled, and when',
    ),
    julia=Fix(
        "The launching thread ran code outside CUDA: compilation of a method, the garbage collector, input and output. "
        f"{FIND_HOST_CODE.replace('{tool}', 'the package Profile')}",
        "GC.enable(false)   # if collections show up here; then run GC.gc() every N steps",
    ),
)
OPTIMIZER_STEP = Fixes(
    cuda=HOST_BOUND.cuda,
    python=HOST_BOUND.python,
    jax=HOST_BOUND.jax,
    julia=HOST_BOUND.julia,
    pytorch=Fix(
        "An optimizer step is mostly Python: each call gathers lists of parameters for each group. `fused=True` "
        "reduces it to a few kernels with little host work; `torch.compile(optimizer.step)` removes nearly all host "
        "work. Both give the same update up to rounding. `fused=True` needs floating-point parameters on the GPU.",
        "optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)",
    ),
    inference=HOST_BOUND.python,
)
FIRST_LAUNCH = "The first launch of a kernel loads its module: set CUDA_MODULE_LOADING=EAGER, or run "
SLOW_CALLS = Fixes(
    cuda=Fix(
        f"{FIRST_LAUNCH}every kernel once before measuring. The other calls manage events and streams: create them "
        "once, before the loop; a CUDA graph moves them out of it.",
        "CUDA_MODULE_LOADING=EAGER COMMAND",
        is_command=True,
    ),
    pytorch=Fix(
        f"{FIRST_LAUNCH}warm-up steps of every shape before measuring. The other calls manage events and streams; a "
        "CUDA graph moves them out of the loop.",
        "for shape in shapes: model(torch.zeros(shape, device=device))   # warm-up",
    ),
)
PROFILER_START = "nsys profile -c cudaProfilerApi --capture-range-end=stop -t cuda,nvtx COMMAND"
STEADY_STEPS = (
    "This cost occurs once and does not affect the speed of the steps. To exclude it from all figures, capture only "
    "steady steps, or narrow this report (`--from`, `--to`, `--range`)."
)
START_UP = Fixes(
    cuda=Fix(STEADY_STEPS, f"cudaProfilerStart();                  // after the warm-up steps\n// {PROFILER_START}"),
    pytorch=Fix(
        STEADY_STEPS, f"torch.cuda.cudart().cudaProfilerStart()   # after the warm-up steps\n# {PROFILER_START}"
    ),
    julia=Fix(STEADY_STEPS, f"CUDA.@profile external=true run_steady_steps()\n# {PROFILER_START}"),
    python=Fix(STEADY_STEPS, PROFILER_START, is_command=True),
)
UNKNOWN_LAUNCH = Fixes(
    cuda=Fix(
        "Capture whole steps with `-t cuda,nvtx`; start and stop while the GPU is idle.",
        PROFILER_START,
        is_command=True,
    )
)
