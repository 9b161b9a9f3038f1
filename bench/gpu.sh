#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# perilune on a GPU machine: what is there, the specs on the device, compute-sanitizer, the benchmarks next to PyTorch, and
# one report of it all. Every slice and group is a command that ends within its seconds, writes as it goes into the same
# folder, and closes with a line of counts, also when it is cut short; they can be run in any order, and again.
#   bench/gpu.sh [--out DIR] [--budget 520] [--build build] [--python python3] [--jobs N] [--device cuda] [--tiny]
#                [--archive FILE.tar.gz] [--only "WORKLOAD ..."] GROUP or SLICE[@SECONDS]...
# Groups: smoke      driver, capability, memory pools, libraries, one product, memcheck with our own kernels
#         values     what small workloads compute, in all modes, beside the CPU's numbers
#         specs[:K/N]  every spec on the device; counts a file, names of what failed
#         bandwidth  what is bound by memory, beside PyTorch;  cores  products, convolution and attention likewise
#         train      training steps: throughput, captured or not, peak memory, deterministic and not, beside PyTorch
# Slices: pack  probe  moved[:PART]  golden[:K/N]  sanitizer  bench:MODE (eager tf32 graph compile compile+graph)
#         peers:MODE  both:MODE  report[:DIR,...]  all. PART: K/N, or a word that names of specs contain.
#         golden: PyTorch's numbers (../shared/golden, or $PERILUNE_GOLDEN), with the device as the default one
# A machine that is lent for commands of ten minutes, bare but for a driver, with a copy of build/gpu-pack:
#   bench/gpu.sh pack                                    # here, after ./setup build --cuda: fails where a part is missing
#   bench/gpu.sh --out $OUT/report smoke                 # there, in that folder; then values, specs, bandwidth, train
# Dry runs: --device cpu --tiny all; --device emulated --tiny smoke (the plug-in on the CPU; minutes to hours without --jobs).
# Exit status: 0 all went well; 1 something failed (which, stands in OUT/checks.jsonl); 2 usage, or no device.
# shellcheck disable=SC2317,SC2034,SC2086 # groups and slices are called by name; parts read each other's settings; lists are split
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
out=gpu-report budget=520 build='' python=python3 device=cuda jobs='' archive='' tiny=() only=() slices=()
usage() {
  sed -n '3,24p' "${BASH_SOURCE[0]}" | sed 's/^# \{0,1\}//' >&2
  exit 2
}
while [ $# -gt 0 ]; do
  case $1 in
    --out | --budget | --build | --python | --device | --jobs | --archive)
      [ $# -ge 2 ] || usage
      printf -v "${1#--}" '%s' "$2"
      shift ;;
    --only) # of the workloads those, in one argument
      [ $# -ge 2 ] || usage
      read -ra only <<<"$2"
      shift ;;
    --tiny) tiny=(--tiny) ;;
    -h | --help) usage ;;
    -*) echo "gpu.sh: unknown option $1" >&2; usage ;;
    all) slices+=(probe golden specs sanitizer both:eager both:graph both:compile both:tf32 both:compile+graph moved report) ;;
    *) slices+=("$1") ;;
  esac
  shift
done
[ ${#slices[@]} -gt 0 ] || usage
case $device in cpu | cuda | emulated) ;; *) echo "gpu.sh: --device cuda, cpu or emulated" >&2; usage ;; esac
[ -n "$jobs" ] || { jobs=$(nproc 2>/dev/null || echo 2); [ "$jobs" -le 8 ] || jobs=8; }

