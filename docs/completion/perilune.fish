# SPDX-License-Identifier: MIT
# Completion of perilune for fish; written by docs/make/complete.lua.
complete -c perilune -n __fish_use_subcommand -l version -d 'the version'
complete -c perilune -n __fish_use_subcommand -s e -x -d 'runs code'
complete -c perilune -n __fish_use_subcommand -a repl -d 'the prompt: reads, evaluates and shows inputs'
complete -c perilune -n __fish_use_subcommand -a run -d 'runs a script; FILE - is standard input'
complete -c perilune -n __fish_use_subcommand -a bench -d 'measures this machine'
complete -c perilune -n __fish_use_subcommand -a info -d 'version, libraries, threads: the block for a bug report'
complete -c perilune -n __fish_use_subcommand -a peek -d 'what is in a file: tensors with statistics, metadata, events'
complete -c perilune -n __fish_use_subcommand -a help -d 'what a name is: perilune help softmax'
complete -c perilune -n __fish_use_subcommand -a doctest -d 'runs the Lua blocks of Markdown files'
complete -c perilune -n __fish_use_subcommand -a new -d 'makes a folder with a small project that trains'
complete -c perilune -n __fish_use_subcommand -a diff -d 'compares the tensors of two files'
complete -c perilune -n __fish_use_subcommand -a convert -d 'writes the tensors of a file in another format'
complete -c perilune -n __fish_use_subcommand -a build -d 'a program or library that runs one model, without Lua'
complete -c perilune -n __fish_use_subcommand -a generate -d 'a model goes on with a text'
complete -c perilune -n __fish_use_subcommand -a chat -d 'a conversation with a model'
complete -c perilune -n __fish_use_subcommand -a serve -d 'a model behind OpenAI\'s API, for other programs'
complete -c perilune -n __fish_use_subcommand -a watch -d 'a page on this machine that shows trainings while they run'
complete -c perilune -n __fish_use_subcommand -a launch -d 'runs a script in several processes that train together'
complete -c perilune -n __fish_use_subcommand -a kernel -d 'perilune in Jupyter\'s notebooks'
complete -c perilune -n '__fish_seen_subcommand_from repl' -l help
complete -c perilune -n '__fish_seen_subcommand_from repl' -f
complete -c perilune -n '__fish_seen_subcommand_from run' -l help
complete -c perilune -n '__fish_seen_subcommand_from bench' -l only
complete -c perilune -n '__fish_seen_subcommand_from bench' -l threads
complete -c perilune -n '__fish_seen_subcommand_from bench' -l list
complete -c perilune -n '__fish_seen_subcommand_from bench' -l json
complete -c perilune -n '__fish_seen_subcommand_from bench' -l help
complete -c perilune -n '__fish_seen_subcommand_from bench' -f
complete -c perilune -n '__fish_seen_subcommand_from info' -l help
complete -c perilune -n '__fish_seen_subcommand_from info' -f
complete -c perilune -n '__fish_seen_subcommand_from peek' -l header
complete -c perilune -n '__fish_seen_subcommand_from peek' -l help
complete -c perilune -n '__fish_seen_subcommand_from help' -l names
complete -c perilune -n '__fish_seen_subcommand_from help' -l help
complete -c perilune -n '__fish_seen_subcommand_from help' -f -a '(perilune help --names 2>/dev/null)'
complete -c perilune -n '__fish_seen_subcommand_from doctest' -l verbose
complete -c perilune -n '__fish_seen_subcommand_from doctest' -l help
complete -c perilune -n '__fish_seen_subcommand_from new' -l help
complete -c perilune -n '__fish_seen_subcommand_from new' -f
complete -c perilune -n '__fish_seen_subcommand_from diff' -l atol
complete -c perilune -n '__fish_seen_subcommand_from diff' -l rtol
complete -c perilune -n '__fish_seen_subcommand_from diff' -l any-dtype
complete -c perilune -n '__fish_seen_subcommand_from diff' -l help
complete -c perilune -n '__fish_seen_subcommand_from convert' -l type
complete -c perilune -n '__fish_seen_subcommand_from convert' -l dtype
complete -c perilune -n '__fish_seen_subcommand_from convert' -l size
complete -c perilune -n '__fish_seen_subcommand_from convert' -l help
complete -c perilune -n '__fish_seen_subcommand_from build' -s o
complete -c perilune -n '__fish_seen_subcommand_from build' -l static
complete -c perilune -n '__fish_seen_subcommand_from build' -l name
complete -c perilune -n '__fish_seen_subcommand_from build' -l size
complete -c perilune -n '__fish_seen_subcommand_from build' -l info
complete -c perilune -n '__fish_seen_subcommand_from build' -l time
complete -c perilune -n '__fish_seen_subcommand_from build' -l help
complete -c perilune -n '__fish_seen_subcommand_from build' -f
complete -c perilune -n '__fish_seen_subcommand_from generate' -l temperature
complete -c perilune -n '__fish_seen_subcommand_from generate' -l top-k
complete -c perilune -n '__fish_seen_subcommand_from generate' -l top-p
complete -c perilune -n '__fish_seen_subcommand_from generate' -l min-p
complete -c perilune -n '__fish_seen_subcommand_from generate' -l max-new-tokens
complete -c perilune -n '__fish_seen_subcommand_from generate' -l repetition-penalty
complete -c perilune -n '__fish_seen_subcommand_from generate' -l seed
complete -c perilune -n '__fish_seen_subcommand_from generate' -l stop
complete -c perilune -n '__fish_seen_subcommand_from generate' -l tokenizer
complete -c perilune -n '__fish_seen_subcommand_from generate' -l dtype
complete -c perilune -n '__fish_seen_subcommand_from generate' -l device
complete -c perilune -n '__fish_seen_subcommand_from generate' -l help
complete -c perilune -n '__fish_seen_subcommand_from generate' -f
complete -c perilune -n '__fish_seen_subcommand_from chat' -l system
complete -c perilune -n '__fish_seen_subcommand_from chat' -l template
complete -c perilune -n '__fish_seen_subcommand_from chat' -l max-new-tokens
complete -c perilune -n '__fish_seen_subcommand_from chat' -l temperature
complete -c perilune -n '__fish_seen_subcommand_from chat' -l help
complete -c perilune -n '__fish_seen_subcommand_from chat' -f
complete -c perilune -n '__fish_seen_subcommand_from serve' -l host
complete -c perilune -n '__fish_seen_subcommand_from serve' -l port
complete -c perilune -n '__fish_seen_subcommand_from serve' -l name
complete -c perilune -n '__fish_seen_subcommand_from serve' -l max-new-tokens
complete -c perilune -n '__fish_seen_subcommand_from serve' -l max-streams
complete -c perilune -n '__fish_seen_subcommand_from serve' -l max-queue
complete -c perilune -n '__fish_seen_subcommand_from serve' -l timeout
complete -c perilune -n '__fish_seen_subcommand_from serve' -l tokenizer
complete -c perilune -n '__fish_seen_subcommand_from serve' -l template
complete -c perilune -n '__fish_seen_subcommand_from serve' -l dtype
complete -c perilune -n '__fish_seen_subcommand_from serve' -l device
complete -c perilune -n '__fish_seen_subcommand_from serve' -l help
complete -c perilune -n '__fish_seen_subcommand_from serve' -f
complete -c perilune -n '__fish_seen_subcommand_from watch' -l port
complete -c perilune -n '__fish_seen_subcommand_from watch' -l help
complete -c perilune -n '__fish_seen_subcommand_from watch' -f
complete -c perilune -n '__fish_seen_subcommand_from launch' -s n
complete -c perilune -n '__fish_seen_subcommand_from launch' -l hosts
complete -c perilune -n '__fish_seen_subcommand_from launch' -l hostfile
complete -c perilune -n '__fish_seen_subcommand_from launch' -l threads
complete -c perilune -n '__fish_seen_subcommand_from launch' -l tag
complete -c perilune -n '__fish_seen_subcommand_from launch' -l env
complete -c perilune -n '__fish_seen_subcommand_from launch' -l master-addr
complete -c perilune -n '__fish_seen_subcommand_from launch' -l master-port
complete -c perilune -n '__fish_seen_subcommand_from launch' -l show
complete -c perilune -n '__fish_seen_subcommand_from launch' -l help
complete -c perilune -n '__fish_seen_subcommand_from kernel' -l user
complete -c perilune -n '__fish_seen_subcommand_from kernel' -l prefix
complete -c perilune -n '__fish_seen_subcommand_from kernel' -l name
complete -c perilune -n '__fish_seen_subcommand_from kernel' -l help
