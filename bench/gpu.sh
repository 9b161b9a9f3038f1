#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# perilune on a GPU machine: what is there, the specs on cpu and cuda, compute-sanitizer, the benchmarks next to PyTorch, and
# one report of it all. Every slice ends within --budget seconds and adds to the same folder, so that slices can be run one
# command at a time, in any order, and again.
#   bench/gpu.sh [--out DIR] [--budget 590] [--build build] [--python python3] SLICE...
#   bench/gpu.sh --device cpu --tiny probe specs bench:eager report     # a dry run without a GPU
# Slices: probe  specs[:K/N]  sanitizer  bench:MODE (eager tf32 graph compile compile+graph)  peers:MODE  both:MODE  report
#         all (everything, each slice with its own budget)
# Exit status: 0 all went well; 1 something failed (which, stands in OUT/checks.jsonl); 2 usage, or no device.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
out=gpu-report budget=590 build=$root/build python=python3 device=cuda tiny=() slices=()
peers=$root/../shared/bench/gpu_peers.py

usage() {
  sed -n '3,13p' "${BASH_SOURCE[0]}" | sed 's/^# \{0,1\}//' >&2
  exit 2
}
while [ $# -gt 0 ]; do
  case $1 in
    --out | --budget | --build | --python | --device)
      [ $# -ge 2 ] || usage
      printf -v "${1#--}" '%s' "$2"
      shift ;;
    --tiny) tiny=(--tiny) ;;
    -h | --help) usage ;;
    -*) echo "gpu.sh: unknown option $1" >&2; usage ;;
    all) slices+=(probe specs:1/4 specs:2/4 specs:3/4 specs:4/4 sanitizer both:eager both:tf32 both:graph both:compile
                  both:compile+graph report) ;;
    *) slices+=("$1") ;;
  esac
  shift
done
[ ${#slices[@]} -gt 0 ] || usage
perilune=$build/bin/perilune
[ -x "$perilune" ] || { echo "gpu.sh: no $perilune; build first: ./setup build" >&2; exit 2; }
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
bad=0
slice_begin=0

left() { # seconds of this slice's budget
  local rest=$((budget - ($(date +%s) - slice_begin)))
  echo $((rest > 1 ? rest : 1))
}
note() { # check, result, seconds
  printf '{"check": "%s", "result": "%s", "seconds": %s}\n' "$1" "$2" "$3" >>"$out/checks.jsonl"
  echo "$1: $2 ($3 s)"
}
check() { # name, log, command…: runs it within the budget and notes how it went
  local name=$1 log=$out/$2 begin code
  shift 2
  begin=$(date +%s)
  timeout "$(left)" "$@" >"$log" 2>&1
  code=$?
  local took=$(($(date +%s) - begin))
  case $code in
    0) note "$name" "ok" $took ;;
    77) note "$name" "skipped: $(tail -1 "$log" | tr -d '"\\')" $took ;;
    124) note "$name" "not done in the budget" $took; bad=1 ;;
    *) note "$name" "failed, exit status $code: see $(basename "$log")" $took; tail -5 "$log"; bad=1 ;;
  esac
  return $code
}

probe() {
  "$perilune" info >"$out/info.txt" 2>&1
  grep -iE 'cuda|gpu' "$out/info.txt"
  if [ "$device" = cpu ]; then
    echo '{"device": "cpu", "dry_run": true}' >"$out/probe.json"
    return
  fi
  "$perilune" -e '
    local T = require "perilune"
    local device = T.core.device
    if not device then io.stderr:write("this build has no device \"cuda\"\n") os.exit(2) end
    local there, why = device.available()
    if not there then io.stderr:write(why, "\n") os.exit(2) end
    local i = device.info()
    local a = T.randn(512, 512)
    local worst = (a:matmul(a) - a:to("cuda"):matmul(a:to("cuda")):to("cpu")):abs():max():item()
    print(string.format([[{"device": "%s", "libraries": "%s", "capability": "%d.%d", "memory_gib": %.1f, "product_error": %.3g}]],
      i.name, i.libraries, i.major, i.minor, i.memory / 2^30, worst))
    os.exit(worst < 1e-2 and 0 or 1)' >"$out/probe.json" 2>"$out/probe.log"
  local code=$?
  if [ $code -ne 0 ]; then
    echo "gpu.sh: no usable device: $(tail -1 "$out/probe.log")" >&2
    note probe "failed: $(tail -1 "$out/probe.log" | tr -d '"\\')" 0
    exit 2
  fi
  cat "$out/probe.json"
  note probe ok 0
}

