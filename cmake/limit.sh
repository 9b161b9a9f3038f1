#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# limit.sh SECONDS COMMAND…: runs a test with a limit of processor time, which a busy machine does not use up; the limit of
# CTest, on the clock, is for tests that wait for ever. Who asks for a long form by a variable waits for it.
set -eu
seconds=$1
shift
for name in "${!PERILUNE_FUZZ@}" "${!PERILUNE_HOSTILE@}" "${!PERILUNE_LANES@}" "${!PERILUNE_SLOW@}"; do
  [ -z "${!name}" ] || exec "$@"
done
ulimit -S -t "$seconds" # of each process; SIGXCPU ends it
exec "$@"
