-- SPDX-License-Identifier: MIT
--- The page of `perilune watch`, whole: it loads nothing but data from where it came. NONCE is replaced for each request.
-- Text from logs becomes text nodes and never markup.
-- @module perilune.watch.page
return [==[<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>perilune watch</title>
<meta name="viewport" content="width=device-width,initial-scale=1"><link rel="icon" href="data:,">
<style nonce="NONCE">
:root{--bg:#f6f7f9;--card:#fff;--ink:#1c2128;--dim:#66707c;--line:#d9dee4;--accent:#3056d3;--bad:#b42318}
@media(prefers-color-scheme:dark){:root{--bg:#14171c;--card:#1d2127;--ink:#e6e9ee;--dim:#97a1ad;--line:#333a43;
--accent:#8ba6ff;--bad:#ff8577}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:14px/1.45 system-ui,sans-serif}
header{display:flex;flex-wrap:wrap;gap:6px 20px;align-items:center;padding:10px 16px;border-bottom:1px solid var(--line);
background:var(--card);position:sticky;top:0;z-index:2}
h1{font-size:16px;margin:0}h2{font-size:14px;margin:0 0 4px;overflow-wrap:anywhere}
#folder{color:var(--dim);overflow-wrap:anywhere}#say{color:var(--dim);margin-left:auto}#say.bad{color:var(--bad)}
label{display:inline-flex;gap:6px;align-items:center;cursor:pointer}
main{display:grid;grid-template-columns:minmax(230px,300px) 1fr;gap:14px;padding:14px 16px}
@media(max-width:800px){main{grid-template-columns:1fr}}
#charts,#pictures{display:grid;grid-template-columns:repeat(auto-fill,minmax(330px,1fr));gap:14px;align-content:start}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 12px;min-width:0}
#runs{display:grid;gap:10px;align-content:start}
.run .name{font-weight:600;overflow-wrap:anywhere}.run .swatch{width:12px;height:12px;border-radius:3px;flex:none}
.dim{color:var(--dim)}.bad{color:var(--bad)}.figures{display:grid;grid-template-columns:auto 1fr;gap:0 10px;margin:4px 0}
.figures span:nth-child(even){text-align:right;font-variant-numeric:tabular-nums}
progress{width:100%;height:6px;accent-color:var(--accent)}
button{font:inherit;color:inherit;background:transparent;border:1px solid var(--line);border-radius:6px;padding:2px 10px;
cursor:pointer;margin-right:6px}button:hover{border-color:var(--accent)}button:disabled{opacity:.45;cursor:default}
canvas{width:100%;height:210px;display:block;touch-action:none}
.read{min-height:1.5em;color:var(--dim);font-size:12px;white-space:pre-wrap;overflow-wrap:anywhere}
figure{margin:0}figure img{max-width:100%;min-width:96px;image-rendering:pixelated;background:#8883;display:block}
figcaption{font-size:12px;color:var(--dim);overflow-wrap:anywhere}input[type=range]{accent-color:var(--accent)}
#none{padding:30px;color:var(--dim)}
</style></head><body>
<header><h1>perilune watch</h1><span id="folder"></span>
<label>smoothing <input type="range" id="smooth" min="0" max="0.99" step="0.01" value="0"><output id="smoothed">0</output></label>
<label><input type="checkbox" id="log"> log y</label>
<label><input type="checkbox" id="last"> last half</label>
<span id="say" role="status"></span></header>
<main><div id="runs"></div><div><div id="none" hidden>no logs here yet: T.fit with T.log.jsonl("run.jsonl", {every = 10})
among its callbacks writes one</div><div id="charts"></div><h2 id="ptitle" hidden>pictures</h2><div id="pictures"></div></div></main>
<script nonce="NONCE">
"use strict";
const $ = id => document.getElementById(id);
let token = location.hash.slice(1);
try { if (token) sessionStorage.setItem("token", token); else token = sessionStorage.getItem("token") || ""; } catch (e) {}
const COLORS = ["#4c78ff", "#e4572e", "#2a9d4a", "#b04fd0", "#d39b00", "#12a3b4", "#d6457f", "#7a6a58", "#6d7bd8", "#8aa80f"];
const runs = new Map(), charts = new Map(), pictures = new Map();
let waiting = 0;

function make(tag, parent, text, name) {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (name) e.className = name;
  if (parent) parent.append(e);
  return e;
}
function say(text, bad) { $("say").textContent = text; $("say").className = bad ? "bad" : ""; }

// ---- numbers in words
function brief(v, name) {
  if (v === undefined || v === null) return "";
  if (/memory|bytes/.test(name)) {
    let k = 0;
    while (Math.abs(v) >= 1024 && k < 4) { v /= 1024; k++; }
    return +v.toPrecision(4) + " " + ["B", "KiB", "MiB", "GiB", "TiB"][k];
  }
  const a = Math.abs(v);
  if (a >= 1e6 || (a > 0 && a < 1e-3)) return v.toExponential(2).replace("e+", "e");
  return String(+v.toPrecision(a >= 1000 ? 6 : 4));
}
function span(seconds) {
  if (!(seconds >= 0)) return "";
  const s = Math.round(seconds), h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60;
  return h ? h + " h " + m + " min" : m ? m + " min " + s % 60 + " s" : s + " s";
}

// ---- asking
async function ask(path, body) {
  const head = { "X-Perilune-Token": token };
  if (body) head["Content-Type"] = "application/json";
  const answer = await fetch(path, { method: body ? "POST" : "GET", headers: head, body: body && JSON.stringify(body) });
  if (!answer.ok) {
    let why = answer.statusText;
    try { why = (await answer.json()).error.message; } catch (e) {}
    throw Object.assign(new Error(why), { status: answer.status });
  }
  return answer;
}
async function poll() {
  const have = {};
  for (const r of runs.values()) for (const s of r.series.values()) have[r.id + "." + s.id] = [s.generation, s.x.length, s.total];
  let pause = 1000;
  try {
    const news = await (await ask("/data", { have })).json();
    take(news);
    say(news.more ? "reading logs …" : "");
    pause = news.more ? 10 : document.hidden ? 5000 : 1000;
  } catch (e) {
    say(e.status === 403 ? e.message : "no answer from perilune watch", true);
    pause = 3000;
  }
  setTimeout(poll, pause);
}
function take(news) {
  $("folder").textContent = news.folder;
  const seen = new Set();
  for (const n of news.runs) {
    seen.add(n.id);
    let r = runs.get(n.id);
    if (!r) runs.set(n.id, r = { id: n.id, on: true, color: COLORS[(n.id - 1) % COLORS.length], series: new Map() });
    r.about = n.about;
    const there = new Set();
    for (const s of n.about.series) {
      there.add(s.id);
      const old = r.series.get(s.id);
      if (old && old.name === s.name && old.along === s.along) Object.assign(old, s);
      else r.series.set(s.id, Object.assign({ x: [], y: [], low: null, high: null, generation: -1, total: -1 }, s));
    }
    for (const id of r.series.keys()) if (!there.has(id)) r.series.delete(id);
    for (const p of n.points) {
      const s = r.series.get(p.id);
      if (!s) continue;
      const put = (a, b) => { a.length = Math.min(a.length, p.from - 1); for (const v of b) a.push(v); return a; };
      put(s.x, p.x); put(s.y, p.y);
      s.low = p.low ? put(s.low || [], p.low) : null;
      s.high = p.high ? put(s.high || [], p.high) : null;
      s.generation = p.generation; s.total = p.total;
    }
  }
  for (const [id, r] of runs) if (!seen.has(id)) { runs.delete(id); if (r.card) r.card.remove(); }
  $("none").hidden = runs.size > 0 || news.more;
  for (const r of runs.values()) showRun(r);
  showCharts();
  showPictures(news);
}

// ---- runs
function showRun(r) {
  const a = r.about, st = a.state;
  if (!r.card) {
    r.card = make("section", $("runs"), undefined, "card run");
    const l = make("label", r.card), box = make("input", l);
    box.type = "checkbox"; box.checked = true;
    box.onchange = () => { r.on = box.checked; showCharts(); };
    make("span", l, "", "swatch").style.background = r.color;
    make("span", l, a.name, "name");
    r.state = make("div", r.card); r.bar = make("progress", r.card); r.figures = make("div", r.card, undefined, "figures");
    r.buttons = make("div", r.card);
    for (const word of ["pause", "resume", "stop"]) {
      const b = make("button", r.buttons, word);
      b.dataset.word = word;
      b.onclick = async () => {
        if (word === "stop" && !confirm("Stop " + a.name + " after this step?")) return;
        b.disabled = true;
        try { await ask("/control", { run: r.id, action: word }); r.asked = word; showRun(r); }
        catch (e) { say(e.message, true); b.disabled = false; }
      };
    }
  }
  if (r.asked && (st.state === { pause: "paused", resume: "running", stop: "ended" }[r.asked])) r.asked = null;
  const late = st.state === "running" && st.silent > 15 ? ", silent for " + span(st.silent) : "";
  r.state.textContent = st.state + late + (r.asked ? " · asked to " + r.asked : "") + (a.fault ? " · " + a.fault : "");
  r.state.className = a.fault || st.state === "killed" || late ? "bad" : "dim";
  const goes = st.step !== undefined && st.state !== "killed";
  r.bar.hidden = !goes;
  let part = st.steps ? st.step / st.steps : 0;
  if (st.epochs && !st.steps) part = (st.epoch - 1 + (st.batches ? st.batch / st.batches : 0)) / st.epochs;
  r.bar.value = Math.max(0, Math.min(1, part));
  r.figures.replaceChildren();
  const figure = (k, v) => { if (v !== "" && v !== undefined) { make("span", r.figures, k, "dim"); make("span", r.figures, v); } };
  if (goes) {
    figure("step", st.step + (st.steps ? " / " + st.steps : ""));
    figure("epoch", st.epoch + (st.epochs ? " / " + st.epochs : ""));
    const took = st.time - st.started;
    figure("for", span(took));
    if (part > 0.01 && st.state === "running") figure("left, about", span(took / part * (1 - part)));
  }
  for (const s of r.series.values()) figure(s.name + (s.broken ? " (" + s.broken + " not finite)" : ""), brief(s.last, s.name));
  if (goes && !st.controls) figure("one of several processes:", "it cannot be paused or stopped from here, as the others would wait for it");
  r.buttons.hidden = !(goes && st.controls);
  for (const b of r.buttons.children) {
    const w = b.dataset.word;
    b.hidden = (w === "pause" && st.state !== "running") || (w === "resume" && st.state !== "paused");
    b.disabled = !!r.asked || st.state === "stopping";
  }
}

// ---- charts
const base = name => name.replace(/^(valid|val|epoch|train)[_/](?=.)/, "").replace(/[/](valid|val|train)$/, "");
const first = ["loss", "accuracy", "perplexity"], last = ["lr", "grad_norm", "samples_per_second", "memory", "seconds"];
function rank(name) {
  const i = first.indexOf(name), k = last.indexOf(name);
  return i >= 0 ? i : k >= 0 ? 100 + k : 50;
}
function showCharts() {
  const groups = new Map();
  for (const r of runs.values()) for (const s of r.series.values()) {
    const key = base(s.name) + "\n" + s.along;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push({ r, s });
  }
  for (const [key, c] of charts) if (!groups.has(key)) { c.card.remove(); charts.delete(key); }
  for (const [key, lines] of groups) {
    let c = charts.get(key);
    if (!c) charts.set(key, c = newChart(key));
    c.lines = lines.filter(l => l.r.on);
  }
  const order = [...charts.values()].sort((a, b) => rank(a.name) - rank(b.name) || (a.key < b.key ? -1 : 1));
  for (const c of order) c.title.textContent = c.name + (order.some(d => d !== c && d.name === c.name) ? " by " + c.along : "");
  order.forEach((c, i) => { if ($("charts").children[i] !== c.card) $("charts").insertBefore(c.card, $("charts").children[i] || null); });
  drawAll();
}
function newChart(key) {
  const [name, along] = key.split("\n"), c = { key, name, along, lines: [] };
  c.card = make("section", null, undefined, "card chart");
  c.card.dataset.name = name;
  c.title = make("h2", c.card, name);
  c.canvas = make("canvas", c.card); c.read = make("div", c.card, "", "read");
  c.canvas.setAttribute("role", "img"); c.canvas.setAttribute("aria-label", name + " over " + along);
  c.canvas.onpointermove = e => { c.at = e.offsetX; draw(c); };
  c.canvas.onpointerleave = () => { c.at = undefined; draw(c); };
  return c;
}
function drawAll() {
  if (waiting) return;
  waiting = requestAnimationFrame(() => { waiting = 0; for (const c of charts.values()) draw(c); });
}
function smoothed(y, f) { // exponential mean without the pull of its beginning (Kingma and Ba 2015)
  if (!f) return y;
  let m = 0, w = 1;
  return y.map(v => { m = f * m + (1 - f) * v; w *= f; return m / (1 - w); });
}
function ticks(lo, hi, n) {
  const raw = (hi - lo) / n, p = 10 ** Math.floor(Math.log10(raw)), k = [1, 2, 5, 10].find(m => m * p >= raw) * p, out = [];
  for (let v = Math.ceil(lo / k) * k; v <= hi + k * 1e-9 && out.length < 50; v += k) out.push(Math.abs(v) < k * 1e-9 ? 0 : v);
  return out;
}
function draw(c) {
  const cv = c.canvas, W = cv.clientWidth, H = cv.clientHeight, ratio = window.devicePixelRatio || 1;
  if (!W) return;
  if (cv.width !== Math.round(W * ratio)) { cv.width = Math.round(W * ratio); cv.height = Math.round(H * ratio); }
  const g = cv.getContext("2d"), css = getComputedStyle(document.documentElement), ink = css.getPropertyValue("--dim");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, W, H);
  g.font = "11px system-ui,sans-serif";
  const f = +$("smooth").value, log = $("log").checked, half = $("last").checked;
  let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
  for (const l of c.lines) for (const x of [l.s.x[0], l.s.x[l.s.x.length - 1]]) if (x !== undefined) {
    x0 = Math.min(x0, x); x1 = Math.max(x1, x);
  }
  if (half) x0 = (x0 + x1) / 2;
  const lines = c.lines.filter(l => l.s.x.length).map(l => ({ ...l, m: smoothed(l.s.y, f) }));
  for (const l of lines) l.s.x.forEach((x, i) => {
    if (x < x0) return;
    for (const v of [l.m[i], f ? l.m[i] : (l.s.low || l.s.y)[i], f ? l.m[i] : (l.s.high || l.s.y)[i]])
      if (!log || v > 0) { y0 = Math.min(y0, v); y1 = Math.max(y1, v); }
  });
  if (!(y1 >= y0)) { g.fillStyle = ink; g.fillText(lines.length ? "nothing above 0" : "no numbers", 50, H / 2); c.read.textContent = ""; return; }
  if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
  const to = v => log ? Math.log10(v) : v;
  let a = to(y0), b = to(y1);
  const room = b > a ? (b - a) * 0.06 : Math.abs(a) * 0.1 || 0.5;
  a -= room; b += room;
  const L = 52, R = 10, T = 8, B = 22;
  const px = x => L + (x - x0) / (x1 - x0) * (W - L - R), py = v => H - B - (to(v) - a) / (b - a) * (H - T - B);
  g.strokeStyle = css.getPropertyValue("--line"); g.fillStyle = ink; g.lineWidth = 1;
  g.textAlign = "right"; g.textBaseline = "middle";
  let ys = log ? ticks(Math.ceil(a), Math.floor(b), 5).filter(Number.isInteger).map(e => 10 ** e) : ticks(a, b, 5);
  if (log && ys.length < 2) ys = ticks(10 ** a, 10 ** b, 5).filter(v => v > 0);
  for (const v of ys) {
    const y = Math.round(py(v)) + 0.5;
    g.beginPath(); g.moveTo(L, y); g.lineTo(W - R, y); g.stroke();
    g.fillText(brief(v, c.name), L - 6, y);
  }
  g.textAlign = "center"; g.textBaseline = "top";
  for (const v of ticks(x0, x1, Math.max(2, Math.floor(W / 60)))) if (c.along !== "epoch" || Number.isInteger(v))
    g.fillText(brief(v, c.along), px(v), H - B + 6);
  g.save(); g.beginPath(); g.rect(L, 0, W - L, H - B + 1); g.clip();
  g.lineJoin = "round";
  const path = (l, y, width, alpha) => {
    g.globalAlpha = alpha; g.lineWidth = width; g.beginPath();
    let pen = false;
    l.s.x.forEach((x, i) => {
      if (log && !(y[i] > 0)) { pen = false; return; }
      pen ? g.lineTo(px(x), py(y[i])) : g.moveTo(px(x), py(y[i])); pen = true;
    });
    g.stroke();
    if (l.s.x.length < 60) for (let i = 0; i < l.s.x.length; i++) if (!log || y[i] > 0) {
      g.beginPath(); g.arc(px(l.s.x[i]), py(y[i]), width + 0.6, 0, 7); g.fill();
    }
  };
  for (const l of lines) {
    g.strokeStyle = g.fillStyle = l.r.color;
    g.setLineDash(/^(valid|val)[_/]|[/](valid|val)$/.test(l.s.name) ? [5, 3] : []);
    if (l.s.low && !f) {
      g.globalAlpha = 0.16; g.beginPath();
      l.s.x.forEach((x, i) => g.lineTo(px(x), py(Math.max(l.s.low[i], log ? y0 : -Infinity))));
      for (let i = l.s.x.length - 1; i >= 0; i--) g.lineTo(px(l.s.x[i]), py(Math.max(l.s.high[i], log ? y0 : -Infinity)));
      g.fill();
    }
    if (f) path(l, l.s.y, 1, 0.25);
    path(l, l.m, 1.6, 1);
  }
  g.restore(); g.globalAlpha = 1; g.setLineDash([]);
  if (c.at === undefined) {
    c.read.textContent = lines.map(l => (runs.size > 1 ? l.r.about.name + " " : "") + l.s.name + " " + brief(l.s.last, c.name)).join("   ");
    return;
  }
  const x = x0 + (c.at - L) / (W - L - R) * (x1 - x0), words = [];
  g.strokeStyle = ink; g.beginPath(); g.moveTo(c.at, T); g.lineTo(c.at, H - B); g.stroke();
  for (const l of lines) {
    let i = 0, k = l.s.x.length - 1;
    while (i < k) { const m = (i + k) >> 1; if (l.s.x[m] < x) i = m + 1; else k = m; }
    if (i > 0 && x - l.s.x[i - 1] < l.s.x[i] - x) i--;
    words.push((runs.size > 1 ? l.r.about.name + " " : "") + l.s.name + " " + brief(l.m[i], c.name) + " at " + l.s.x[i]);
    g.fillStyle = l.r.color;
    if (!log || l.m[i] > 0) { g.beginPath(); g.arc(px(l.s.x[i]), py(l.m[i]), 3.5, 0, 7); g.fill(); }
  }
  c.read.textContent = words.join("\n");
}

// ---- pictures
async function load(p, run, id) {
  if (p.id === id) return;
  p.id = id;
  try {
    const blob = await (await ask("/picture?run=" + run + "&id=" + id)).blob();
    if (p.id !== id) return;
    if (p.url) URL.revokeObjectURL(p.url);
    p.image.src = p.url = URL.createObjectURL(blob);
  } catch (e) { p.caption.textContent = e.message; }
}
function newPicture(key) {
  const p = { box: make("figure", $("pictures"), undefined, "card") };
  p.image = make("img", p.box); p.caption = make("figcaption", p.box);
  pictures.set(key, p);
  return p;
}
function showPictures(news) {
  const seen = new Set();
  for (const r of runs.values()) if (r.on) for (const t of r.about.pictures) {
    const key = r.id + "\n" + t.tag, p = pictures.get(key) || newPicture(key), n = t.shots.length;
    seen.add(key);
    if (!p.slider) {
      p.slider = make("input", p.box); p.slider.type = "range"; p.slider.min = 0; p.slider.max = n - 1; p.slider.value = n - 1;
      p.slider.setAttribute("aria-label", "step of " + t.tag);
      p.slider.oninput = () => p.show();
    }
    const newest = +p.slider.value === +p.slider.max;
    p.slider.max = n - 1;
    if (newest) p.slider.value = n - 1;
    p.slider.hidden = n < 2;
    p.show = () => {
      const s = t.shots[+p.slider.value];
      p.caption.textContent = r.about.name + ": " + t.tag + ", step " + s.step;
      p.image.alt = p.caption.textContent;
      load(p, r.id, s.id);
    };
    p.show();
  }
  for (const f of news.pictures) {
    const key = "file\n" + f.name, p = pictures.get(key) || newPicture(key);
    seen.add(key);
    p.caption.textContent = p.image.alt = f.name;
    load(p, 0, f.id);
  }
  for (const [key, p] of pictures) if (!seen.has(key)) { p.box.remove(); if (p.url) URL.revokeObjectURL(p.url); pictures.delete(key); }
  $("ptitle").hidden = seen.size === 0;
}

$("smooth").oninput = () => { $("smoothed").textContent = $("smooth").value; drawAll(); };
$("log").onchange = $("last").onchange = drawAll;
window.addEventListener("resize", drawAll);
window.addEventListener("hashchange", () => location.reload());
if (!token) say("open the address that perilune watch printed: the part behind # is missing", true);
poll();
</script></body></html>
]==]
