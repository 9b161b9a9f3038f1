-- SPDX-License-Identifier: MIT
-- Ops that run on the CPU for tensors on the device, with copies there and back and one warning.
-- `skip`: rows that cannot be compared between devices, with the reason.
local M = { list = {}, skip = {} }
for name in ([=[
    polygamma sum mean prod nansum sum_to amax amin max_all min_all any all count_nonzero logsumexp norm var std
    argmax argmin max_dim min_dim median mode kthvalue topk sort argsort cumsum cumprod cummax cummin logcumsumexp
    prod_bwd prod_bwd2 cumsum_rev cumprod_bwd cumprod_bwd2 logcumsumexp_bwd dim_put dim_pick softmax log_softmax
    layer_norm rms_norm group_norm batch_norm running_update softmax_bwd log_softmax_bwd layer_norm_bwd rms_norm_bwd
    group_norm_bwd batch_norm_bwd cross_entropy cross_entropy_prob nll_loss mse_loss l1_loss smooth_l1_loss huber_loss
    binary_cross_entropy binary_cross_entropy_with_logits kl_div cross_entropy_bwd cross_entropy_bwd2 nll_loss_bwd
    lstm_gates_bwd lstm_gates_bwd2
    ctc_nll ctc_loss_bwd max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_max_pool1d
    adaptive_max_pool2d adaptive_max_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d max_pool_bwd
    avg_pool_bwd adaptive_max_pool_bwd adaptive_avg_pool_bwd slice_bwd unfold_bwd diagonal_bwd as_strided_bwd
    strided_put zeros_of tril triu diag diag_embed trace flip roll cat stack tile tile_bwd repeat_interleave
    repeat_interleave_bwd repeat_each repeat_each_bwd pad pad_bwd gather gather_wrapping gather_bwd take_along_dim
    index_select index_select_bwd take take_bwd embedding embedding_bwd one_hot index index_bwd index_put masked_fill
    masked_select masked_select_bwd masked_scatter masked_scatter_bwd nonzero scatter scatter_add scatter_reduce
    index_add index_copy index_fill searchsorted bucketize bincount isin unique zeros ones full eye linear_fill
    linspace logspace fill zero uniform normal randint randperm bernoulli multinomial dropout dropout_bwd uniform_fill
    normal_fill exponential_fill randint_fill bernoulli_fill sgd_step adam_step rmsprop_step foreach_norm
    foreach_scale_ foreach_zero_ linalg.inv linalg.solve linalg.solve_triangular linalg.det linalg.slogdet
    linalg.cofactor linalg.cholesky linalg.qr linalg.svd linalg.svdvals linalg.eigh linalg.eigvalsh linalg.pinv
    linalg.lu_factor linalg.eig matrix_exp
]=]):gmatch("%S+") do M.list[name] = true end
return M
