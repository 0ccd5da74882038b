/* Matmul of the 32-block types at level neon_dotprod. */
#define EL_DOTPROD 1
#include "neon_matmul.h"

#include "neon_matmul_legacy.inl"
