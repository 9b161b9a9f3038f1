-- SPDX-License-Identifier: MIT
-- What T.help and the reference know of
-- nn.init and nn.utils: name → {signature, text, example, shapes=}.
local S = {}

S["nn.init.uniform_"] = { "nn.init.uniform_(t, a=0, b=1) → t",
  "Uniform on [a, b). Fills t in place, without recording.", [[
print(nn.init.uniform_(T.zeros(2), 3, 3))  --> {3., 3.}  -- f32[2] cpu]] }

S["nn.init.normal_"] = { "nn.init.normal_(t, mean=0, std=1) → t",
  "Normal with mean and std. Fills t in place, without recording.", [[
print(nn.init.normal_(T.zeros(2), 3, 0))  --> {3., 3.}  -- f32[2] cpu]] }

S["nn.init.trunc_normal_"] = { "nn.init.trunc_normal_(t, mean=0, std=1, a=-2, b=2) → t",
  "Normal, drawn again outside [a, b]. Fills t in place, without recording.", [[
print(nn.init.trunc_normal_(T.zeros(50), 0, 1, -0.5, 0.5):abs():le(0.5):all():item())  --> true]] }

S["nn.init.constant_"] = { "nn.init.constant_(t, value) → t",
  "One value everywhere. Fills t in place, without recording.", [[
print(nn.init.constant_(T.zeros(2), 7))  --> {7., 7.}  -- f32[2] cpu]] }

S["nn.init.zeros_"] = { "nn.init.zeros_(t) → t", "Zeros. Fills t in place, without recording.", [[
print(nn.init.zeros_(T.ones(2)))  --> {0., 0.}  -- f32[2] cpu]] }

S["nn.init.ones_"] = { "nn.init.ones_(t) → t", "Ones. Fills t in place, without recording.", [[
print(nn.init.ones_(T.zeros(2)))  --> {1., 1.}  -- f32[2] cpu]] }

S["nn.init.eye_"] = { "nn.init.eye_(t) → t", "The identity matrix. Fills t in place, without recording.", [[
print(nn.init.eye_(T.zeros(2, 2)))
--> {{1., 0.},
-->  {0., 1.}}  -- f32[2,2] cpu]] }

S["nn.init.xavier_uniform_"] = { "nn.init.xavier_uniform_(t, gain=1) → t",
  "Uniform within ±gain √(6/(fan_in + fan_out)) (Glorot & Bengio 2010). Fills t in place, without recording.", [[
print(nn.init.xavier_uniform_(T.zeros(3, 3)):abs():le(1):all():item())  --> true]] }

S["nn.init.xavier_normal_"] = { "nn.init.xavier_normal_(t, gain=1) → t",
  "Normal with std gain √(2/(fan_in + fan_out)). Fills t in place, without recording.", [[
print(nn.init.xavier_normal_(T.zeros(3, 3)):isfinite():all():item())  --> true]] }

S["nn.init.kaiming_uniform_"] = {
  "nn.init.kaiming_uniform_(t, a=0, mode=\"fan_in\", nonlinearity=\"leaky_relu\") → t",
  "Uniform within ±gain √(3/fan) (He et al. 2015). Fills t in place, without recording.", [[
print(nn.init.kaiming_uniform_(T.zeros(3, 3)):abs():le(1.5):all():item())  --> true]] }

S["nn.init.kaiming_normal_"] = { "nn.init.kaiming_normal_(t, a=0, mode=\"fan_in\", nonlinearity=\"leaky_relu\") → t",
  "Normal with std gain/√fan. Fills t in place, without recording.", [[
print(nn.init.kaiming_normal_(T.zeros(3, 3)):isfinite():all():item())  --> true]] }

