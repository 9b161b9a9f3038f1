-- SPDX-License-Identifier: MIT
-- Completion of the perilune command for shells, from the command's pages: words, options, what an argument is.
-- → function of the shell's name ("bash", "zsh", "fish") that returns the text
local pages = require "perilune.command.pages"

-- What the arguments of a command are: files, names of the reference, or none.
local function argument(page)
  local usage = page[2]
  if usage:find "^help" then return "names" end
  if usage:find "FILE" or usage:find "A B$" then return "files" end
  return "none"
end

-- Options in the order in which the page names them, those of the scripts that commands run excepted.
local function options_of(page)
  local list, seen = {}, {}
  for dashes, word in (page[2] .. "\n" .. page[4]):gmatch "%f[%-](%-%-?)(%l[%l-]*)" do
    local option = dashes .. word
    if not seen[option] and (#dashes == 2 or #word == 1) then
      seen[option] = true
      list[#list + 1] = option
    end
  end
  list[#list + 1] = "--help"
  return list
end

local commands = {}
for _, page in ipairs(pages) do
  if page[1] ~= "-e" then
    commands[#commands + 1] = { name = page[1], about = page[3], options = options_of(page), argument = argument(page) }
  end
end

local function names()
  local out = {}
  for i, c in ipairs(commands) do out[i] = c.name end
  return table.concat(out, " ")
end

local shells = {}

function shells.bash()
  local cases = {}
  for _, c in ipairs(commands) do
    cases[#cases + 1] = ("    %s) options='%s' kind=%s ;;"):format(c.name, table.concat(c.options, " "), c.argument)
  end
  return ([[
# SPDX-License-Identifier: MIT
# Completion of perilune for bash; written by docs/make/complete.lua.
_perilune() {
  local word=${COMP_WORDS[COMP_CWORD]} options= kind=files
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '@NAMES --version --help -e' -- "$word") $(compgen -f -X '!*.lua' -- "$word")
      $(compgen -d -- "$word"))
    return
  fi
  case ${COMP_WORDS[1]} in
@CASES
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
]]):gsub("@(%u+)", { NAMES = names(), CASES = table.concat(cases, "\n") })
end

function shells.zsh()
  local list, cases = {}, {}
  for _, c in ipairs(commands) do
    list[#list + 1] = ("    '%s:%s'"):format(c.name, (c.about:gsub("'", "'\\''"):gsub(":", "\\:")))
    local kind = c.argument == "names" and "compadd -- ${(f)\"$(perilune help --names 2>/dev/null)\"}"
      or c.argument == "files" and "_files" or ":"
    cases[#cases + 1] = ("    %s)\n      options=(%s)\n      "
      .. "[[ $words[CURRENT] == -* ]] && compadd -- $options || %s ;;"):format(
      c.name, table.concat(c.options, " "), kind)
  end
  return ([[
#compdef perilune
# SPDX-License-Identifier: MIT
# Completion of perilune for zsh; written by docs/make/complete.lua.
_perilune() {
  local -a commands options
  commands=(
@LIST
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    compadd -- --version --help -e
    _files -g '*.lua'
    return
  fi
  case $words[2] in
@CASES
    *) _files ;;
  esac
}
_perilune "$@"
]]):gsub("@(%u+)", { LIST = table.concat(list, "\n"), CASES = table.concat(cases, "\n") })
end

function shells.fish()
  local out = { "# SPDX-License-Identifier: MIT",
    "# Completion of perilune for fish; written by docs/make/complete.lua.",
    "complete -c perilune -n __fish_use_subcommand -l version -d 'the version'",
    "complete -c perilune -n __fish_use_subcommand -s e -x -d 'runs code'" }
  for _, c in ipairs(commands) do
    out[#out + 1] = ("complete -c perilune -n __fish_use_subcommand -a %s -d '%s'"):format(c.name,
      (c.about:gsub("'", "\\'")))
  end
  for _, c in ipairs(commands) do
    local seen = ("-n '__fish_seen_subcommand_from %s'"):format(c.name)
    for _, option in ipairs(c.options) do
      local long = option:match "^%-%-(.*)$"
      out[#out + 1] = ("complete -c perilune %s %s"):format(seen, long and "-l " .. long or "-s " .. option:sub(2))
    end
    if c.argument == "names" then
      out[#out + 1] = ("complete -c perilune %s -f -a '(perilune help --names 2>/dev/null)'"):format(seen)
    elseif c.argument == "none" then
      out[#out + 1] = ("complete -c perilune %s -f"):format(seen)
    end
  end
  return table.concat(out, "\n") .. "\n"
end

return function(shell) return (shells[shell]()) end
