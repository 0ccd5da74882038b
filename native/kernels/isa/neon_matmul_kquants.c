/* Matmul of the k-quants and IQ types at level neon. */
#include "neon_matmul.h"

#include "neon_matmul_kquants.inl"