S["nn.init.orthogonal_"] = { "nn.init.orthogonal_(t, gain=1) → t",
  "Orthogonal rows or columns (Saxe et al. 2013). Fills t in place, without recording.", [[
local q = nn.init.orthogonal_(T.zeros(2, 2))
print(T.allclose(q:matmul(q:t()), T.eye(2), { atol = 1e-5 }))  --> true]] }

S["nn.init.dirac_"] = { "nn.init.dirac_(t, groups=1) → t",
  "The identity as a convolution: ones in the middle. Fills t in place, without recording.", [[
print(nn.init.dirac_(T.zeros(1, 1, 3)))  --> {{{0., 1., 0.}}}  -- f32[1,1,3] cpu]] }

S["nn.init.sparse_"] = { "nn.init.sparse_(t, sparsity, std=0.01) → t",
  "Normal, with a share sparsity of each column zero. Fills t in place, without recording.", [[
print(nn.init.sparse_(T.zeros(4, 2), 0.5):eq(0):sum(1))  --> {2, 2}  -- i64[2] cpu]] }

S["nn.init.calculate_gain"] = { "nn.init.calculate_gain(nonlinearity, param) → number",
  "The factor by which a nonlinearity shrinks a normal signal.", [[
print(nn.init.calculate_gain("relu"))  --> 1.4142135623731]] }

S["nn.utils.clip_grad_norm_"] = {
  "nn.utils.clip_grad_norm_(params, max_norm, {norm_type=2, error_if_nonfinite=false}) → norm",
  "Scales all gradients so that their joint norm is at most max_norm; returns the norm before.", [[
local p = nn.Parameter(T.tensor { 3, 4 })
local loss = (p * p / 2):sum()
loss:backward()
print(nn.utils.clip_grad_norm_({ p }, 1):item(), p.grad)  --> 5.0	{0.6000, 0.8000}  -- f32[2] cpu]] }

S["nn.utils.clip_grad_value_"] = { "nn.utils.clip_grad_value_(params, value)",
  "Limits every element of the gradients to ±value.", [[
local p = nn.Parameter(T.tensor { 3, -4 })
local loss = (p * p / 2):sum()
loss:backward()
nn.utils.clip_grad_value_({ p }, 2)
print(p.grad)  --> { 2., -2.}  -- f32[2] cpu]] }

S["nn.utils.clip_grads_with_norm_"] = { "nn.utils.clip_grads_with_norm_(params, max_norm, total_norm)",
  "Scales gradients by max_norm / total_norm, at most 1.", [[
local p = nn.Parameter(T.tensor { 3, 4 })
local loss = (p * p / 2):sum()
loss:backward()
nn.utils.clip_grads_with_norm_({ p }, 1, T.tensor(10.0))
print(p.grad)  --> {0.3000, 0.4000}  -- f32[2] cpu]] }

S["nn.utils.get_total_norm"] = { "nn.utils.get_total_norm(tensors, {norm_type=2}) → 0-d tensor",
  "The joint norm of tensors.", [[
print(nn.utils.get_total_norm { T.tensor { 3 }, T.tensor { 4 } })  --> 5.  -- f32[] cpu]] }

S["nn.utils.parameters_to_vector"] = { "nn.utils.parameters_to_vector(params) → vector",
  "All parameters end to end.", [[
print(nn.utils.parameters_to_vector { T.ones(2), T.zeros(1, 1) })  --> {1., 1., 0.}  -- f32[3] cpu]] }

S["nn.utils.vector_to_parameters"] = { "nn.utils.vector_to_parameters(vector, params)",
  "Copies slices of a vector into parameters.", [[
local a, b = T.zeros(2), T.zeros(1)
nn.utils.vector_to_parameters(T.tensor { 1, 2, 3 }, { a, b })
print(a, b)  --> {1., 2.}  -- f32[2] cpu	{3.}  -- f32[1] cpu]] }