# ---- the build: as named, else build/, else the pack that this is ------------------------------------------------------------
runs() { [ -x "$1/bin/perilune" ] && env ${2:+LD_LIBRARY_PATH="$2"} "$1/bin/perilune" -e 'require "perilune"' >/dev/null 2>&1; }
libs=''
find_build() {
  local name
  if [ -n "$build" ]; then
    runs "$build" && return
    echo "gpu.sh: $build/bin/perilune does not run here:" >&2
    "$build/bin/perilune" -e 'require "perilune"' >&2
    exit 2
  fi
  if [ -f "$root/bin/perilune" ] && [ -d "$root/lib/others" ]; then # this is a pack
    build=$root libs=$root/lib/others
    for name in "$libs"/*.gz; do
      [ ! -f "$name" ] || [ -f "${name%.gz}" ] || { gunzip -c "$name" >"$name.part" && mv "$name.part" "${name%.gz}"; }
    done
    runs "$build" "$libs" && return
    echo "gpu.sh: the pack $root does not run here:" >&2
    LD_LIBRARY_PATH=$libs "$build/bin/perilune" -e 'require "perilune"' >&2
    exit 2
  fi
  build=$root/build
  runs "$build" && return
  echo "gpu.sh: no $build/bin/perilune that runs; build first (./setup build), or carry a pack (gpu.sh pack)" >&2
  exit 2
}
find_build
build=$(cd "$build" && pwd)
perilune=$build/bin/perilune
busted=$(command -v busted || true)
[ ! -f "$build/bin/busted" ] || busted=$build/bin/busted
peers=''
for p in "$root/../shared/bench" "$root/shared/bench" "$build/bench"; do
  [ -n "$peers" ] || [ ! -f "$p/gpu_peers.py" ] || peers=$p/gpu_peers.py
done
# Folders of the CUDA libraries that the plug-in opens at run time: the toolkit's, else those of Python's packages.
cuda_libs() {
  local name dir
  for name in libcublasLt.so.13 libcudnn.so.9 libnvrtc.so.13; do
    ldconfig -p 2>/dev/null | grep -q "$name" && continue
    for dir in /usr/local/cuda/lib64 /usr/local/cuda/targets/x86_64-linux/lib $("$python" -c '
import glob, site, sys
for p in site.getsitepackages() + sys.path: print(*glob.glob(p + "/nvidia/*/lib"))' 2>/dev/null); do
      [ -e "$dir/$name" ] || continue
      case :$libs: in *:$dir:*) ;; *) libs=$libs:$dir ;; esac
      break
    done
  done
  libs=${libs#:}
}
kind=$device # what runs; `device`: what Lua calls it
if [ "$device" = emulated ]; then
  device=cuda
  export PERILUNE_CUDA_PLUGIN=$build/spec/cuda_emulated.so PERILUNE_CUDA_QUIET=1 PERILUNE_EMULATE=${PERILUNE_EMULATE-open}
  [ -f "$PERILUNE_CUDA_PLUGIN" ] || { echo "gpu.sh: no $PERILUNE_CUDA_PLUGIN; cmake --build $build --target tests makes it" >&2; exit 2; }
elif [ "$device" = cuda ]; then
  unset PERILUNE_CUDA_PLUGIN
  cuda_libs
fi
# perilune with its libraries; PyTorch runs without them.
ours_env=(env -u PERILUNE_GOLDEN LD_LIBRARY_PATH="$libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" PERILUNE_ROOT="$root" PERILUNE_BUILD="$build"
  LUA_PATH_5_4="$root/lua/?.lua;$root/lua/?/init.lua;$root/?.lua;$build/share/lua/5.4/?.lua;$build/share/lua/5.4/?/init.lua;;"
  LUA_CPATH_5_4="$build/lib/?.so;$build/lib/lua/5.4/?.so;;")

mkdir -p "$out/logs" || exit 2
out=$(cd "$out" && pwd)
bad=0 slice_begin=0 slice_budget=$budget

left() { # seconds of this slice's budget
  local rest=$((slice_budget - ($(date +%s) - slice_begin)))
  echo $((rest > 1 ? rest : 1))
}
note() { # check, result, seconds
  printf '{"check": "%s", "result": "%s", "seconds": %s}\n' "$1" "$2" "$3" >>"$out/checks.jsonl"
  echo "$1: $2 ($3 s)"
}
plain_lines() { tr -d '\042\134' | tr -cd '[:print:]\n'; }
plain() { tr -d '\042\134' | tr -cd '[:print:]'; }
check() { # name, log, command…: runs it within the budget and notes how it went
  local name=$1 log=$out/logs/$2 begin code took said
  shift 2
  begin=$(date +%s)
  timeout -k 5 "$(left)" "$@" >"$log" 2>&1
  code=$?
  took=$(($(date +%s) - begin))
  said=$(grep -aoE '[0-9]+ success(es)? / [0-9]+ failures? / [0-9]+ errors? / [0-9]+ pending' "$log" | tail -1)
  case $code in
    0) note "$name" "ok${said:+: $said}" $took ;;
    77) note "$name" "skipped: $(tail -1 "$log" | plain)" $took; code=0 ;;
    124 | 137) note "$name" "not done in the budget" $took ;;
    *) note "$name" "failed${said:+: $said}, exit status $code: see logs/$(basename "$log")" $took
       grep -aE -A4 '^(Failure|Error) (→|->)' "$log" | head -12 || tail -5 "$log"
       grep -aE -A1 '^(Failure|Error) (→|->)' "$log" | grep -avE '^(Failure|Error|--)' | plain_lines |
         while read -r said; do echo "$name: $said" >>"$out/failing.txt"; done
       grep -aE '^ +FAIL ' "$log" | plain_lines | cut -c1-200 | sed "s|^ *FAIL |$name: |" >>"$out/failing.txt" ;;
  esac
  return $code
}

