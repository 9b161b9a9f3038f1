#!/bin/sh
# SPDX-License-Identifier: MIT
# golden.sh PERILUNE DIR [tenth]: runs spec/golden.lua on the golden vectors of DIR, or on every tenth
# operator by name. Exit status 77 (CTest: skipped) where DIR does not exist, as in a user's clone.
if [ ! -d "$2" ]; then
  echo "no golden vectors in $2"
  exit 77
fi
ops=""
if [ "${3-}" = tenth ]; then
  ops=$(cd "$2" && printf "%s\n" *.lua | sed "s,\.lua$,," | grep -vx -e index -e load | awk 'NR % 10 == 1')
fi
# shellcheck disable=SC2086
exec "$1" run spec/golden.lua -- "$2" $ops
