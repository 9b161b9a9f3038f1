-- SPDX-License-Identifier: MIT
-- Writes down what is heard: tones of a synthesizer become log-mel features, as Whisper reads them, and a small Whisper
-- learns to name the notes.
--   perilune run examples/whisper_tones.lua -- [--steps 400] [--seed 1] [--quick]
-- Ends with "ok" when 90 % of the notes of melodies it has not heard are right (--quick, melodies of two notes, half as
-- many samples a second: 80 %).
local T = require "perilune"
local optim = T.optim

local options = T.cli {
  about = "Learns to write down melodies.",
  { "steps", type = "integer", min = 10, help = "training steps (400; 160 with --quick)" },
  { "seed", 1, "of all random numbers" },
  { "quick", false, "shorter melodies, a lower goal" },
}
local steps = options.steps or (options.quick and 160 or 400)
local NOTES = options.quick and 2 or 4 -- of a melody
T.manual_seed(options.seed)

-- ---- sound ---------------------------------------------------------------------------------------------
local RATE, SECONDS = options.quick and 8000 or 16000, 1
local HOP = RATE // 50
local names = { "C", "D", "E", "F", "G", "A", "B", "c" }
local halves = { 0, 2, 4, 5, 7, 9, 11, 12 } -- above C
local PAD, START, END, FIRST = 0, 1, 2, 3

-- Melodies: which notes [n, NOTES] from 0, and their waves [n, samples]. Each tone has three overtones, a pitch that is
-- a little off, and fades; noise is below all.
local function melodies(n)
  local notes = T.randint(0, #names - 1, { n, NOTES })
  local up = T.tensor(halves):float():index_select(1, (notes + 1):flatten()):view(n, NOTES, 1)
  local hz = ((up + 0.2 * T.randn(n, NOTES, 1)) / 12):exp2() * 261.63
  local samples = RATE * SECONDS // NOTES
  local t = (T.arange(0, samples - 1):float() / RATE):view(1, 1, samples)
  local wave = T.zeros(n, NOTES, samples)
  for k = 1, 4 do
    local phase = T.rand(n, NOTES, 1) * (2 * math.pi)
    wave = wave + (t * hz * (2 * math.pi * k) + phase):sin() * (0.6 ^ k * (0.5 + T.rand(n, NOTES, 1)))
  end
  wave = wave * (t * -3):exp()
  return notes, wave:view(n, -1) + 0.02 * T.randn(n, NOTES * samples)
end

local BINS = 40
local function heard(n)
  local notes, wave = melodies(n)
  -- frames of 64 ms: neighbouring notes are 15 Hz apart
  return notes, T.models.log_mel(wave, { bins = BINS, seconds = SECONDS, rate = RATE, n_fft = RATE * 64 // 1000,
    hop = HOP })
end

-- ---- model ---------------------------------------------------------------------------------------------
local net = T.models.Whisper { vocab_size = FIRST + #names, num_mel_bins = BINS, d_model = 64, encoder_layers = 1,
  decoder_layers = 1, encoder_attention_heads = 4, decoder_attention_heads = 4, encoder_ffn_dim = 128,
  decoder_ffn_dim = 128, max_source_positions = RATE * SECONDS // (2 * HOP), max_target_positions = 8, dropout = 0,
  decoder_start_token_id = START, pad_token_id = PAD, bos_token_id = START, eos_token_id = END }
print(("%d parameters; features [%d, %d] a second"):format(net:num_parameters(), BINS, RATE // HOP))

local opt = optim.AdamW(net:train():parameters(), { lr = 2e-3 })
local schedule = optim.lr_scheduler.OneCycleLR(opt, { max_lr = 2e-3, total_steps = steps })
for step = 1, steps do
  local notes, features = heard(32)
  local labels = T.cat({ notes + FIRST, T.full({ 32, 1 }, END, { dtype = "i64" }) }, 2)
  local _, out = net(features, { labels = labels })
  opt:zero_grad()
  out.loss:backward()
  opt:step()
  schedule:step()
  if step % (steps // 5) == 0 then print(("step %4d: loss %.3f"):format(step, out.loss:item())) end
end

-- ---- transcription: a note after the other -----------------------------------------------------------------
net:eval()
local right, all, shown = 0, 0, 3
for _ = 1, 40 do
  local notes, features = heard(1)
  local written = net:generate(nil, { inputs = features, max_new_tokens = NOTES + 1, stop = END })
  local given, text, truth = written:totable(), {}, {}
  for i, v in ipairs(notes[1]:totable()) do
    truth[i] = names[v + 1]
    text[i] = given[i] and names[given[i] - FIRST + 1] or "-"
    if text[i] == truth[i] then right = right + 1 end
    all = all + 1
  end
  if shown > 0 then
    print(("played %s, written %s"):format(table.concat(truth, " "), table.concat(text, " ")))
    shown = shown - 1
  end
end
print(("%.1f %% of %d notes are right"):format(100 * right / all, all))
assert(right / all >= (options.quick and 0.8 or 0.9), "the goal was missed")
print("ok")
