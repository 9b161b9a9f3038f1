-- SPDX-License-Identifier: MIT
-- The reference as HTML: a page a section, a style sheet, a search over all names that needs no server.
-- → {file name = text}
local T = require "perilune"
local search = require "perilune.help.search"

local STYLE = [[
:root { --ink: #1b1f24; --soft: #57606a; --line: #d8dee4; --back: #ffffff; --code: #f6f8fa; --link: #0a58ca; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9198a1; --line: #30363d; --back: #0d1117; --code: #161b22; --link: #6cb0ff; }
}
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: var(--back); font: 16px/1.5 system-ui, sans-serif; }
a { color: var(--link); text-decoration: none; }
a:hover, a:focus { text-decoration: underline; }
.page { display: grid; grid-template-columns: 17rem minmax(0, 1fr); max-width: 76rem; margin: 0 auto; }
nav { position: sticky; top: 0; align-self: start; height: 100vh; overflow: auto; padding: 1.5rem 1rem;
  border-right: 1px solid var(--line); font-size: .92rem; }
nav ul { list-style: none; margin: .5rem 0; padding: 0; }
nav li { margin: .15rem 0; }
main { padding: 1.5rem 2rem 6rem; }
input { width: 100%; padding: .45rem .6rem; border: 1px solid var(--line); border-radius: .4rem; font: inherit;
  color: inherit; background: var(--code); }
h1 { font-size: 1.7rem; margin: .2rem 0 1rem; }
article { border-top: 1px solid var(--line); padding: 1rem 0 .4rem; scroll-margin-top: 1rem; }
article h2 { font: 600 1rem/1.4 ui-monospace, monospace; margin: 0 0 .4rem; overflow-wrap: anywhere; }
pre, code { font: .88rem/1.45 ui-monospace, monospace; background: var(--code); border-radius: .3rem; }
code { padding: .1rem .3rem; }
pre { padding: .7rem .9rem; overflow-x: auto; }
pre .out { color: var(--soft); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .4rem 0; }
dt { font: .88rem ui-monospace, monospace; }
dd { margin: 0; color: var(--soft); }
.note { color: var(--soft); font-size: .9rem; }
.names { columns: 12rem; list-style: none; padding: 0; font: .88rem/1.7 ui-monospace, monospace; }
@media (max-width: 46rem) { .page { display: block; } nav { position: static; height: auto; border: 0; } }
@media print { nav { display: none; } .page { display: block; } }
]]

