#!/bin/sh
# format.sh CLANG_FORMAT: are all C, CUDA and header files of the tree written as .clang-format says? Prints what is not.
cd "$(dirname "$0")/.." || exit 1
find bindings engine kernels examples spec rockspec -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort |
  xargs -P 2 -n 64 "$1" --dry-run --Werror --ferror-limit=3
