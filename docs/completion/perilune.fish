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
complete -c perilune -n '__fish_seen_subcommand_from bench' -l only -r -f
complete -c perilune -n '__fish_seen_subcommand_from bench' -l threads -r -f
complete -c perilune -n '__fish_seen_subcommand_from bench' -l list
complete -c perilune -n '__fish_seen_subcommand_from bench' -l json -r -F
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
complete -c perilune -n '__fish_seen_subcommand_from diff' -l atol -r -f
complete -c perilune -n '__fish_seen_subcommand_from diff' -l rtol -r -f
complete -c perilune -n '__fish_seen_subcommand_from diff' -l any-dtype
complete -c perilune -n '__fish_seen_subcommand_from diff' -l help
complete -c perilune -n '__fish_seen_subcommand_from convert' -l type -r -f -a 'Q8_0 Q5_1 Q5_0 Q4_1 Q4_0 F16 BF16 F32'
complete -c perilune -n '__fish_seen_subcommand_from convert' -l dtype -r -f -a 'f16 bf16 f32 f64'
complete -c perilune -n '__fish_seen_subcommand_from convert' -l size -r -f
complete -c perilune -n '__fish_seen_subcommand_from convert' -l help
complete -c perilune -n '__fish_seen_subcommand_from build' -s o -r -F
complete -c perilune -n '__fish_seen_subcommand_from build' -l static
complete -c perilune -n '__fish_seen_subcommand_from build' -l name -r -f
complete -c perilune -n '__fish_seen_subcommand_from build' -l size -r -f
complete -c perilune -n '__fish_seen_subcommand_from build' -l info
complete -c perilune -n '__fish_seen_subcommand_from build' -l time -r -f
complete -c perilune -n '__fish_seen_subcommand_from build' -l help
complete -c perilune -n '__fish_seen_subcommand_from generate' -l temperature -r -f
complete -c perilune -n '__fish_seen_subcommand_from generate' -l top-k -r -f
complete -c perilune -n '__fish_seen_subcommand_from generate' -l top-p -r -f
complete -c perilune -n '__fish_seen_subcommand_from generate' -l min-p -r -f
complete -c perilune -n '__fish_seen_subcommand_from generate' -l max-new-tokens -r -f
complete -c perilune -n '__fish_seen_subcommand_from generate' -l repetition-penalty -r -f
complete -c perilune -n '__fish_seen_subcommand_from generate' -l seed -r -f
complete -c perilune -n '__fish_seen_subcommand_from generate' -l stop -r -f
complete -c perilune -n '__fish_seen_subcommand_from generate' -l tokenizer -r -F
complete -c perilune -n '__fish_seen_subcommand_from generate' -l dtype -r -f -a 'f32 bf16 f16 f64 file'
complete -c perilune -n '__fish_seen_subcommand_from generate' -l device -r -f -a 'cpu cuda'
complete -c perilune -n '__fish_seen_subcommand_from generate' -l help
complete -c perilune -n '__fish_seen_subcommand_from chat' -l system -r -f
complete -c perilune -n '__fish_seen_subcommand_from chat' -l template -r -F
complete -c perilune -n '__fish_seen_subcommand_from chat' -l max-new-tokens -r -f
complete -c perilune -n '__fish_seen_subcommand_from chat' -l temperature -r -f
complete -c perilune -n '__fish_seen_subcommand_from chat' -l top-k -r -f
complete -c perilune -n '__fish_seen_subcommand_from chat' -l top-p -r -f
complete -c perilune -n '__fish_seen_subcommand_from chat' -l min-p -r -f
complete -c perilune -n '__fish_seen_subcommand_from chat' -l repetition-penalty -r -f
complete -c perilune -n '__fish_seen_subcommand_from chat' -l seed -r -f
complete -c perilune -n '__fish_seen_subcommand_from chat' -l stop -r -f
complete -c perilune -n '__fish_seen_subcommand_from chat' -l tokenizer -r -F
complete -c perilune -n '__fish_seen_subcommand_from chat' -l dtype -r -f -a 'f32 bf16 f16 f64 file'
complete -c perilune -n '__fish_seen_subcommand_from chat' -l device -r -f -a 'cpu cuda'
complete -c perilune -n '__fish_seen_subcommand_from chat' -l help
complete -c perilune -n '__fish_seen_subcommand_from serve' -l host -r -f
complete -c perilune -n '__fish_seen_subcommand_from serve' -l port -r -f
complete -c perilune -n '__fish_seen_subcommand_from serve' -l name -r -f
complete -c perilune -n '__fish_seen_subcommand_from serve' -l max-new-tokens -r -f
complete -c perilune -n '__fish_seen_subcommand_from serve' -l max-streams -r -f
complete -c perilune -n '__fish_seen_subcommand_from serve' -l max-queue -r -f
complete -c perilune -n '__fish_seen_subcommand_from serve' -l timeout -r -f
complete -c perilune -n '__fish_seen_subcommand_from serve' -l tokenizer -r -F
complete -c perilune -n '__fish_seen_subcommand_from serve' -l template -r -F
complete -c perilune -n '__fish_seen_subcommand_from serve' -l dtype -r -f -a 'f32 bf16 f16 f64 file'
complete -c perilune -n '__fish_seen_subcommand_from serve' -l device -r -f -a 'cpu cuda'
complete -c perilune -n '__fish_seen_subcommand_from serve' -l help
complete -c perilune -n '__fish_seen_subcommand_from watch' -l port -r -f
complete -c perilune -n '__fish_seen_subcommand_from watch' -l help
complete -c perilune -n '__fish_seen_subcommand_from watch' -f -a '(__fish_complete_directories)'
complete -c perilune -n '__fish_seen_subcommand_from launch' -s n -r -f
complete -c perilune -n '__fish_seen_subcommand_from launch' -l hosts -r -f
complete -c perilune -n '__fish_seen_subcommand_from launch' -l hostfile -r -F
complete -c perilune -n '__fish_seen_subcommand_from launch' -l threads -r -f
complete -c perilune -n '__fish_seen_subcommand_from launch' -l tag
complete -c perilune -n '__fish_seen_subcommand_from launch' -l env -r -f
complete -c perilune -n '__fish_seen_subcommand_from launch' -l master-addr -r -f
complete -c perilune -n '__fish_seen_subcommand_from launch' -l master-port -r -f
complete -c perilune -n '__fish_seen_subcommand_from launch' -l show
complete -c perilune -n '__fish_seen_subcommand_from launch' -l help
complete -c perilune -n '__fish_seen_subcommand_from kernel' -l user
complete -c perilune -n '__fish_seen_subcommand_from kernel' -l prefix -r -f -a '(__fish_complete_directories)'
complete -c perilune -n '__fish_seen_subcommand_from kernel' -l name -r -f
complete -c perilune -n '__fish_seen_subcommand_from kernel' -l help
complete -c perilune -n '__fish_seen_subcommand_from kernel' -f -a 'install uninstall run'
