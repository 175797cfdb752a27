#!/bin/sh
# Tries and measures all that needs an accelerator, each part within its own time, and goes on after one that fails.
# Usage: [PYTHON=python3] [KILLS=10] sh benchmarks/on_a_device.sh FOLDER
# The folder has a file for each part and, in summary.txt, how each has ended: 0 well, 124 out of time.
folder=${1:?which folder the results go to}
python=${PYTHON:-python3}
mkdir -p "$folder" || exit 1
folder=$(cd "$folder" && pwd)
cd "$(dirname "$0")/.." || exit 1
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || {
    echo "torch finds no CUDA device here, and there is nothing to try" >&2
    exit 1
}
: >"$folder/summary.txt"
failed=0

part() { # NAME SECONDS COMMAND...
    name=$1 seconds=$2
    shift 2
    timeout --kill-after=10 "$seconds" "$@" >"$folder/$name.txt" 2>&1
    status=$?
    [ "$status" -eq 0 ] || failed=1
    echo "$name: $status" | tee -a "$folder/summary.txt"
}

# What torch warns of on a device is not to fail the tests.
tests() { # NAME SECONDS FILE...
    name=$1 seconds=$2
    shift 2
    part "$name" "$seconds" "$python" -m pytest -m gpu -v -W default --timeout "$seconds" --junitxml "$folder/$name.xml" "$@"
}

part device 10 nvidia-smi --query-gpu=name,uuid,driver_version,memory.total,mig.mode.current,compute_mode --format=csv
tests driver 45 tests/gpu/test_gpu_driver.py tests/gpu/test_gpu_pinning.py
part items 90 "$python" benchmarks/gpu.py --only items
part weights 120 "$python" benchmarks/gpu.py --only weights
part turns 60 "$python" benchmarks/gpu.py --only turns
tests weights_tests 170 tests/gpu/test_gpu_weights.py
tests cluster 200 tests/gpu/test_gpu_cluster.py
exit $failed
