/* Attention, row operations and selection at level avx512. */
#include "isa/simd_avx512.h"

#include "generic/vector_kernels.inl"

void el_avx512_vector_kernels(el_kernels *table) { set_vector_kernels(table); }