probe() {
  {
    for name in lua5.4 busted cmake ninja nvcc gcc compute-sanitizer nvidia-smi "$python"; do
      echo "$name: $(command -v "$name" || echo 'not there')"
    done
    echo "perilune: $perilune"
    echo "libraries: ${libs:-those of the system}"
    echo "PyTorch's side: ${peers:-not there}"
    "${ours_env[@]}" "$perilune" info
    nvidia-smi 2>/dev/null
    "$python" -c 'import torch; print("torch", torch.__version__, torch.cuda.is_available())' 2>&1 | tail -1
  } >"$out/info.txt" 2>&1
  grep -iE 'cuda|gpu|not there|torch' "$out/info.txt"
  if [ "$device" = cpu ]; then
    echo '{"device": "cpu", "dry_run": true}' >"$out/probe.json"
    return
  fi
  "${ours_env[@]}" "$perilune" -e '
    local T = require "perilune"
    local device = T.core.device
    local there, why = device.available()
    if not there then io.stderr:write(why, "\n") os.exit(2) end
    local i = device.info()
    local a = T.randn(512, 512)
    local exact = a:matmul(a)
    local off = (exact - a:to("cuda"):matmul(a:to("cuda")):to("cpu")):abs():max():item()
    local worst = off / exact:abs():max():item() -- factors rounded to TF32 give some 5e-4
    print(string.format([[{"device": "%s", "libraries": "%s", "capability": "%d.%d", "memory_gib": %.1f, "product_error": %.3g}]],
      i.name, i.libraries, i.major, i.minor, i.memory / 2^30, worst))
    os.exit(worst <= 1e-4 and 0 or 1)' >"$out/probe.json" 2>"$out/logs/probe.log"
  local code=$?
  cat "$out/probe.json"
  if [ $code -ne 0 ]; then
    echo "gpu.sh: no usable device: $(tail -1 "$out/logs/probe.log")" >&2
    note probe "failed: $(tail -1 "$out/logs/probe.log" | plain)" 0
    leave 2
  fi
  note probe ok 0
}

