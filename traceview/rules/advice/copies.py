"""Advice on copies, memsets and managed memory."""

from __future__ import annotations

from traceview.pricing.fixes import Fix, Fixes

SEND_LESS = "must compute at least as long as it copies; otherwise send fewer bytes"
DOUBLE_BUFFER_CODE = """cudaMallocHost(&host, 2 * bytes);               // pinned, allocated once
cudaMemcpyAsync(device[next], host_next, bytes, cudaMemcpyHostToDevice, copy_stream);
cudaEventRecord(copied[next], copy_stream);
compute<<<blocks, threads, 0, stream>>>(device[current]);     // runs beside the copy
cudaStreamWaitEvent(stream, copied[next], 0);                 // before device[next] is used"""
TORCH_PREFETCH_CODE = """with torch.cuda.stream(copy_stream):                # the next batch, beside this one
    following = following.to(device, non_blocking=True)
torch.cuda.current_stream().wait_stream(copy_stream)      # before it is used
following.record_stream(torch.cuda.current_stream())"""
JAX_PREFETCH_CODE = """following = jax.device_put(next(batches))         # returns at once
state = step(state, current)
current = following"""
ACC_ASYNC_CODE = """#pragma acc update device(next[0:n]) async(2)   // while queue 1 computes
#pragma acc parallel loop async(1) present(current)
for (int i = 0; i < n; ++i) y[i] = f(current[i]);
#pragma acc wait(2) async(1)                    // before next is used"""
OMP_ASYNC_CODE = """#pragma omp target update to(next[0:n]) nowait depend(out: next)   // while the other part computes
#pragma omp target teams distribute parallel for nowait depend(inout: y)
for (int i = 0; i < n; ++i) y[i] = f(current[i]);"""
CUPY_CODE = """host = cupyx.empty_pinned(shape, dtype)           # CuPy: pinned, allocated once
with copy_stream:
    following.set(host)                           # while the other stream computes
cupy.cuda.get_current_stream().wait_event(copy_stream.record())"""
BESIDE = "copy the next part on a separate stream while this one computes"
SHARED_STREAM = Fixes(
    cuda=Fix(
        "Issue them on a separate stream before they are needed, with an event where the data is used. Other compute "
        "must run meanwhile: copy the next part during this one. A copy stream without that changes nothing, because "
        "the kernels still wait for the copy.",
        DOUBLE_BUFFER_CODE,
    ),
    pytorch=Fix(
        "Issue them on a separate stream before they are needed: use `with torch.cuda.stream(copy_stream)` and "
        "`non_blocking=True`, then `wait_stream` where the data is used. Other compute must run meanwhile: copy the "
        "next batch during this step. A copy stream without a prefetch changes nothing, because the kernels still wait "
        "for the copy.",
        TORCH_PREFETCH_CODE,
    ),
    jax=Fix(
        "Put the next batch on the device before this step's values are read (`jax.device_put` returns at once), so "
        "that the copy runs while the step computes.",
        JAX_PREFETCH_CODE,
    ),
    openacc=Fix(
        "Put the update on another queue than the loops (`async(2)`), and copy the next part while this one computes.",
        ACC_ASYNC_CODE,
    ),
    openmp=Fix(
        "Put `nowait` and `depend` on the update, and copy the next part while this one computes.", OMP_ASYNC_CODE
    ),
    arrays=Fix(f"Issue them on a stream of their own before they are needed: {BESIDE}.", CUPY_CODE),
)
LATE_COPIES = (
    "The copies have their own stream but start too late: issue the copy of the next {part} before this step's kernels "
    "instead of after them, and two ahead if loading times vary. "
)
PREFETCH = Fixes(
    cuda=Fix(f"{LATE_COPIES.replace('{part}', 'part')}A step {SEND_LESS}.", DOUBLE_BUFFER_CODE),
    pytorch=Fix(
        f"{LATE_COPIES.replace('{part}', 'batch')}The step {SEND_LESS} (uint8 or bf16 instead of float32, converted on "
        "the GPU).",
        """following = next(batches)      # on copy_stream, before this step's kernels
loss = step(current)
torch.cuda.current_stream().wait_stream(copy_stream); current = following""",
    ),
    inference=Fix(
        f"{LATE_COPIES.replace('{part}', 'request')}A request {SEND_LESS}.",
        """following = next(requests)     # on copy_stream, before this step's kernels
outputs = model(current)
torch.cuda.current_stream().wait_stream(copy_stream); current = following""",
    ),
    jax=Fix(f"{LATE_COPIES.replace('{part}', 'batch')}The step {SEND_LESS}.", JAX_PREFETCH_CODE),
    openacc=Fix(f"{LATE_COPIES.replace('{part}', 'part')}A step {SEND_LESS}.", ACC_ASYNC_CODE),
    openmp=Fix(f"{LATE_COPIES.replace('{part}', 'part')}A step {SEND_LESS}.", OMP_ASYNC_CODE),
    arrays=Fix(f"{LATE_COPIES.replace('{part}', 'part')}A step {SEND_LESS}.", CUPY_CODE),
)
MIXED_STREAMS = (
    "The copies run on streams that also compute, so a kernel waits for the copy before it, and only the kernels of "
    "another stream can hide it. Copy the next {part} on its own stream, before this step's kernels. "
)
MIXED = Fixes(
    cuda=Fix(f"{MIXED_STREAMS.replace('{part}', 'part')}A step {SEND_LESS}.", DOUBLE_BUFFER_CODE),
    pytorch=Fix(f"{MIXED_STREAMS.replace('{part}', 'batch')}The step {SEND_LESS}.", TORCH_PREFETCH_CODE),
    jax=Fix(f"{MIXED_STREAMS.replace('{part}', 'batch')}The step {SEND_LESS}.", JAX_PREFETCH_CODE),
    openacc=Fix(f"{MIXED_STREAMS.replace('{part}', 'part')}A step {SEND_LESS}.", ACC_ASYNC_CODE),
    openmp=Fix(f"{MIXED_STREAMS.replace('{part}', 'part')}A step {SEND_LESS}.", OMP_ASYNC_CODE),
    arrays=Fix(f"{MIXED_STREAMS.replace('{part}', 'part')}A step {SEND_LESS}.", CUPY_CODE),
)
KERNEL_GAPS = (
    "of it in {pieces} gaps between kernels (median {typical}). The copy already runs beside the compute. It widens "
    "these gaps a little, because launches and copies share the link to the host. More prefetching does not help; "
    "fewer and longer kernels do: "
)
BETWEEN_KERNELS = Fixes(
    cuda=Fix(f"{KERNEL_GAPS}a CUDA graph, fused kernels or larger parts."),
    pytorch=Fix(
        f"{KERNEL_GAPS}a CUDA graph, torch.compile or a larger batch.",
        'model = torch.compile(model, mode="reduce-overhead")',
    ),
    jax=Fix(f"{KERNEL_GAPS}more of the program in one `jax.jit`, or a larger batch."),
    openacc=Fix(f"{KERNEL_GAPS}merge neighbouring loops into one construct."),
    openmp=Fix(f"{KERNEL_GAPS}merge neighbouring loops into one construct."),
)
READ_BACK = Fixes(
    cuda=Fix(
        "Copy results to pinned memory on a separate stream, and read them one step later, after an event. Keep on the "
        "GPU what only the GPU needs, and write output every N steps.",
        """cudaStreamWaitEvent(copy_stream, computed, 0);
cudaMemcpyAsync(host, result, bytes, cudaMemcpyDeviceToHost, copy_stream);   // host: cudaMallocHost, once""",
    ),
    pytorch=Fix(
        "Copy results to pinned memory on a separate stream, and read them one step later, after an event.",
        "with torch.cuda.stream(copy_stream): host.copy_(result, non_blocking=True)   # host: pinned, allocated once",
    ),
    jax=Fix(
        "Start the copy of results at once (`copy_to_host_async`) and read them one step later, or read them every N "
        "steps.",
        "outputs.copy_to_host_async()                     # np.asarray(outputs) one step later",
    ),
    openacc=Fix(
        "Update the host every N steps, and on another queue than the loops (`async`); a `copyout` on a construct "
        "copies each time.",
        "#pragma acc update self(result[0:n]) async(2)    // wait(2) before the host reads it",
    ),
    openmp=Fix(
        "Update the host every N steps, with `nowait`; a `map(from:)` on a construct copies each time.",
        "#pragma omp target update from(result[0:n]) nowait depend(in: result)",
    ),
    julia=Fix(
        "Keep on the GPU what only the GPU needs. Copy results into a pinned array (`CUDA.pin`) in another task, and "
        "read them one step later."
    ),
    arrays=Fix(
        "Copy results to pinned memory on a separate stream, and read them one step later. Keep on the GPU what only "
        "the GPU needs.",
        "result.get(stream=copy_stream, out=host, blocking=False)   # CuPy; host: pinned, allocated once",
    ),
)
ON_SMS = "A copy on the device runs on the SMs and takes time from kernels. "
ON_DEVICE = Fixes(
    cuda=Fix(
        f"{ON_SMS}Swap two pointers instead of copying one array over another, let kernels read the layout that "
        "exists, and write results where they are needed.",
        "std::swap(current, next);                        // not cudaMemcpyAsync(current, next, ...)",
    ),
    pytorch=Fix(
        f"{ON_SMS}Look for `.contiguous()`, `.clone()`, `torch.cat` and layout changes in the step. DDP's "
        "`gradient_as_bucket_view=True` saves one copy of all gradients.",
        "DistributedDataParallel(model, gradient_as_bucket_view=True)",
    ),
    inference=Fix(
        f"{ON_SMS}Look for `.contiguous()`, `.clone()`, `torch.cat` and layout changes in the step: write into a cache "
        "that is allocated once instead of concatenating.",
        "cache[:, position] = key                         # not torch.cat([cache, key], dim=1)",
    ),
    jax=Fix(
        f"{ON_SMS}Donate inputs that are not used again, so that XLA updates them in place.",
        "step = jax.jit(step, donate_argnums=(0,))",
    ),
    julia=Fix(
        f"{ON_SMS}Use views (`@view`) instead of slices, write results into existing arrays (`.=`), and swap two "
        "arrays instead of copying one over another.",
        "current, following = following, current",
    ),
    openacc=Fix(f"{ON_SMS}Swap two pointers instead of copying one array over another."),
    openmp=Fix(f"{ON_SMS}Swap two pointers instead of copying one array over another."),
    arrays=Fix(
        f"{ON_SMS}Look for copies of slices and changes of layout, write results into existing arrays (`out=`), and "
        "swap two arrays instead of copying one over another.",
        "current, following = following, current",
    ),
)
LINK_ONLY = (
    "A copy from one GPU to another needs a copy engine and the link between them, but no SM: on its own stream it "
    "runs beside the kernels of both GPUs. "
)
BETWEEN_GPUS = Fixes(
    cuda=Fix(
        f"{LINK_ONLY}Copy the borders first, and compute the inner part meanwhile; `cudaDeviceEnablePeerAccess` avoids "
        "the way through the host.",
        """cudaMemcpyPeerAsync(halo, neighbour, edge, device, bytes, copy_stream);
inner_part<<<blocks, threads, 0, stream>>>(x);                // needs no halo""",
    ),
    pytorch=Fix(
        f"{LINK_ONLY}`tensor.to` uses the current stream of both GPUs, so enter a copy stream on each. For gradients "
        "and activations of every step, use NCCL (DDP, pipeline parallelism) with one process per GPU.",
        """with torch.cuda.stream(copy_stream_of_0), torch.cuda.stream(copy_stream_of_1):
    there = here.to("cuda:1", non_blocking=True)""",
    ),
    inference=Fix(
        f"{LINK_ONLY}`tensor.to` uses the current stream of both GPUs, so enter a copy stream on each. For activations "
        "of every step, use NCCL (tensor or pipeline parallelism) with one process per GPU.",
        """with torch.cuda.stream(copy_stream_of_0), torch.cuda.stream(copy_stream_of_1):
    there = here.to("cuda:1", non_blocking=True)""",
    ),
    jax=Fix(f"{LINK_ONLY}Shard arrays over the GPUs (`jax.sharding`) instead of moving them with `device_put`."),
)
MANAGED_PAGES = (
    "Managed memory moves page by page on first touch. Prefetch it before it is used, or use ordinary device memory."
)
PREFETCH_MANAGED_CODE = "cudaMemPrefetchAsync(pointer, bytes, device, stream);"
ACC_DATA_CODE = """#pragma acc data copyin(x[0:n]) copyout(y[0:n])   // compile without -gpu=managed
for (int step = 0; step < steps; ++step) advance(x, y, n);"""
OMP_DATA_CODE = """#pragma omp target data map(to: x[0:n]) map(from: y[0:n])   // compile without -gpu=managed
for (int step = 0; step < steps; ++step) advance(x, y, n);"""
EXPLICIT = "Managed memory moves page by page on first touch. Move whole arrays in one data region around the loop."
MANAGED = Fixes(
    cuda=Fix(MANAGED_PAGES, PREFETCH_MANAGED_CODE),
    openacc=Fix(EXPLICIT, ACC_DATA_CODE),
    openmp=Fix(EXPLICIT, OMP_DATA_CODE),
)
NO_LAUNCH = (
    "No call launches a migration: it starts when one side touches pages that are on the other side. The capture does "
    "not show what the host does until then. {remedy} Page faults of the GPU lengthen its kernels and are not idle "
    "time: `--cuda-um-gpu-page-faults=true` shows them."
)
ONE_REGION = NO_LAUNCH.replace("{remedy}", "Move whole arrays in one data region around the loop.")
MANAGED_WAIT = Fixes(
    cuda=Fix(
        NO_LAUNCH.replace(
            "{remedy}", "Prefetch what the host needs in one piece, or let it work on its own pinned memory."
        ),
        "cudaMemPrefetchAsync(pointer, bytes, cudaCpuDeviceId, stream);",
    ),
    openacc=Fix(ONE_REGION, ACC_DATA_CODE),
    openmp=Fix(ONE_REGION, OMP_DATA_CODE),
)
NO_ZEROS = "Do not zero memory that is overwritten anyway"
ZEROED_MEMORY = Fixes(
    cuda=Fix(
        f"{NO_ZEROS}, and let the first kernel that writes an array also initialise it. Run the other memsets on "
        "another stream, beside the kernels."
    ),
    pytorch=Fix(
        f"{NO_ZEROS}: use `torch.empty` instead of `torch.zeros`, and `zero_grad(set_to_none=True)`.",
        "optimizer.zero_grad(set_to_none=True)",
    ),
    inference=Fix(
        f"{NO_ZEROS}: use `torch.empty` instead of `torch.zeros`.", "out = torch.empty(shape, device=device)"
    ),
    jax=Fix(f"{NO_ZEROS}: XLA zeroes the memory of scatters and reductions; donated inputs save some of it."),
    arrays=Fix(f"{NO_ZEROS}: allocate with `empty` instead of `zeros`."),
)
KEEP_ON_GPU = (
    "Overlap hides copies only behind compute. Keep data on the GPU between kernels instead of copying it back and "
    "forth, copy only what changed, or send smaller types and convert them on the GPU."
)
COPY_BOUND = Fixes(
    cuda=Fix(
        KEEP_ON_GPU,
        """allocate_once(data_on_gpu);          // before the loop
for (int step = 0; step < steps; ++step) kernel<<<grid, block>>>(data_on_gpu);
copy_back_once(data_on_gpu);         // after the loop""",
    ),
    pytorch=Fix(KEEP_ON_GPU, "batch = batch.to(device, non_blocking=True).float() / 255     # uint8 crosses the link"),
    jax=Fix(KEEP_ON_GPU, "images = jax.device_put(images).astype(jax.numpy.float32) / 255   # uint8 crosses the link"),
    openacc=Fix(KEEP_ON_GPU, ACC_DATA_CODE.replace("   // compile without -gpu=managed", "")),
    openmp=Fix(KEEP_ON_GPU, OMP_DATA_CODE.replace("   // compile without -gpu=managed", "")),
)
