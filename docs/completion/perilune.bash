# SPDX-License-Identifier: MIT
# Completion of perilune for bash; written by docs/make/complete.lua.
_perilune() {
  local word=${COMP_WORDS[COMP_CWORD]} options= kind=files
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W 'repl run bench info peek help doctest new diff convert build generate chat serve watch launch kernel --version --help -e' -- "$word") $(compgen -f -X '!*.lua' -- "$word")
      $(compgen -d -- "$word"))
    return
  fi
  case ${COMP_WORDS[1]} in
    repl) options='--help' kind=none ;;
    run) options='--help' kind=files ;;
    bench) options='--only --threads --list --json --help' kind=none ;;
    info) options='--help' kind=none ;;
    peek) options='--header --help' kind=files ;;
    help) options='--names --help' kind=names ;;
    doctest) options='--verbose --help' kind=files ;;
    new) options='--help' kind=none ;;
    diff) options='--atol --rtol --any-dtype --help' kind=files ;;
    convert) options='--type --dtype --size --help' kind=files ;;
    build) options='-o --static --name --size --info --time --help' kind=none ;;
    generate) options='--temperature --top-k --top-p --min-p --max-new-tokens --repetition-penalty --seed --stop --tokenizer --dtype --device --help' kind=none ;;
    chat) options='--system --template --max-new-tokens --temperature --help' kind=none ;;
    serve) options='--host --port --name --max-new-tokens --max-streams --max-queue --timeout --tokenizer --template --dtype --device --help' kind=none ;;
    watch) options='--port --help' kind=none ;;
    launch) options='-n --hosts --hostfile --threads --tag --env --master-addr --master-port --show --help' kind=files ;;
    kernel) options='--user --prefix --name --help' kind=files ;;
  esac
  case $word in
    -*) COMPREPLY=($(compgen -W "$options" -- "$word")) ;;
    *)
      case $kind in
        names) COMPREPLY=($(compgen -W "$(perilune help --names 2>/dev/null)" -- "$word")) ;;
        files) COMPREPLY=($(compgen -f -- "$word")) ;;
      esac ;;
  esac
}
complete -o filenames -F _perilune perilune
