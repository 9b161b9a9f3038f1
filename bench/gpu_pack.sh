# SPDX-License-Identifier: MIT
# bench/gpu.sh pack: one folder, build/gpu-pack, with everything that a bare machine with a driver needs: the program, its
# libraries, the CUDA plug-in, busted and its modules, specs, benchmarks, data. It fails where a part is missing, tries what it
# packed with nothing else on its paths, and says what it found. Sourced by gpu.sh.
# shellcheck shell=bash disable=SC2154,SC2034

PACK_MIB=60 PACK_GLIBC=2.36

lacks() {
  note "pack: $1" "failed: $2" 0
  bad=1
}
holds() { note "pack: $1" "ok: $2" 0; }
module() { # name: where Lua finds it, a file
  lua5.4 -e 'local n = ...; print(package.searchpath(n, package.path) or package.searchpath(n, package.cpath) or "")' "$1" 2>/dev/null ||
    "$perilune" -e "print(package.searchpath('$1', package.path) or package.searchpath('$1', package.cpath) or '')" 2>/dev/null
}

pack_program() { # dir
  local dir=$1 name
  mkdir -p "$dir/bin" "$dir/lib/others" "$dir/lib/lua/5.4" "$dir/share/lua/5.4" "$dir/spec" "$dir/bench" || return 1
  cp "$perilune" "$dir/bin/"
  cp -rL "$build/lib/perilune" "$dir/lib/"
  cp -rL "$build/share/perilune" "$dir/share/" 2>/dev/null
  for name in "$build/lib/perilune/perilune_cuda.so" "$build/spec/perilune_cuda.so"; do
    [ -f "$name" ] || continue
    cp "$name" "$dir/lib/perilune/perilune_cuda.so"
    holds "CUDA plug-in" "$(($(stat -c %s "$name") >> 10)) KiB, ${name#"$build"/}"
    break
  done
  [ -f "$dir/lib/perilune/perilune_cuda.so" ] || lacks "CUDA plug-in" "neither in lib/perilune nor in spec (./setup build --cuda)"
  for name in cuda_cudnn cuda_fused pty libstates.so libsockets.so; do
    if [ -e "$build/spec/$name" ]; then cp "$build/spec/$name" "$dir/spec/"; else lacks "spec/$name" "not built (cmake --build $build --target tests)"; fi
  done
  strip --strip-debug "$dir"/spec/* "$dir"/lib/perilune/*.so 2>/dev/null
  rm -f "$dir"/lib/perilune/{perilune_mpi,httpd,zeromq}.so # servers and their libraries: none there
  # also what engine.so opens by name: BLAS. oneDNN is 38 MiB, and only quickens convolutions on the CPU
  { ldd "$perilune" "$dir"/lib/perilune/*.so
    grep -aohE 'libopenblas\.so\.[0-9]+' "$build/lib/perilune/engine.so" | sort -u | while read -r lib; do
      name=$(readelf -d "$build/lib/perilune/engine.so" | sed -n 's/.*runpath: \[\([^]:]*\).*/\1/p')/$lib
      [ -e "$name" ] || name=$(ldconfig -p | sed -n "s|.*$lib .*=> ||p" | head -1)
      echo "$lib => $name"
      [ ! -e "$name" ] || ldd "$name"
    done
  } | sed -n 's|^[[:space:]]*\([^ ]*\) => \(/[^ ]*\).*|\1 \2|p' | sort -u |
    grep -vE '^(libc|libm|libdl|libpthread|librt|ld-linux[^ ]*|libstdc\+\+|libgcc_s)\.so' |
    while read -r lib name; do cp -L "$name" "$dir/lib/others/$lib"; done
  holds libraries "$(cd "$dir/lib/others" && echo *)"
}

pack_busted() { # dir
  local dir=$1 name at
  if [ -z "$busted" ]; then
    lacks busted "not on the PATH (apt install lua-busted, or luarocks install busted)"
    return
  fi
  cp "$busted" "$dir/bin/busted"
  for name in busted luassert say mediator cliargs pl system term lfs dkjson; do
    at=$(module "$name")
    [ -n "$at" ] || at=$(module "$name.core")
    case $at in
      '') case $name in lfs | dkjson) lacks "Lua module $name" "not found, busted needs it" ;; *) [ -n "$(module "$name.init")" ] || [ "$name" = pl ] ||
        lacks "Lua module $name" "not found, busted needs it" ;; esac ;;
      *.so) cp -L "$at" "$dir/lib/lua/5.4/" ;;
      */init.lua) cp -rL "$(dirname "$at")" "$dir/share/lua/5.4/" ;;
      *) cp -L "$at" "$dir/share/lua/5.4/" ;;
    esac
    # the folder of submodules beside it, and its compiled half
    for at in "${at%.lua}" "$(dirname "$(module pl.compat)")"; do
      [ ! -d "$at" ] || cp -rL "$at" "$dir/share/lua/5.4/"
    done
    at=$(module "$name.core")
    case $at in *.so) mkdir -p "$dir/lib/lua/5.4/$name" && cp -L "$at" "$dir/lib/lua/5.4/$name/" ;; esac
  done
  holds busted "$(cd "$dir/share/lua/5.4" && echo *)"
}

