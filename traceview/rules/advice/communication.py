"""Advice on communication between GPUs and ranks."""

from __future__ import annotations

from traceview.pricing.fixes import Fix, Fixes

LATE_RANK = "Faster links or larger messages do not shorten this wait. Compare the two ranks: "
NUMA = "numactl -N NODE COMMAND          # for each rank, the node next to its GPU: nvidia-smi topo -m"
COMMUNICATION_WAIT = Fixes(
    cuda=Fix(
        f"{LATE_RANK}uneven parts of the problem, extra work on one rank (output, checkpoints), or a slower host (pin "
        "each rank to the cores next to its GPU).",
        NUMA,
        is_command=True,
    ),
    pytorch=Fix(
        f"{LATE_RANK}more tokens or uneven batches (bucket by length, `drop_last=True`), slower data loading, extra "
        "work on one rank (logging, checkpoints, evaluation), or a slower host (pin each rank to the cores next to its "
        "GPU). In a launch-bound loop the usual cause is a slower host, and cheaper launches help both ranks.",
        """# GPUs and cores: nvidia-smi topo -m (here 4 a node)
torchrun --nproc-per-node=8 --no-python bash -c 'numactl -N $((LOCAL_RANK / 4)) COMMAND'""",
        is_command=True,
    ),
    inference=Fix(
        f"{LATE_RANK}longer sequences or more experts on one rank, extra work on the rank that schedules and samples, "
        "or a slower host (pin each rank to the cores next to its GPU). In a launch-bound loop the usual cause is a "
        "slower host, and cheaper launches help both ranks.",
        NUMA,
        is_command=True,
    ),
)
EXPOSED_COMMUNICATION = Fixes(
    cuda=Fix(
        "Start the communication on its own stream as soon as its data is ready, and compute meanwhile what does not "
        "need the result. Send fewer bytes, or the same bytes in fewer and larger messages.",
        """ncclAllReduce(part, sum, count, ncclFloat, ncclSum, communicator, communication_stream);
cudaEventRecord(done, communication_stream);
inner_part<<<blocks, threads, 0, compute_stream>>>(x);   // needs no result
cudaStreamWaitEvent(compute_stream, done, 0);""",
    ),
    pytorch=Fix(
        "DDP reduces each bucket while the rest of backward runs. Try a `bucket_cap_mb` of 10 to 100 (small buckets "
        "start earlier, large buckets are more efficient), `gradient_as_bucket_view=True`, and a bf16 compression hook "
        "that halves the bytes. With gradient accumulation, use `no_sync()` on all micro-batches except the last. "
        "Backward must compute long enough to hide the communication; the last bucket is always exposed.",
        """model = DistributedDataParallel(model, bucket_cap_mb=50, gradient_as_bucket_view=True)
hooks = torch.distributed.algorithms.ddp_comm_hooks.default_hooks
model.register_comm_hook(None, hooks.bf16_compress_hook)""",
    ),
    inference=Fix(
        "Tensor parallelism communicates in every layer, and the next layer needs the result. Use fewer GPUs for each "
        "replica if the model fits, a custom or symmetric-memory all-reduce for small messages, and two micro-batches "
        "in turn, so that one computes while the other communicates."
    ),
    jax=Fix(
        "XLA can run collectives while other operations compute: check that its latency-hiding scheduler is on. Send "
        "fewer bytes: shard so that fewer collectives are needed, and reduce in bfloat16.",
        'XLA_FLAGS="--xla_gpu_enable_latency_hiding_scheduler=true" COMMAND',
        is_command=True,
    ),
)
# For PyTorch programs that reduce and scatter: their parameters are sharded.
SHARDED_COMMUNICATION = Fix(
    "FSDP gathers the parameters of a block before its forward and backward pass, and scatters its gradients after it. "
    "Shard larger units (several layers in one `fully_shard`), gather earlier (`set_modules_to_forward_prefetch`), "
    "send half the bytes in bfloat16, and keep gathered parameters until the backward pass if they fit. With gradient "
    "accumulation, call `set_requires_gradient_sync(False)` on all micro-batches except the last. Tensor parallelism "
    "communicates in every layer, and the next operation needs the result: use it inside one host, on as few GPUs as "
    "hold the model.",
    """policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
fully_shard(block, mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=False)""",
)
# For programs whose stages send micro-batches to each other.
PIPELINE_BUBBLE = Fix(
    "Most of it is in kernels that receive from another stage of the pipeline: a stage cannot compute until its "
    "neighbour's micro-batch arrives, so overlap hides none of it. Split a batch into more micro-batches: with P equal "
    "stages and M micro-batches, each GPU waits (P - 1) / (M + P - 1) of a step. Or give each rank several smaller "
    "stages (interleaved schedule), and make all stages take equally long.",
    """from torch.distributed.pipelining import ScheduleInterleaved1F1B
schedule = ScheduleInterleaved1F1B(stages, n_microbatches, loss_fn=loss)   # stages: two or more for each rank""",
)
BUBBLE_REMEDY = "Use more micro-batches, or an interleaved schedule."
MPI_WAIT = Fixes(
    cuda=Fix(
        "The launching thread is in MPI and nothing is queued on the GPU. If it waits for another rank, that rank is "
        "late: compare the ranks. Otherwise it waits for the transfer: start it early (`MPI_Irecv`, `MPI_Isend`, "
        "`MPI_Iallreduce`), launch the work that does not need its result, and wait afterwards. A CUDA-aware MPI "
        "accepts GPU memory directly.",
        """MPI_Iallreduce(&mine, &total, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
launch_what_needs_no_total(stream);
MPI_Wait(&request, MPI_STATUS_IGNORE);""",
    ),
    openacc=Fix(
        "The launching thread is in MPI and nothing is queued on the GPU. If it waits for another rank, that rank is "
        "late: compare the ranks. Otherwise it waits for the transfer: start it early (`MPI_Irecv`, `MPI_Isend`), run "
        "the loops that do not need its result with `async`, and wait afterwards. With a CUDA-aware MPI, `host_data "
        "use_device` passes GPU memory directly.",
        """#pragma acc host_data use_device(halo)
MPI_Irecv(halo, n, MPI_FLOAT, left, 0, MPI_COMM_WORLD, &request);
#pragma acc parallel loop async(1)              // the inner cells need no halo
for (int i = 1; i < n - 1; ++i) y[i] = f(x, i);
MPI_Wait(&request, MPI_STATUS_IGNORE);""",
    ),
    openmp=Fix(
        "The launching thread is in MPI and nothing is queued on the GPU. If it waits for another rank, that rank is "
        "late: compare the ranks. Otherwise it waits for the transfer: start it early (`MPI_Irecv`, `MPI_Isend`), run "
        "the loops that do not need its result with `nowait`, and wait afterwards. With a CUDA-aware MPI, "
        "`use_device_addr` passes GPU memory directly.",
        """#pragma omp target data use_device_addr(halo)
MPI_Irecv(halo, n, MPI_FLOAT, left, 0, MPI_COMM_WORLD, &request);
#pragma omp target teams distribute parallel for nowait   // the inner cells need no halo
for (int i = 1; i < n - 1; ++i) y[i] = f(x, i);
MPI_Wait(&request, MPI_STATUS_IGNORE);""",
    ),
)
