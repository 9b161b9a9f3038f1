# SPDX-License-Identifier: MIT
# Completion of perilune for bash; written by docs/make/complete.lua.
_perilune() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} options= kind=files value= words=
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W 'repl run bench info peek help doctest new diff convert build generate chat serve watch launch kernel --version --help -e' -- "$word") $(compgen -f -X '!*.lua' -- "$word")
      $(compgen -d -- "$word"))
    return
  fi
  case ${COMP_WORDS[1]} in
    repl)
      options='--help' kind=none words='' ;;
    run)
      options='--help' kind=files words='' ;;
    bench)
      options='--only --threads --list --json --help' kind=none words=''
      case $before in
        --only|--threads) value=none words='' ;;
        --json) value=files words='' ;;
      esac ;;
    info)
      options='--help' kind=none words='' ;;
    peek)
      options='--header --help' kind=files words='' ;;
    help)
      options='--names --help' kind=names words='' ;;
    doctest)
      options='--verbose --help' kind=files words='' ;;
    new)
      options='--help' kind=none words='' ;;
    diff)
      options='--atol --rtol --any-dtype --help' kind=files words=''
      case $before in
        --atol|--rtol) value=none words='' ;;
      esac ;;
    convert)
      options='--type --dtype --size --help' kind=files words=''
      case $before in
        --type) value=words words='Q8_0 Q5_1 Q5_0 Q4_1 Q4_0 F16 BF16 F32' ;;
        --dtype) value=words words='f16 bf16 f32 f64' ;;
        --size) value=none words='' ;;
      esac ;;
    build)
      options='-o --static --name --size --info --time --help' kind=files words=''
      case $before in
        -o) value=files words='' ;;
        --name|--size|--time) value=none words='' ;;
      esac ;;
    generate)
      options='--temperature --top-k --top-p --min-p --max-new-tokens --repetition-penalty --seed --stop --tokenizer --dtype --device --help' kind=files words=''
      case $before in
        --temperature|--top-k|--top-p|--min-p|--max-new-tokens|--repetition-penalty|--seed|--stop) value=none words='' ;;
        --tokenizer) value=files words='' ;;
        --dtype) value=words words='f32 bf16 f16 f64 file' ;;
        --device) value=words words='cpu cuda' ;;
      esac ;;
    chat)
      options='--system --template --max-new-tokens --temperature --top-k --top-p --min-p --repetition-penalty --seed --stop --tokenizer --dtype --device --help' kind=files words=''
      case $before in
        --system|--max-new-tokens|--temperature|--top-k|--top-p|--min-p|--repetition-penalty|--seed|--stop) value=none words='' ;;
        --template|--tokenizer) value=files words='' ;;
        --dtype) value=words words='f32 bf16 f16 f64 file' ;;
        --device) value=words words='cpu cuda' ;;
      esac ;;
    serve)
      options='--host --port --name --max-new-tokens --max-streams --max-queue --timeout --tokenizer --template --dtype --device --help' kind=files words=''
      case $before in
        --host|--port|--name|--max-new-tokens|--max-streams|--max-queue|--timeout) value=none words='' ;;
        --tokenizer|--template) value=files words='' ;;
        --dtype) value=words words='f32 bf16 f16 f64 file' ;;
        --device) value=words words='cpu cuda' ;;
      esac ;;
    watch)
      options='--port --help' kind=dirs words=''
      case $before in
        --port) value=none words='' ;;
      esac ;;
    launch)
      options='-n --hosts --hostfile --threads --tag --env --master-addr --master-port --show --help' kind=files words=''
      case $before in
        -n|--hosts|--threads|--env|--master-addr|--master-port) value=none words='' ;;
        --hostfile) value=files words='' ;;
      esac ;;
    kernel)
      options='--user --prefix --name --help' kind=words words='install uninstall run'
      case $before in
        --prefix) value=dirs words='' ;;
        --name) value=none words='' ;;
      esac ;;
  esac
  if [ -z "$value" ]; then
    case $word in
      -*) value=words words=$options ;;
      *) value=$kind ;;
    esac
  fi
  case $value in
    words) COMPREPLY=($(compgen -W "$words" -- "$word")) ;;
    names) COMPREPLY=($(compgen -W "$(perilune help --names 2>/dev/null)" -- "$word")) ;;
    files) COMPREPLY=($(compgen -f -- "$word")) ;;
    dirs) COMPREPLY=($(compgen -d -- "$word")) ;;
  esac
}
complete -o filenames -F _perilune perilune
