#!/bin/sh
# SPDX-License-Identifier: MIT
# golden.sh PERILUNE DIR [tenth | device | onnx]: runs spec/golden.lua on the golden vectors of DIR, or on every tenth
# case, or on those with the device as the default one, or on some through an ONNX file. Exit status 77 (CTest: skipped) where DIR does not exist, as in a user's clone.
if [ ! -d "$2" ]; then
  echo "no golden vectors in $2"
  exit 77
fi
if [ "${3-}" = tenth ]; then
  exec "$1" run spec/golden.lua -- "$2" --every 10
fi
if [ "${3-}" = device ]; then
  exec "$1" run spec/golden.lua -- "$2" --every 10 --device cuda
fi
if [ "${3-}" = onnx ]; then
  exec "$1" run spec/golden.lua -- "$2" --every 12 --mode onnx
fi
exec "$1" run spec/golden.lua -- "$2"
