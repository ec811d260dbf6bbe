#!/bin/sh
# compute-sanitizer on one rank's kernels: memcheck and racecheck (shared memory) of every operator in a world of one
# GPU, where a rank is its own peer and every signal and copy is made all the same.
#
#     sh benchmarks/gpu_sanitize.sh [OUT_FOLDER]
#
# Errors that calls of the CUDA API return are not looked at: NCCL asks for kernels that its binary has none of for the GPU.
# Triton's launches are checked as they are, with the lines that it compiles in. Launches must not be made blocking
# (--force-blocking-launches, CUDA_LAUNCH_BLOCKING): kernels wait for others that are started after them.
# PyTorch's caching allocator is switched off, so that accesses beyond a tensor are seen. Status 0 if both are clean.
set -u
out=${1:-/tmp/tilelink-sanitize}
python=${PYTHON:-python}
sanitizer=${SANITIZER:-compute-sanitizer}
mkdir -p "$out"
export PYTORCH_NO_CUDA_MEMORY_CACHING=1 CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0}" OMP_NUM_THREADS=4
command -v "$sanitizer" >/dev/null || { echo "no compute-sanitizer: it comes with the CUDA toolkit; set SANITIZER to where it is"; exit 2; }

# Compiled before, without the sanitizer, which would look at the compilers too.
timeout 300 "$python" benchmarks/gpu_one_rank.py || exit 1
bad=0
for tool in memcheck racecheck; do
    more=
    [ "$tool" = memcheck ] && more="--report-api-errors no"
    timeout 600 "$sanitizer" --tool "$tool" --error-exitcode 86 \
        $more --log-file "$out/$tool.log" "$python" benchmarks/gpu_one_rank.py
    status=$?
    tail -n 1 "$out/$tool.log"
    [ "$status" = 0 ] || { echo "$tool: status $status, see $out/$tool.log"; bad=1; }
done
exit $bad
