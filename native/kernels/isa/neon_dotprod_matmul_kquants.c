/* Matmul of the k-quants and IQ types at level neon_dotprod. */
#define EL_DOTPROD 1
#include "neon_matmul.h"

#include "neon_matmul_kquants.inl"