local SEARCH = [=[
'use strict';
(function () {
  var box = document.getElementById('search'), list = document.getElementById('found');
  var sections = document.getElementById('sections');
  var WORTH = @WORTH, STOP = @STOP;
  var ENDINGS = @ENDINGS.map(function (r) { return [new RegExp(r[0] + '$'), r[1], r[2]]; });
  var FIELDS = ['name', 'called', 'about', 'rest'], df = new Map();
  // the steps of lua/perilune/help/search.lua
  function stem(word) {
    for (var i = 0; i < ENDINGS.length; i++) {
      var rule = ENDINGS[i];
      if (word.length < rule[2]) continue;
      var base = word.replace(rule[0], rule[1]);
      if (base !== word && base !== '' && !(i === ENDINGS.length - 2 && /ss$/.test(word))) { word = base; break; }
    }
    return word.replace(/([b-df-hj-np-rtv-z])\1$/, '$1').replace(/e$/, '');
  }
  function words_of(text) {
    var all = text.toLowerCase().match(/[a-z0-9_\u0080-\uffff]+/g) || [];
    return all.filter(function (w) { return !STOP[w]; }).map(stem);
  }
  var entries = PERILUNE_INDEX.map(function (e) {
    var entry = { name: e[0], href: e[1], about: e[2], own: e[3], names: e[4].split(' '), where: new Map() };
    FIELDS.forEach(function (kind, k) {
      e[4 + k].split(' ').filter(Boolean).forEach(function (w) {
        entry.where.set(w, kind);
        df.set(w, (df.get(w) || 0) + 1);
      });
    });
    return entry;
  });
  function score(entry, words, joined) {
    var total = 0, found = 0, named = 0;
    words.forEach(function (word) {
      var kind = entry.where.get(word), worth = kind ? WORTH[kind] : 0;
      if (kind === 'name') named++;
      if (worth < WORTH.begins && word.length > 2 && entry.names.some(function (n) { return n.startsWith(word); })) {
        worth = WORTH.begins;
      }
      if (worth > 0) found++;
      total += worth * Math.log(1 + entries.length / (1 + (df.get(word) || 0)));
    });
    if (found === 0) return 0;
    var last = entry.name.split('.').pop().replace(/_/g, '').toLowerCase();
    var bonus = last === joined ? WORTH.whole : last.startsWith(joined) ? WORTH.starts : 0;
    var stale = /\.compat\./.test(entry.name) || /_$/.test(entry.name) && named < words.length
      || /(_step|_bwd)$/.test(entry.name) ? WORTH.stale : 0;
    return total * Math.pow(found / words.length, 2) + bonus
      + WORTH.own * Math.min(named, entry.own) / Math.max(entry.own, 1) - stale;
  }
  function show() {
    var text = box.value.trim(), words = words_of(text.replace(/[.:()_]/g, ' '));
    list.textContent = '';
    sections.hidden = text !== '';
    if (text === '') return;
    var joined = words.length > 1 || !/[.:(]/.test(text) ? text.toLowerCase().replace(/[^a-z0-9]/g, '') : words[0];
    var hits = [];
    entries.forEach(function (entry) {
      var s = words.length ? score(entry, words, joined) : 0;
      if (s > 0) hits.push([s, entry]);
    });
    hits.sort(function (a, b) {
      return b[0] - a[0] || a[1].name.length - b[1].name.length || (a[1].name < b[1].name ? -1 : 1);
    });
    hits.slice(0, 60).forEach(function (hit) {
      var item = document.createElement('li'), link = document.createElement('a'), e = hit[1];
      link.title = e.about;
      link.href = e.href;
      link.textContent = e.name;
      item.appendChild(link);
      list.appendChild(item);
    });
    if (hits.length === 0) list.textContent = 'nothing found';
  }
  box.addEventListener('input', show);
  box.addEventListener('keydown', function (e) {
    var first = list.querySelector('a');
    if (e.key === 'Enter' && first) location.href = first.href;
    if (e.key === 'Escape') { box.value = ''; show(); }
  });
  document.addEventListener('keydown', function (e) {
    if (e.key === '/' && document.activeElement !== box) { e.preventDefault(); box.focus(); }
  });
})();
]=]

-- The script with the words and numbers of lua/perilune/help/search.lua.
local function search_script()
  local stop, endings, worth = {}, {}, {}
  for word in pairs(search.STOP) do stop[#stop + 1] = ('"%s":1'):format(word) end
  for kind, n in pairs(search.WORTH) do worth[#worth + 1] = ("%s:%d"):format(kind, n) end
  for i, rule in ipairs(search.ENDINGS) do endings[i] = ("['%s','%s',%d]"):format(rule[1], rule[2], rule[3]) end
  table.sort(stop)
  table.sort(worth)
  return (SEARCH:gsub("@(%u+)", { STOP = "{" .. table.concat(stop, ",") .. "}", WORTH = "{" .. table.concat(worth, ",")
    .. "}", ENDINGS = "[" .. table.concat(endings, ",") .. "]" }))
end

local function escape(text)
  return (text:gsub("[&<>\"]", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" }))
end

local function anchor(name) return (name:gsub("[^%w_.]", "-")) end

-- Paragraphs at blank lines, `code` in code.
local function prose(text)
  local out = {}
  for part in (text .. "\n\n"):gmatch "(.-)\n\n+" do
    if part:find "%S" then out[#out + 1] = "<p>" .. escape(part):gsub("`([^`]+)`", "<code>%1</code>") .. "</p>" end
  end
  return table.concat(out, "\n")
end

local function example(code)
  local lines = {}
  for line in (code .. "\n"):gmatch "([^\n]*)\n" do
    local before, out = line:match "^(.-)(%-%->.*)$"
    lines[#lines + 1] = out and escape(before) .. '<span class="out">' .. escape(out) .. "</span>" or escape(line)
  end
  return "<pre>" .. table.concat(lines, "\n"):gsub("\n+$", "") .. "</pre>"
end

local function article(out, entry)
  out[#out + 1] = ('<article id="%s">\n<h2>%s</h2>'):format(anchor(entry.name), escape(entry.signature))
  if entry.text then out[#out + 1] = prose(entry.text) end
  if entry.formula then out[#out + 1] = "<pre>" .. escape(entry.formula) .. "</pre>" end
  local rows = {}
  for _, p in ipairs(entry.params) do
    rows[#rows + 1] = ("<dt>%s</dt><dd>%s%s</dd>"):format(escape(p.name), escape((p.type:gsub("|", " | "))),
      p.default and ", default " .. escape(p.default) or p.optional and ", optional" or "")
  end
  for _, line in ipairs(entry.arguments or {}) do
    local name, rest = line:match "^([^:]+): (.*)$"
    rows[#rows + 1] = ("<dt>%s</dt><dd>%s</dd>"):format(escape(name or line), escape(rest or ""))
  end
  if #rows > 0 then out[#out + 1] = "<dl>" .. table.concat(rows, "\n") .. "</dl>" end
  if #entry.notes > 0 then out[#out + 1] = '<p class="note">' .. escape(table.concat(entry.notes, "; ")) .. "</p>" end
  for _, m in ipairs(entry.methods or {}) do
    out[#out + 1] = ("<p><code>%s</code>%s</p>"):format(escape(m.signature), m.text and " " .. escape(m.text) or "")
  end
  if entry.example then out[#out + 1] = example(entry.example) end
  out[#out + 1] = "</article>"
end

local function page(title, sections, body)
  local links = {}
  for _, s in ipairs(sections) do
    links[#links + 1] = ('<li><a href="%s.html">%s</a> <span class="note">%d</span></li>'):format(s.file,
      escape(s.title), #s.entries)
  end
  return table.concat({
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    ("<title>%s — perilune %s</title>"):format(escape(title), T.version),
    '<link rel="stylesheet" href="style.css">\n</head>\n<body>\n<div class="page">\n<nav>',
    '<a href="index.html"><strong>perilune</strong></a> ' .. T.version,
    '<p><input id="search" type="search" placeholder="Search ( / )" aria-label="Search names and what they do"></p>',
    '<ul id="found"></ul>\n<ul id="sections">', table.concat(links, "\n"), "</ul>\n</nav>\n<main>", body,
    '</main>\n</div>\n<script src="names.js"></script>\n<script src="search.js"></script>\n</body>\n</html>', "",
  }, "\n")
end

-- inventory: docs/make/inventory.lua
return function(inventory)
  local list, sections = inventory.all()
  local files = { ["style.css"] = STYLE, ["search.js"] = search_script() }
  local index = {}
  for _, s in ipairs(sections) do
    local file = s.file .. ".html"
    local out = { "<h1>" .. escape(s.title) .. "</h1>" }
    for _, entry in ipairs(s.entries) do
      article(out, entry)
      local about = (entry.text or ""):match "^[^\n]*\n?[^\n]*":gsub("[\\\"%c]", " "):sub(1, 160)
      about = about:sub(1, utf8.len(about) and -1 or select(2, utf8.len(about)) - 1)
      local fields = search.fields(entry)
      index[#index + 1] = ('["%s","%s#%s","%s",%d,"%s","%s","%s","%s"]'):format(entry.name, file, anchor(entry.name),
        about, fields[5], table.unpack(fields, 1, 4))
    end
    files[file] = page(s.title, sections, table.concat(out, "\n"))
  end
  local out = { ("<h1>perilune %s</h1>"):format(T.version),
    prose(("%d names. `local T = require \"perilune\"`; `nn` is `T.nn`, `optim` is `T.optim`. Dimensions and indices "
      .. "count from 1; most functions of a tensor are methods too: `T.exp(x)` is `x:exp()`."):format(#list)) }
  for _, s in ipairs(sections) do
    out[#out + 1] = ("<h2>%s</h2>\n<ul class=\"names\">"):format(escape(s.title))
    for _, entry in ipairs(s.entries) do
      out[#out + 1] = ('<li><a href="%s.html#%s">%s</a></li>'):format(s.file, anchor(entry.name),
        escape((entry.name:gsub("^T%.", ""))))
    end
    out[#out + 1] = "</ul>"
  end
  files["index.html"] = page("Reference", sections, table.concat(out, "\n"))
  files["names.js"] = "var PERILUNE_INDEX = [\n" .. table.concat(index, ",\n") .. "\n];\n"
  return files
end
