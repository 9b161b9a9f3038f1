-- SPDX-License-Identifier: MIT
-- Ops that run on the CPU for tensors on the device, with copies there and back and one warning.
-- `skip`: rows that cannot be compared between devices, with the reason.
local M = { list = {}, skip = {} }
for name in ([=[
    sum mean prod nansum sum_to amax amin max_all min_all any all count_nonzero logsumexp norm var std prod_bwd
    prod_bwd2 softmax log_softmax layer_norm rms_norm softmax_bwd log_softmax_bwd layer_norm_bwd rms_norm_bwd
    lstm_gates_bwd lstm_gates_bwd2 zeros_of gather gather_wrapping gather_bwd take_along_dim index_select
    index_select_bwd take take_bwd embedding embedding_bwd one_hot index index_bwd index_put masked_fill masked_select
    masked_select_bwd masked_scatter masked_scatter_bwd nonzero scatter scatter_add scatter_reduce index_add
    index_copy index_fill zeros ones full eye linear_fill linspace logspace fill zero uniform normal randint randperm
    bernoulli multinomial dropout dropout_bwd uniform_fill normal_fill exponential_fill randint_fill bernoulli_fill
    sgd_step adam_step rmsprop_step foreach_norm foreach_scale_ foreach_zero_ linalg.inv linalg.solve
    linalg.solve_triangular linalg.det linalg.slogdet linalg.cofactor linalg.cholesky linalg.qr linalg.svd
    linalg.svdvals linalg.eigh linalg.eigvalsh linalg.pinv linalg.lu_factor linalg.eig matrix_exp
]=]):gmatch("%S+") do M.list[name] = true end
return M
