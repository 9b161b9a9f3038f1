# SPDX-License-Identifier: MIT
# The groups of bench/gpu.sh, and how a slice is opened, cut and closed. Sourced by it; its variables and functions are there.
# shellcheck shell=bash disable=SC2154,SC2034

# Each slice runs in a process group of its own, so that it can be cut whole while the line that closes it is still written.
child='' slice='' first_check=0 first_failing=0
SAID=40 # names of failing cases before the line that closes a slice
opened() { # slice
  slice=$1
  touch "$out/checks.jsonl" "$out/failing.txt"
  first_failing=$(wc -l <"$out/failing.txt")
  first_check=$(wc -l <"$out/checks.jsonl")
}
closed() {
  local of
  of=$(tail -n +$((first_failing + 1)) "$out/failing.txt" 2>/dev/null | cut -c1-160 | sort)
  if [ -n "$of" ]; then
    echo "failing cases: $(wc -l <<<"$of")"
    head -n $SAID <<<"$of"
    [ "$(wc -l <<<"$of")" -le $SAID ] || echo "… and $(($(wc -l <<<"$of") - SAID)) more: failing.txt"
  fi
  of=$(tail -n +$((first_check + 1)) "$out/checks.jsonl" 2>/dev/null)
  count() { grep -c "\"result\": \"$1" <<<"$of" || true; }
  printf '== %s: %s ok, %s failed, %s skipped, %s not done or left out, %s s%s\n' "$slice" "$(count ok)" \
    "$(($(count failed) + $(count 'exit status')))" "$(count skipped)" "$(($(count 'not done') + $(count 'left out')))" \
    $(($(date +%s) - slice_begin)) "${1:-}"
}
guarded() { # function and its arguments: runs it, cut 10 s behind its budget at the latest
  local code watch
  set -m
  (
    trap - TERM INT HUP
    "$@"
    exit "$bad"
  ) &
  child=$!
  (
    sleep $((slice_budget + 10))
    kill -TERM -- "-$child"
    sleep 3
    kill -KILL -- "-$child"
  ) >/dev/null 2>&1 &
  watch=$!
  set +m
  wait "$child"
  code=$?
  child=''
  kill -- "-$watch" 2>/dev/null
  wait "$watch" 2>/dev/null
  case $code in
    0) closed ;;
    1) bad=1; closed ;;
    2) closed; save; exit 2 ;;
    *) bad=1; note "$slice" "not done in the budget" "$slice_budget"; closed ' (cut)' ;;
  esac
}
cut_short() {
  [ -z "$child" ] || kill -TERM -- "-$child" 2>/dev/null
  note "$slice" "not done: cut by a signal" $(($(date +%s) - slice_begin))
  closed ' (cut)'
  save
  exit 1
}
trap cut_short TERM INT HUP

# ---- smoke: would anything else make sense here? -----------------------------------------------------------------------

smoke() {
  probe
  local name
  if grep -q 'no memory pools' "$out/probe.json"; then
    note "memory pools" "skipped: this GPU has none, blocks come from the driver" 0
  else
    note "memory pools" ok 0
  fi
  for name in cuBLASLt cuDNN NVRTC; do
    if grep -qE "$name [0-9]" "$out/probe.json"; then
      note "$name" "ok: $(grep -oE "$name [0-9.]+" "$out/probe.json" | head -1)" 0
    else
      note "$name" "skipped: not found, our own kernels compute" 0
    fi
  done
  check "subset" subset.log "${ours_env[@]}" "$perilune" run "$here/gpu_subset.lua" -- "$device" || bad=1
  check "subset without cuDNN" subset-own.log "${ours_env[@]}" "$perilune" run "$here/gpu_subset.lua" -- "$device" own || bad=1
  if [ "$kind" = cuda ] && command -v compute-sanitizer >/dev/null; then
    check "memcheck without cuDNN" memcheck.log "${ours_env[@]}" compute-sanitizer --tool memcheck --error-exitcode 9 \
      "$perilune" run "$here/gpu_subset.lua" -- "$device" own || bad=1
  elif [ "$kind" = emulated ]; then # it watches kernels itself (spec/cuda/emulate/guard.cpp)
    check "guarded without cuDNN" memcheck.log "${ours_env[@]}" PERILUNE_EMULATE=guard "$perilune" run "$here/gpu_subset.lua" -- \
      "$device" own || bad=1
  else
    note "memcheck without cuDNN" "skipped: compute-sanitizer or the device is not there" 0
  fi
}

# ---- values: what workloads compute, in every mode ---------------------------------------------------------------------

values() {
  local log=$out/logs/values.log
  "${ours_env[@]}" "$perilune" run "$here/gpu.lua" -- --values --device "$device" --budget "$(left)" --logs "$out/logs" \
    ${only[@]+--only "${only[@]}"} 2>&1 | tee "$log"
  local code=${PIPESTATUS[0]}
  grep -aE 'differs by' "$log" | while read -r name mode _; do
    if grep -aq "^skip $name $mode: " "$log"; then note "values $name $mode" "failed: $(grep -a "^skip $name $mode: " "$log" | plain)" 0
    else note "values $name $mode" ok 0; fi
  done
  grep -aE '^skip ' "$log" | while read -r _ name mode why; do
    grep -aqE "^$name +${mode%:} .*differs by" "$log" || note "values $name ${mode%:}" "failed: $(plain <<<"$why")" 0
  done
  grep -aE '^left out' "$log" | while read -r said; do note values "left out: $(plain <<<"$said")" 0; done
  [ "$code" -eq 0 ] || bad=1
}

# ---- times, of a list of workloads --------------------------------------------------------------------------------------

part() { echo $(($(left) * $1 / 100)); } # of what is left
timed() { # bandwidth, cores or train
  local list modes mode
  case $1 in
    bandwidth) modes='eager compile'
      list="copy_1g ew_64m_f32 ew_64m_bf16 cast_64m sum_64m softmax_4096x1024 softmax_8192x32768 layernorm_16384x4096
        rmsnorm_16384x4096 xent_8192x50304 adamw_124m dispatch_add" ;;
    cores) modes='eager tf32'
      list="gemm_bf16_4096 gemm_bf16_8192 gemm_f32_4096 gemm_bf16_1024 conv_fwd_bwd sdpa_b4h16s2048d128_causal_fwd
        sdpa_b4h16s2048d128_causal_bwd sdpa_b1h64s8192d128_causal_fwd sdpa_b1h64s8192d128_causal_bwd" ;;
    train) modes='eager graph compile'
      list="mlp_step_b64 gpt2_124m_step_b32 resnet50_step_b256 lstm_char_step" ;;
  esac
  [ ${#only[@]} -eq 0 ] || list=${only[*]}
  # shellcheck disable=SC2086
  for mode in $modes; do ours "$mode" "$(part 30)" --only $list; done
  if [ "$1" = train ]; then # once more where the same bits need not come twice
    # shellcheck disable=SC2086
    ours graph "$(part 40)" --deterministic no --only $list
  fi
  # shellcheck disable=SC2086
  for mode in ${modes/graph/}; do theirs "$mode" "$(part 45)" --only $list; done
  report ''
}
