-- Style of all Lua here: Lua 5.4, 120 columns, no new globals.
std = "lua54"
max_line_length = 120
exclude_files = { "build", "build.luarocks" }
-- Methods must keep their signature whether or not they use every argument.
unused_args = false
files["spec"] = { std = "+busted" }
files["spec/fixtures"] = { max_line_length = false } -- written by scripts
files["lua/perilune"] = { ignore = { "212/self" } }
files["lua/perilune/watch/page.lua"] = { max_line_length = false } -- a page in HTML
