-- SPDX-License-Identifier: MIT
-- What `perilune --help`, `perilune COMMAND --help` and the man page say: name, how it is called, one line, the rest.
-- In this order.
return {
  { "repl", "[repl]", "the prompt: reads, evaluates and shows inputs",
    [[Reads inputs from the terminal, or from standard input when that is none. ? at the prompt introduces it; :help
lists its commands. History lies in $XDG_STATE_HOME/perilune/history (~/.local/state by default), keys can be bound
in ~/.editrc. NO_COLOR turns colours off. From a pipe, the exit status is 1 if any input raised an error.]] },
  { "run", "run FILE [--] ARGS...", "runs a script; FILE - is standard input",
    [[The arguments are in arg[1]... and in `...`. `perilune FILE.lua ARGS...` does the same. The first Ctrl-C raises an
error in the script, a second one ends the process.]] },
  { "-e", "-e CODE ARGS...", "runs code",
    "The arguments are in arg[1]... and in `...`." },
  { "info", "info", "version, libraries, threads: the block for a bug report",
    "" },
  { "help", "help NAME...", "what a name is: perilune help softmax",
    [[NAME is an op, a function of T, or a path such as nn.Linear. Without a name, lists all.]] },
}
