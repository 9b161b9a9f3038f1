rockspec_format = "3.0"
package = "perilune"
version = "scm-1"
source = {
  url = "git+https://example.org/perilune/perilune.git",
}
description = {
  summary = "Deep learning engine in C11, driven from Lua",
  detailed = [[
Tensors, gradients, neural networks and data loading for Lua 5.4, on a C11 engine of its own.
Uses OpenBLAS, oneDNN, libspng, libturbojpeg, Jansson, PCRE2, utf8proc and zlib where they are installed.]],
  license = "MIT",
  labels = { "machine-learning", "tensor", "autograd" },
}
dependencies = {
  "lua >= 5.4, < 5.5",
}
supported_platforms = { "linux" }
-- `luarocks --lua-version=5.4 make` from a checkout. LuaRocks collects lua/, lib/ and bin/ below PREFIX.
-- A command rather than type "cmake": that one needs make and compiles one file at a time.
build = {
  type = "command",
  build_command = "cmake -S . -B build.luarocks `command -v ninja >/dev/null && echo -G Ninja`"
    .. " -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX='$(PREFIX)' -DPL_LUADIR=lua -DPL_CLIBDIR=lib"
    .. " -DPL_LUA_INCLUDE='$(LUA_INCDIR)' -DPL_WERROR=OFF -DPL_TESTS=OFF -DPL_DOCS=OFF"
    .. " -DPL_DEVEL=OFF"
    .. " && cmake --build build.luarocks -j `nproc`",
  install_command = "cmake --install build.luarocks",
}
