# SPDX-License-Identifier: MIT
# Specs and golden cases with their tensors on the device, for bench/gpu.sh. Sourced by it; its variables and functions are there.
# shellcheck shell=bash disable=SC2154,SC2034

# By what they took on one H100 with eight at a time, in seconds: last, so that whatever is cut is among them.
LONG=' ops/extremes optim/optimizers optim/compat nn/calibrated nn/module_to call/surface call/sweep call/branches '
LONG+='ops/beyond ops/order ops/outputs ops/linalg ops/gradient_dtypes ops/overlap ops/recorded ops/refused ops/values ops/slopes '
LONG+='fuzz/readers fuzz/programs graph/fuse_expanded graph/brute_force ops/batch ops/forward ops/gradients ops/second_order '
LONG+='autograd/forward_mode_reductions data/chat_template ops/shape_rules '
LONG+='jit/strides jit/sizes cuda/jit jit/fuzz ops/graph ops/duality autograd/fuzz '
LONG+='autograd/forward_mode_kernels autograd/batched_passes ops/half_numbers ops/inplace_orders '

one_spec() { # how, file: a spec with tensors on the device
  local name=${2#"$root"/spec/} how=$1
  name=${name%_spec.lua}
  if [ "$(left)" -le 5 ]; then
    note "$how $name" "left out: the budget is used up" 0
    return 1
  fi
  check "$how $name" "$how-${name//\//-}.log" "${ours_env[@]}" OMP_NUM_THREADS=2 \
    PERILUNE_TEST_DEVICE="$([ "$how" = moved ] && [ "$device" = cuda ] && echo moved || echo "$device")" \
    "$perilune" run "$busted" -- "$2"
}
several() { # function, its first argument, then one more a call: $jobs at a time
  local f=$1 first=$2 one running=0
  shift 2
  for one in "$@"; do
    if [ "$running" -ge "$jobs" ]; then
      wait -n || bad=1
      running=$((running - 1))
    fi
    "$f" "$first" "$one" &
    running=$((running + 1))
  done
  while [ "$running" -gt 0 ]; do
    wait -n || bad=1
    running=$((running - 1))
  done
}
# Every spec as on the CPU (spec/support/device.lua): `specs` with the device as the default one, `moved` with what specs
# make moved there. Several at a time, those that find most first, long ones last. What has no tensors is not started.
specs() { # how, part
  local how=$1 part=${2:-1/1} spec name k=0 list=() long=() without
  if [ -z "$busted" ]; then
    note "$how" "left out: busted is not there" 0
    bad=1
    return
  fi
  cd "$root" || return
  without=$("${ours_env[@]}" "$perilune" -e "for name, why in pairs(require 'spec.cuda.cpu_only'.${how/specs/cuda}) do
      if type(why) == 'string' then io.write(name, ' ') end
    end")
  for spec in spec/{cuda,graph,io,kernels,lua,models,onnx,tensor}/*_spec.lua spec/{ops,autograd,nn,jit,optim}/*_spec.lua spec/*/*_spec.lua; do
    case " ${list[*]-} ${long[*]-} " in *" $spec "*) continue ;; esac
    [ -f "$spec" ] || continue
    name=${spec#spec/} name=${name%_spec.lua}
    if [ "$device" = cuda ]; then
      case " $without " in *" $name "* | *" ${name%%/*}/ "*) continue ;; esac
    fi
    case $spec in spec/cuda/*) if [ "$how $device" != "specs cuda" ]; then continue; fi ;; esac
    case $part in
      [0-9]*/[0-9]*) k=$((k + 1)); [ $((k % ${part#*/} + 1)) -eq "${part%/*}" ] || continue ;;
      *) case $spec in *"$part"*) ;; *) continue ;; esac ;;
    esac
    case $LONG in *" $name "*) long+=("$spec") ;; *) list+=("$spec") ;; esac
  done
  several one_spec "$how" ${list[@]+"${list[@]/#/$root/}"} ${long[@]+"${long[@]/#/$root/}"}
  if [ "$how $part" = "specs 1/1" ]; then
    for spec in cuda_cudnn cuda_fused; do
      check "$spec" "$spec.log" "${ours_env[@]}" sh -c "[ -x '$build/spec/$spec' ] || { echo not built; exit 77; }; exec '$build/spec/$spec'" || bad=1
    done
  fi
}

one_golden() { # folder, K/N
  if [ "$(left)" -le 5 ]; then
    note "golden $2" "left out: the budget is used up" 0
    return 1
  fi
  check "golden $2" "golden-${2//\//-}.log" "${ours_env[@]}" OMP_NUM_THREADS=2 "$perilune" run spec/golden.lua -- "$1" --device "$device" \
    --fails 20 --part "$2"
}
# PyTorch's numbers with the device as the default one, in as many parts as there are jobs.
golden() { # K/N
  local part=${1:-1/1} dir='' at parts=() i
  for at in "${PERILUNE_GOLDEN-}" "$root/../shared/golden" "$root/golden"; do
    [ -z "$dir" ] && [ -n "$at" ] && [ -f "$at/index.lua" ] && dir=$at
  done
  if [ -z "$dir" ]; then
    note golden "skipped: no golden cases (PERILUNE_GOLDEN names their folder)" 0
    return
  fi
  cd "$root" || return
  for ((i = 0; i < jobs; i++)); do parts+=("$((${part%/*} + i * ${part#*/}))/$((${part#*/} * jobs))"); done
  several one_golden "$dir" "${parts[@]}"
}
