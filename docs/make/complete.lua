-- SPDX-License-Identifier: MIT
-- Completion of the perilune command for shells, from the command's pages: words, options, what an argument is.
-- → function of the shell's name ("bash", "zsh", "fish") that returns the text
local pages = require "perilune.command.pages"

-- What the arguments of a command are: files, dirs, names of the reference, words ("install uninstall"), or none.
local function argument(page)
  local usage = page[2]:gsub("%b[]", "")
  local words = usage:match "%l+|[%l|]+"
  if page[1] == "help" then return "names" end
  if words then return "words", (words:gsub("|", " ")) end
  if usage:find "FILE" or usage:find "MODEL" or usage:find "A B$" then return "files" end
  return usage:find "DIR" and "dirs" or "none"
end

-- Options in the order in which the page names them, those of the scripts that commands run excepted, then those of
-- the command to which it points. → list of {option, value= what stands behind it: nil, files, dirs, none (any text),
-- words; words= these}
local function options_of(page)
  local list, seen = {}, {}
  local function add(text, values)
    for dashes, word, behind in text:gmatch "%f[%-](%-%-?)(%l[%l-]*)()" do
      local option = dashes .. word
      if #dashes == 2 or #word == 1 then
        local o = seen[option]
        if not o then
          o = { option }
          seen[option], list[#list + 1] = o, o
        end
        local value = text:match("^ ([^%s,%])]+)", behind) or ""
        local known = value:match "^%u+$"
        if values and values[word] then
          o.value, o.words = "words", values[word]
        elseif known == "FILE" or known == "PATH" or known == "OUT" then
          o.value = "files"
        elseif known == "DIR" then
          o.value = "dirs"
        elseif value:find "^%u" and not value:find "^%u%l" or value:find "%d" then
          o.value = o.value or "none"
        end
      end
    end
  end
  add(page[2] .. "\n" .. page[4], page.values)
  local more = page[4]:match "options of perilune (%l+)" or page[4]:match "as for perilune (%l+)"
  for _, other in ipairs(more and pages or {}) do
    if other[1] == more then
      for _, o in ipairs(options_of(other)) do
        if seen[o[1]] then seen[o[1]].value, seen[o[1]].words = o.value, o.words end
        if not seen[o[1]] and page[4]:find "other options" then list[#list + 1] = o end
      end
    end
  end
  for i, o in ipairs(list) do
    if o[1] == "--help" then table.remove(list, i) break end
  end
  list[#list + 1] = { "--help" }
  return list
end

-- The options alone, in one text.
local function plain(options)
  local out = {}
  for i, o in ipairs(options) do out[i] = o[1] end
  return table.concat(out, " ")
end

local commands = {}
for _, page in ipairs(pages) do
  if page[1] ~= "-e" then
    local kind, words = argument(page)
    commands[#commands + 1] = { name = page[1], about = page[3], options = options_of(page), argument = kind,
      words = words }
  end
end

local function names()
  local out = {}
  for i, c in ipairs(commands) do out[i] = c.name end
  return table.concat(out, " ")
end

local shells = {}

-- The options of a command that a text stands behind, grouped by what that is: list of {options, value, words}.
local function valued(c)
  local list, at = {}, {}
  for _, o in ipairs(c.options) do
    local key = o.value and o.value .. (o.words or "")
    if key and not at[key] then
      at[key] = { {}, o.value, o.words }
      list[#list + 1] = at[key]
    end
    if key then table.insert(at[key][1], o[1]) end
  end
  return list
end

function shells.bash()
  local cases = {}
  for _, c in ipairs(commands) do
    local line = ("    %s)\n      options='%s' kind=%s words='%s'\n"):format(c.name, plain(c.options), c.argument,
      c.words or "")
    local values = {}
    for _, v in ipairs(valued(c)) do
      values[#values + 1] = ("        %s) value=%s words='%s' ;;\n"):format(table.concat(v[1], "|"), v[2], v[3] or "")
    end
    if #values > 0 then line = line .. "      case $before in\n" .. table.concat(values) .. "      esac ;;" end
    cases[#cases + 1] = #values > 0 and line or line:sub(1, -2) .. " ;;"
  end
  return ([[
# SPDX-License-Identifier: MIT
# Completion of perilune for bash; written by docs/make/complete.lua.
_perilune() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} options= kind=files value= words=
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '@NAMES --version --help -e' -- "$word") $(compgen -f -X '!*.lua' -- "$word")
      $(compgen -d -- "$word"))
    return
  fi
  case ${COMP_WORDS[1]} in
@CASES
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
]]):gsub("@(%u+)", { NAMES = names(), CASES = table.concat(cases, "\n") })
end

function shells.zsh()
  local list, cases = {}, {}
  for _, c in ipairs(commands) do
    list[#list + 1] = ("    '%s:%s'"):format(c.name, (c.about:gsub("'", "'\\''"):gsub(":", "\\:")))
    local function offer(kind, words)
      return kind == "names" and "compadd -- ${(f)\"$(perilune help --names 2>/dev/null)\"}"
        or kind == "words" and "compadd -- " .. words
        or kind == "files" and "_files" or kind == "dirs" and "_path_files -/" or ":"
    end
    local out = {}
    for _, v in ipairs(valued(c)) do
      out[#out + 1] = ("        %s) %s; return ;;\n"):format(table.concat(v[1], "|"), offer(v[2], v[3]))
    end
    cases[#cases + 1] = ("    %s)\n%s      options=(%s)\n      "
      .. "[[ $words[CURRENT] == -* ]] && compadd -- $options || %s ;;"):format(
      c.name, #out > 0 and "      case $words[CURRENT-1] in\n" .. table.concat(out) .. "      esac\n" or "",
      plain(c.options), offer(c.argument, c.words))
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
  local function offer(kind, words)
    return kind == "names" and "-f -a '(perilune help --names 2>/dev/null)'"
      or kind == "words" and ("-f -a '%s'"):format(words)
      or kind == "dirs" and "-f -a '(__fish_complete_directories)'" or kind == "none" and "-f" or nil
  end
  for _, c in ipairs(commands) do
    out[#out + 1] = ("complete -c perilune -n __fish_use_subcommand -a %s -d '%s'"):format(c.name,
      (c.about:gsub("'", "\\'")))
  end
  for _, c in ipairs(commands) do
    local seen = ("-n '__fish_seen_subcommand_from %s'"):format(c.name)
    for _, o in ipairs(c.options) do
      local long = o[1]:match "^%-%-(.*)$"
      local value = o.value == "files" and " -r -F" or o.value and " -r " .. offer(o.value, o.words) or ""
      out[#out + 1] = ("complete -c perilune %s %s%s"):format(seen, long and "-l " .. long or "-s " .. o[1]:sub(2),
        value)
    end
    local rest = offer(c.argument, c.words)
    if rest then out[#out + 1] = ("complete -c perilune %s %s"):format(seen, rest) end
  end
  return table.concat(out, "\n") .. "\n"
end

return function(shell) return (shells[shell]()) end