there=''
need_device() { # slice: without a device nothing of it can go well, so it says that once
  [ "$device" = cuda ] && [ -z "$there" ] || return 0
  local why
  why=$("${ours_env[@]}" "$perilune" -e '
    local there, why = require "perilune".core.device.available()
    if not there then print(why) os.exit(2) end' 2>&1) && { there=yes; return 0; }
  echo "gpu.sh: no usable device: $why" >&2
  note "$1" "failed: $(plain <<<"$why")" 0
  leave 2
}

sanitizer() {
  if [ "$kind" != cuda ] || ! command -v compute-sanitizer >/dev/null; then
    note sanitizer "skipped: compute-sanitizer or the device is not there" 0
    # the emulation watches kernels itself (spec/cuda/emulate/guard.cpp)
    [ "$kind" = cpu ] || check "subset for the sanitizer" subset.log "${ours_env[@]}" PERILUNE_EMULATE=twice "$perilune" \
      run "$here/gpu_subset.lua" -- "$device" || bad=1
    return
  fi
  local tool
  for tool in memcheck racecheck initcheck; do
    [ "$(left)" -gt 5 ] || { note "compute-sanitizer $tool" "left out: the budget is used up" 0; bad=1; continue; }
    check "compute-sanitizer $tool" "sanitizer-$tool.log" "${ours_env[@]}" compute-sanitizer --tool "$tool" --error-exitcode 9 \
      "$perilune" run "$here/gpu_subset.lua" -- "$device" || bad=1
  done
}

ours() { # mode, seconds, further options of gpu.lua
  local before after code
  touch "$out/perilune.jsonl"
  before=$(wc -l <"$out/perilune.jsonl")
  timeout -k 5 $(($2 + 8)) "${ours_env[@]}" "$perilune" run "$here/gpu.lua" -- --modes "$1" --device "$device" \
    ${tiny[@]+"${tiny[@]}"} --budget "$2" --logs "$out/logs" --json "$out/perilune.jsonl" "${@:3}" 2>"$out/logs/bench-$1.err"
  code=$?
  cat "$out/logs/bench-$1.err" >&2
  after=$(wc -l <"$out/perilune.jsonl")
  if grep -q '^left out' "$out/logs/bench-$1.err"; then note "bench $1" "$(grep '^left out' "$out/logs/bench-$1.err" | plain)" 0; fi
  if [ $code -ne 0 ]; then
    bad=1
    note "bench $1" "exit status $code, $((after - before)) results" 0
  elif [ "$after" -gt "$before" ]; then
    note "bench $1" "ok: $((after - before)) results" 0
  fi
  [ $code -ne 2 ] || leave 2
}
theirs() { # mode, seconds, further options; PyTorch has more modes than perilune: cudnn goes with eager, compile+cudnn with compile
  local modes=$1
  case $1 in eager) modes="eager cudnn" ;; compile) modes="compile compile+cudnn" ;; esac
  if [ "$kind" = emulated ] || [ -z "$peers" ] || ! "$python" -c 'import torch' 2>/dev/null; then
    note "PyTorch $1" "skipped: the device is emulated, $python has no torch, or gpu_peers.py is not there" 0
    return
  fi
  # shellcheck disable=SC2086
  if timeout -k 5 $(($2 + 8)) "$python" "$peers" --modes $modes --device "$device" ${tiny[@]+"${tiny[@]}"} --budget "$2" \
    --json "$out/torch.jsonl" "${@:3}"; then
    note "PyTorch $1" ok 0
  else
    note "PyTorch $1" "exit status $?" 0
    bad=1
  fi
}
report() { "${ours_env[@]}" "$perilune" run "$here/gpu_report.lua" -- "$out" ${1:+${1//,/ }} || bad=1; }
leave() { # from anywhere within a slice
  bad=$1
  exit "$1"
}

save() { # everything so far in one file, for machines that give few files back
  [ -z "$archive" ] || { tar czf "$archive.part" -C "$(dirname "$out")" "$(basename "$out")" && mv "$archive.part" "$archive"; }
}
run_slice() {
  local arg=${slice#*:}
  [ "$arg" != "$slice" ] || arg=''
  case $slice in
    specs* | moved* | golden* | sanitizer | bench:* | both:* | values | bandwidth | train | cores) need_device "$slice" ;;
  esac
  case $slice in
    pack) # shellcheck source=bench/gpu_pack.sh
      . "$here/gpu_pack.sh"
      pack ;;
    smoke) smoke ;;
    values) values ;;
    bandwidth | train | cores) timed "$slice" ;;
    probe) probe ;;
    specs | specs:*) specs specs "$arg" ;;
    golden | golden:*) golden "$arg" ;;
    moved | moved:*) [ "$device" = cpu ] || specs moved "$arg" ;;
    sanitizer) sanitizer ;;
    bench:*) ours "$arg" "$slice_budget" ;;
    peers:*) theirs "$arg" "$slice_budget" ;;
    both:*) ours "$arg" $((slice_budget / 2)); save; theirs "$arg" "$(left)" ;;
    report | report:*) report "$arg" ;;
    *) echo "gpu.sh: no slice $slice" >&2; bad=2 ;;
  esac
}
# shellcheck source=bench/gpu_groups.sh
. "$here/gpu_groups.sh"
# shellcheck source=bench/gpu_specs.sh
. "$here/gpu_specs.sh"
for slice in "${slices[@]}"; do
  slice_begin=$(date +%s)
  slice_budget=$budget
  case $slice in *@*) slice_budget=${slice#*@} slice=${slice%@*} ;; esac
  echo "== $slice ($slice_budget s)"
  opened "$slice"
  guarded run_slice
  save
done
exit $bad