# Nothing of this machine but Lua's own search paths of the pack: what lacks shows here, not there.
pack_try() { # dir
  local dir=$1
  local try=(env -i HOME=/nonexistent PATH=/usr/bin:/bin LD_LIBRARY_PATH="$dir/lib/others" PERILUNE_ROOT="$dir" PERILUNE_BUILD="$dir"
    LUA_PATH_5_4="$dir/lua/?.lua;$dir/lua/?/init.lua;$dir/?.lua;$dir/share/lua/5.4/?.lua;$dir/share/lua/5.4/?/init.lua"
    LUA_CPATH_5_4="$dir/lib/?.so;$dir/lib/lua/5.4/?.so")
  (cd "$dir" && check "pack: the program" pack-program.log "${try[@]}" "$dir/bin/perilune" -e 'print(require("perilune").ones(2):sum():item())') || bad=1
  (cd "$dir" && check "pack: a spec" pack-spec.log "${try[@]}" "$dir/bin/perilune" run "$dir/bin/busted" -- spec/tensor/channels_last_spec.lua) || bad=1
  (cd "$dir" && check "pack: a benchmark" pack-bench.log "${try[@]}" "$dir/bin/perilune" run "$dir/bench/gpu.lua" -- --device cpu --list) || bad=1
}

pack() {
  local dir=$root/build/gpu-pack size need name
  [ ! -f "$build/build.ninja" ] || [ -n "${PACK_AS_BUILT:-}" ] || cmake --build "$build" --target all tests >"$out/logs/build.log" 2>&1 || {
    tail -5 "$out/logs/build.log"
    bad=1
    return 1
  }
  rm -rf "$dir"
  pack_program "$dir"
  pack_busted "$dir"
  (cd "$root" && { git ls-files lua spec bench .busted 2>/dev/null | grep . || find lua spec bench -type f; }) |
    (cd "$root" && tar cf - -T -) | tar xf - -C "$dir"
  (cd "$root" && tar cf - engine/ops/ops.def docs/design) | tar xf - -C "$dir" # what specs read beside
  [ -z "$peers" ] || cp "$peers" "$(dirname "$peers")/peer_torch.py" "$dir/bench/"
  if [ -n "$peers" ]; then
    holds "PyTorch's side" "$(basename "$peers")"
  else
    note "pack: PyTorch's side" "skipped: gpu_peers.py is not there" 0
  fi
  need=$(find "$dir" -type f \( -name '*.so*' -o -path '*/bin/*' -o -path '*/spec/cuda_*' \) -exec readelf -V {} + 2>/dev/null |
    grep -oE 'GLIBC_[0-9.]+' | sed 's/GLIBC_//' | sort -uV | tail -1)
  if [ "$(printf '%s\n%s\n' "$need" "$PACK_GLIBC" | sort -V | tail -1)" = "$PACK_GLIBC" ]; then holds glibc "$need or newer"; else
    lacks glibc "$need is needed, $PACK_GLIBC is what such machines have"; fi
  pack_try "$dir"
  gzip -f "$dir"/lib/others/libopenblas* 2>/dev/null # half of the pack, to a quarter; gpu.sh unpacks it where it runs
  (cd / && check "pack: the script" pack-script.log env -i HOME=/nonexistent PATH=/usr/bin:/bin bash "$dir/bench/gpu.sh" --device cpu --tiny \
    --out "$out/packed" probe) || bad=1
  for name in "$dir"/lib/others/*.gz; do rm -f "${name%.gz}"; done
  size=$(du -sm "$dir" | cut -f1)
  if [ "$size" -le $PACK_MIB ]; then holds size "$size MiB of $PACK_MIB"; else lacks size "$size MiB, $PACK_MIB are allowed"; fi
  return "$bad"
}