# Every spec on cuda as on cpu: PERILUNE_TEST_DEVICE says where tensors are made. K/N: the K-th of N parts, by name.
specs() {
  local part=${1:-1/1} spec name k=0
  for spec in "$root"/spec/ops/*_spec.lua "$root"/spec/*_spec.lua "$root"/spec/cuda/*_spec.lua; do
    [ -f "$spec" ] || continue
    k=$((k + 1))
    [ $((k % ${part#*/} + 1)) -eq "${part%/*}" ] || continue
    name=${spec#"$root"/spec/}
    name=${name%_spec.lua}
    if [ "$(left)" -le 5 ]; then
      note "spec $name" "left out: the budget is used up" 0
      bad=1
      continue
    fi
    LUA_PATH_5_4="$root/lua/?.lua;$root/lua/?/init.lua;$root/?.lua;;" LUA_CPATH_5_4="$build/lib/?.so;;" \
      PERILUNE_ROOT=$root PERILUNE_BUILD=$build PERILUNE_TEST_DEVICE=$device \
      check "spec $name" "spec-${name//\//-}.log" "$perilune" run "$(command -v busted)" -- "$spec"
  done
  check "cuDNN graphs" cudnn.log sh -c "[ -x '$build/spec/cuda_cudnn' ] || exit 77; exec '$build/spec/cuda_cudnn'"
}

sanitizer() {
  if [ "$device" = cpu ] || ! command -v compute-sanitizer >/dev/null; then
    note sanitizer "skipped: compute-sanitizer or the device is not there" 0
    return
  fi
  local tool
  for tool in memcheck racecheck initcheck; do
    check "compute-sanitizer $tool" "sanitizer-$tool.log" compute-sanitizer --tool "$tool" --error-exitcode 9 \
      "$perilune" run "$here/gpu_subset.lua" -- "$device"
  done
}

ours() { # mode, seconds
  "$perilune" run "$here/gpu.lua" -- --modes "$1" --device "$device" ${tiny[@]+"${tiny[@]}"} --budget "$2" --json "$out/perilune.jsonl"
  local code=$?
  [ $code -eq 0 ] || { bad=1; note "bench $1" "exit status $code" 0; }
  [ $code -ne 2 ] || exit 2
}
theirs() { # mode, seconds; PyTorch has more modes than perilune: cudnn goes with eager, compile+cudnn with compile
  local modes=$1
  case $1 in eager) modes="eager cudnn" ;; compile) modes="compile compile+cudnn" ;; esac
  if [ ! -f "$peers" ] || ! "$python" -c 'import torch' 2>/dev/null; then
    note "PyTorch $1" "skipped: $python has no torch, or $peers is not there" 0
    return
  fi
  # shellcheck disable=SC2086
  timeout $(($2 + 10)) "$python" "$peers" --modes $modes --device "$device" ${tiny[@]+"${tiny[@]}"} --budget "$2" --json "$out/torch.jsonl" ||
    { bad=1; note "PyTorch $1" "exit status $?" 0; }
}

for slice in "${slices[@]}"; do
  slice_begin=$(date +%s)
  echo "== $slice"
  case $slice in
    probe) probe ;;
    specs) specs ;;
    specs:*) specs "${slice#*:}" ;;
    sanitizer) sanitizer ;;
    bench:*) ours "${slice#*:}" "$budget" ;;
    peers:*) theirs "${slice#*:}" "$budget" ;;
    both:*) ours "${slice#*:}" $((budget / 2)); theirs "${slice#*:}" "$(left)" ;;
    report) "$perilune" run "$here/gpu_report.lua" -- "$out" || bad=1 ;;
    *) echo "gpu.sh: no slice $slice" >&2; usage ;;
  esac
done
exit $bad