S["nn.utils.weight_norm"] = { "nn.utils.weight_norm(module, name=\"weight\", dim=1) → module",
  [[The parameter becomes g v / ‖v‖ with parameters name_g and name_v (Salimans & Kingma 2016); dim=false: one
norm for all.]], [[
local l = nn.utils.weight_norm(nn.Linear(3, 2))
for name in l:named_parameters() do print(name) end
--> bias
--> weight_g
--> weight_v]] }

S["nn.utils.remove_weight_norm"] = { "nn.utils.remove_weight_norm(module, name=\"weight\") → module",
  "Back to a plain parameter of the same values.", [[
local l = nn.utils.remove_weight_norm(nn.utils.weight_norm(nn.Linear(3, 2)))
print(#l:parameters())  --> 2]] }

S["nn.utils.spectral_norm"] = {
  "nn.utils.spectral_norm(module, name=\"weight\", n_power_iterations=1, eps=1e-12, dim?) → module",
  "The parameter becomes name_orig over its largest singular value (Miyato et al. 2018).", [[
local l = nn.utils.spectral_norm(nn.Linear(3, 2), { n_power_iterations = 30 })
l(T.ones(1, 3))
print(T.linalg.svdvals(l.weight:detach()):get(1) < 1.001)  --> true]] }

S["nn.utils.remove_spectral_norm"] = { "nn.utils.remove_spectral_norm(module, name=\"weight\") → module",
  "Back to a plain parameter, divided by its largest singular value.", [[
local l = nn.utils.remove_spectral_norm(nn.utils.spectral_norm(nn.Linear(3, 2)))
print(#l:parameters())  --> 2]] }

S["nn.utils.functional_call"] = { "nn.utils.functional_call(module, {name = tensor, …}, …) → what the module returns",
  "Calls the module with tensors in place of its parameters and buffers; gradients go to those.", [[
local l = nn.Linear(1, 1)
print(nn.utils.functional_call(l, { weight = T.ones(1, 1) * 3, bias = T.zeros(1) }, T.ones(1)))
--> {3.}  -- f32[1] cpu]] }

S["nn.utils.fuse_conv_bn_eval"] = { "nn.utils.fuse_conv_bn_eval(conv, bn, {transpose=false}) → conv",
  "One convolution that computes bn(conv(x)); both in evaluation mode.", [[
local conv, bn = nn.Conv1d(1, 1, 1):eval(), nn.BatchNorm1d(1):eval()
print(nn.utils.fuse_conv_bn_eval(conv, bn):type())  --> Conv1d]] }

S["nn.utils.fuse_linear_bn_eval"] = { "nn.utils.fuse_linear_bn_eval(linear, bn) → linear",
  "One Linear that computes bn(linear(x)); both in evaluation mode.", [[
print(nn.utils.fuse_linear_bn_eval(nn.Linear(2, 1):eval(), nn.BatchNorm1d(1):eval()):type())  --> Linear]] }

S["nn.utils.pad_sequence"] = { [=[nn.utils.pad_sequence({x, …}, {batch_first=false, padding_value=0,
  padding_side="right"}) → [longest, N, *]]=],
  "Sequences [l_i, *] of different lengths in one tensor.", [[
print(nn.utils.pad_sequence({ T.ones(1), T.ones(2) }, { batch_first = true }))
--> {{1., 0.},
-->  {1., 1.}}  -- f32[2,2] cpu]] }

S["nn.utils.unpad_sequence"] = { "nn.utils.unpad_sequence(x, lengths, {batch_first=false}) → list",
  "The sequences again, from their lengths.", [[
print(nn.utils.unpad_sequence(T.ones(2, 2), { 1, 2 })[1])  --> {1.}  -- f32[1] cpu]] }

S["nn.utils.rnn.pad_sequence"] = { [=[nn.utils.rnn.pad_sequence({x, …}, {batch_first=false, padding_value=0,
  padding_side="right"}) → [longest, N, *]]=],
  "Sequences [l_i, *] of different lengths in one tensor; nn.utils.pad_sequence is the same.", [[
print(nn.utils.rnn.pad_sequence({ T.ones(1), T.ones(2) }, { batch_first = true, padding_side = "left" }))
--> {{0., 1.},
-->  {1., 1.}}  -- f32[2,2] cpu]] }

S["nn.utils.rnn.unpad_sequence"] = { "nn.utils.rnn.unpad_sequence(x, lengths, {batch_first=false}) → list",
  "The sequences again, from their lengths; nn.utils.unpad_sequence is the same.", [[
print(nn.utils.rnn.unpad_sequence(T.ones(2, 2), { 1, 2 })[1])  --> {1.}  -- f32[1] cpu]] }

S["nn.utils.rnn.pack_padded_sequence"] = {
  "nn.utils.rnn.pack_padded_sequence(x, lengths, {batch_first=false, enforce_sorted=true}) → packed",
  [[A batch x [S, N, *] of sequences with those lengths, packed for nn.RNN, nn.GRU and nn.LSTM, whose last states are
then each sequence's own. Lengths must fall unless enforce_sorted is false. Fields data [Σ lengths, *], batch_sizes,
sorted_indices, unsorted_indices.]], [[
local x = T.tensor { { 1, 4 }, { 2, 0 }, { 3, 0 } }:unsqueeze(3) -- two sequences, of three steps and of one
local packed = nn.utils.rnn.pack_padded_sequence(x, { 3, 1 })
print(packed.data:flatten(), packed.batch_sizes)  --> {1., 4., 2., 3.}  -- f32[4] cpu	{2, 1, 1}  -- i64[3] cpu
local y, h = nn.GRU(1, 5)(packed)
print(table.concat(y.data:shape(), " "), table.concat(h:shape(), " "))  --> 4 5	1 2 5]] }

S["nn.utils.rnn.pad_packed_sequence"] = {
  "nn.utils.rnn.pad_packed_sequence(packed, {batch_first=false, padding_value=0, total_length=}) → x, lengths",
  "A packed batch padded again, in the order before packing, and the lengths.", [[
local packed = nn.utils.rnn.pack_sequence({ T.ones(1), T.ones(2) * 2 }, { enforce_sorted = false })
local x, lengths = nn.utils.rnn.pad_packed_sequence(packed, { batch_first = true, padding_value = -1 })
print(x, lengths)
--> {{ 1., -1.},
-->  { 2.,  2.}}  -- f32[2,2] cpu	{1, 2}  -- i64[2] cpu]] }

S["nn.utils.rnn.pack_sequence"] = { "nn.utils.rnn.pack_sequence({x, …}, {enforce_sorted=true}) → packed",
  "Packs a list of sequences [l_i, *], the longest first unless enforce_sorted is false.", [[
print(nn.utils.rnn.pack_sequence { T.ones(2), T.ones(1) * 5 }.data)  --> {1., 5., 1.}  -- f32[3] cpu]] }

S["nn.utils.rnn.unpack_sequence"] = { "nn.utils.rnn.unpack_sequence(packed) → list",
  "The sequences of a packed batch, in the order before packing.", [[
print(nn.utils.rnn.unpack_sequence(nn.utils.rnn.pack_sequence { T.ones(2), T.ones(1) * 5 })[2])
--> {5.}  -- f32[1] cpu]] }

S["nn.utils.rnn.invert_permutation"] = { "nn.utils.rnn.invert_permutation(permutation) → tensor",
  "The permutation that undoes one; numbers from 1.", [[
print(nn.utils.rnn.invert_permutation(T.tensor({ 2, 3, 1 }, { dtype = "i64" })))  --> {3, 1, 2}  -- i64[3] cpu]] }

S["nn.utils.rnn.is_packed"] = { "nn.utils.rnn.is_packed(x) → boolean", "Whether x is a packed batch.", [[
print(nn.utils.rnn.is_packed(T.ones(1)))  --> false]] }

return S
