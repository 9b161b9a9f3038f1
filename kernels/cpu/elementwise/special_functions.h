/* SPDX-License-Identifier: MIT
 * Special functions of doubles, one number at a time; the elementwise family calls them for every float dtype. */
#ifndef PL_KERNELS_CPU_ELEMENTWISE_SPECIAL_FUNCTIONS_H
#define PL_KERNELS_CPU_ELEMENTWISE_SPECIAL_FUNCTIONS_H

double plk_i0(double x);
double plk_i0e(double x);
double plk_i1(double x);
double plk_i1e(double x);
double plk_erfcx(double x);
double plk_ndtri(double p);
double plk_gammainc(double a, double x);
double plk_gammaincc(double a, double x);

#endif
