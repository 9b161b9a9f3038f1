/* SPDX-License-Identifier: MIT
 * Gradient makers of linear algebra (linalg_grad.c); the descriptors are in linalg.c. */
#ifndef PL_ENGINE_OPS_LINALG_LINALG_H
#define PL_ENGINE_OPS_LINALG_LINALG_H

#include "engine/ops/op.h"

PlStatus pl_grad_inv(PlMaker *g);
PlStatus pl_grad_solve(PlMaker *g);
PlStatus pl_grad_solve_triangular(PlMaker *g);
PlStatus pl_grad_det(PlMaker *g);
PlStatus pl_grad_slogdet(PlMaker *g);
PlStatus pl_grad_cofactor(PlMaker *g);
PlStatus pl_grad_cofactor_bwd(PlMaker *g);
PlStatus pl_grad_cholesky(PlMaker *g);
PlStatus pl_grad_pivoted_cholesky(PlMaker *g);
PlStatus pl_grad_qr(PlMaker *g);
PlStatus pl_grad_svd(PlMaker *g);
PlStatus pl_grad_svdvals(PlMaker *g);
PlStatus pl_grad_eigh(PlMaker *g);
PlStatus pl_grad_eigvalsh(PlMaker *g);
PlStatus pl_grad_pinv(PlMaker *g);
PlStatus pl_grad_matrix_exp(PlMaker *g);
PlStatus pl_grad_lu(PlMaker *g);
PlStatus pl_grad_eig(PlMaker *g);

#endif
