/* Attention, row operations and selection at level neon. */
#include "isa/simd_neon.h"

#include "generic/vector_kernels.inl"

void el_neon_vector_kernels(el_kernels *table) { set_vector_kernels(table); }
