#!/usr/bin/env bash
# benchmarks/gpu_suite.sh [one|agreement|two] [KIT] : what needs a GPU and no network, in less than nine minutes.
#
#   one         streams against serial beside a load, and the tests with the marker gpu
#   agreement   diagnoses and captures of six programs
#   two         the tests for two GPUs, runs killed by SIGKILL, and streams beside a load on each of the GPUs
#
# KIT is a folder with wheels that the machine lacks (nvtx), and with nsys in device.tar.xz if PATH has none. Logs and
# results are in $OUT, by default out/gpu. The last lines state how each step ended.
set -u
cd "$(dirname "$0")/.."
which=${1:-one} kit=${2:-}
out=${OUT:-out/gpu}
mkdir -p "$out"
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$PWD
exec > >(tee "$out/suite.log") 2>&1
nsys=$(command -v nsys)
if [ -n "$kit" ]; then
    python3 -m pip install -q --no-index --no-deps --no-compile --upgrade --target /tmp/site "$kit"/*.whl
    export PYTHONPATH=$PWD:/tmp/site
    if [ -z "$nsys" ] && mkdir -p /tmp/nsys && tar -xf "$kit/device.tar.xz" -C /tmp/nsys; then
        nsys=/tmp/nsys/target-linux-x64/nsys
    fi
fi
python3 -c 'import torch; print(torch.__version__, [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())])'
ended=()

step() { # NAME SECONDS COMMAND...
    local name=$1 limit=$2 begun=$SECONDS
    shift 2
    echo "== $name: $*"
    timeout --kill-after=5 "$limit" "$@"
    ended+=("$name: exit code $? after $((SECONDS - begun)) s")
}

tests=(python3 -m pytest -q -W ignore -p no:cacheprovider -p no:benchmark --durations 5 --continue-on-collection-errors -m gpu)
if [ "$which" = one ]; then
    step "streams" 150 python3 benchmarks/studies/exact_streams.py --runs 200 --seconds 90 --json "$out/streams.json"
    step "tests" 250 "${tests[@]}" tests/instrument
elif [ "$which" = agreement ]; then
    step "diagnosis" 300 python3 benchmarks/studies/agreement.py diagnose /tmp/agree
    step "captures" 150 python3 benchmarks/studies/agreement.py capture /tmp/agree --nsys "$nsys"
    tar -caf "$out/agree.tar.xz" -C /tmp agree
else
    step "tests" 170 "${tests[@]}" tests/instrument/distributed tests/instrument/hf tests/instrument/trainer
    for flags in "--shard --shard-precision bf16 --accumulation 2" "--sharded"; do
        name=$(tr -d ' -' <<<"$flags")
        step "killed $name" 90 python3 benchmarks/studies/killed.py --json "$out/$name.json" -- \
            --width 512 --layers 6 --batch 8 --sequence 256 $flags
    done
    for gpu in 0 1; do
        export CUDA_VISIBLE_DEVICES=$gpu
        step "streams on GPU $gpu" 70 \
            python3 benchmarks/studies/exact_streams.py --runs 60 --load 3 --seconds 20 --json "$out/streams-$gpu.json"
    done
fi
printf '%s\n' "== after $SECONDS s" "${ended[@]}"
