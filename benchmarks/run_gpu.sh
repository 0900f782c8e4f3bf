#!/usr/bin/env bash
# The test suite and a set of benchmarks on an accelerator, from a bare clone, in one command:
#
#     benchmarks/run_gpu.sh [gpu|tpu|cpu] [OPTION ...] [STUDY ...]
#
#     --fast        studies at small sizes    --slow        slow tests too
#     --no-install  use what is there         --no-tests, --no-studies
#     --at-once     studies compile side by side, and take turns to time
#
# Makes a virtual environment (VENV, by default .venv-DEVICE; PYTHON, by default python3), runs every
# test on the device (results/tests.DEVICE.json) and writes benchmarks/results/STUDY.DEVICE.json for
# each study; without names: roofline, scaling, hot_paths (4,096 seeds at once), noise_throughput,
# sampling_cost, step_time and query_universe, as far as they are there.
#
# Where JAX is there already: WHEELS is a folder of wheels, from which what is missing is installed,
# without a network, into VENV, which is made if need be and sees the packages of PYTHON. --no-install
# uses VENV as it is, or, where it is not set and there is no .venv-DEVICE, PYTHON.
#
# WORKERS test processes share the device, 2 by default. DATA is the folder with data files, for
# studies that need one; DPJAX_COMMIT is what results of a copy name. With DRY=1 it only says what it
# would do. The exit status is not 0 if a test or a study failed; what comes after still runs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

device=gpu fast='' slow='' install=yes tests=yes run_studies=yes at_once='' studies=()
for argument in "$@"; do
  case "$argument" in
    gpu | tpu | cpu) device=$argument ;;
    --fast) fast=--fast ;;
    --slow) slow='slow or not slow' ;;
    --no-install) install='' ;;
    --at-once) at_once=yes ;;
    --no-tests) tests='' ;;
    --no-studies) run_studies='' ;;
    -*)
      echo "unknown option $argument" >&2
      exit 2
      ;;
    *) studies+=("$argument") ;;
  esac
done
if [[ ${#studies[@]} -eq 0 ]]; then
  for study in roofline scaling hot_paths noise_throughput sampling_cost step_time query_universe; do
    if [[ -f benchmarks/$study.py ]]; then studies+=("$study"); fi
  done
fi

venv=${VENV:-.venv-$device}
python=$venv/bin/python
report=$venv/tests.xml
if [[ -z $install && -z ${VENV:-} && ! -x $python ]]; then
  python=${PYTHON:-python3} report=${TMPDIR:-/tmp}/tests.$device.xml
fi
failed=()

do_it() {
  printf '+ %s\n' "$*"
  [[ -n ${DRY:-} ]] || "$@"
}

attempt() { # NAME COMMAND ...: goes on if the command fails
  local name=$1
  shift
  do_it "$@" || failed+=("$name")
}

if [[ -n $install ]]; then
  if [[ ! -x $python ]]; then
    do_it "${PYTHON:-python3}" -m venv "$venv"
    # what PYTHON sees, also where it is in an environment of its own
    [[ -z ${WHEELS:-} || -n ${DRY:-} ]] || "${PYTHON:-python3}" -c \
      'import site; print(*site.getsitepackages(), sep="\n")' \
      >"$("$python" -c 'import site; print(site.getsitepackages()[0])')/beside.pth"
  fi
  package=.[${tests:+test,}bench]
  case $device in
    gpu) jax='jax[cuda12]' ;;
    tpu) jax='jax[tpu]' ;;
    cpu) jax='jax' ;;
  esac
  if [[ -n ${WHEELS:-} ]]; then
    do_it "$python" -m pip install --no-index --find-links "$WHEELS" -e "$package"
  else
    do_it "$python" -m pip install --upgrade pip
    do_it "$python" -m pip install "$jax" -e "$package"
  fi
fi

# cuda in front and cpu behind it: samplers and tests use the host too
case $device in
  gpu) export JAX_PLATFORMS=cuda,cpu ;;
  tpu) export JAX_PLATFORMS=tpu,cpu ;;
  cpu) export JAX_PLATFORMS=cpu ;;
esac
# several processes share the device, and each takes what it needs
export XLA_PYTHON_CLIENT_PREALLOCATE=false
do_it "$python" -m benchmarks._on_device "$device"

if [[ -n $tests ]]; then
  # the suite asks XLA for quick compilation and slow programs, which is made for CPU: taken back
  # here, since of two settings the later holds; sums in one order, so that bits can be compared
  if [[ $device == cpu ]]; then
    flags=''
  else
    flags='--xla_backend_optimization_level=3 --xla_llvm_disable_expensive_passes=false'
  fi
  [[ $device != gpu ]] || flags+=' --xla_gpu_deterministic_ops=true'
  attempt tests env XLA_FLAGS="${XLA_FLAGS:-} $flags" "$python" -m pytest -q -n "${WORKERS:-2}" \
    --junitxml "$report" ${slow:+-m "$slow"}
  # what passed, and the names of what did not
  attempt report "$python" -m benchmarks._on_device "$device" --tests "$report"
fi

if [[ -n $run_studies ]]; then
  logs=$(mktemp -d) jobs=()
  trap 'rm -rf "$logs"' EXIT
  # a process each: memory is given back
  for study in "${studies[@]}"; do
    command=("$python" -m benchmarks._on_device "$device" --study "$study"
      ${fast:+"$fast"} ${DATA:+--data "$DATA"})
    if [[ -z $at_once ]]; then
      attempt "$study" "${command[@]}"
    else
      DPJAX_BENCHMARK_TURNS=$logs/turns do_it "${command[@]}" >"$logs/$study" 2>&1 &
      jobs+=($!)
    fi
  done
  for i in "${!jobs[@]}"; do
    wait "${jobs[i]}" || failed+=("${studies[i]}")
    cat "$logs/${studies[i]}"
  done
fi

if [[ ${#failed[@]} -gt 0 ]]; then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
