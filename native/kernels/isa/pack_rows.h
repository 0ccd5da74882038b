/* A cursor over the same block of 16 rows of the file: what packing starts from at every level. */
#ifndef EL_PACK_ROWS_H
#define EL_PACK_ROWS_H

#include "loops.h"

#include "../kernels.h"

#include <string.h>

/* Missing rows stay on a block of zeros. */
typedef struct el_pack_rows {
    const uint8_t *p[EL_TILE_ROWS];
    size_t step[EL_TILE_ROWS];
} el_pack_rows;

static const uint8_t el_zero_block[256] = {0}; /* at least the largest row_bytes, and 64 for F16 and F32 */

static inline void el_pack_begin(el_pack_rows *r, const void *rows, size_t row_stride, int32_t n_rows,
                                 size_t row_bytes) {
    for (int32_t i = 0; i < EL_TILE_ROWS; i++) {
        r->p[i] = i < n_rows ? (const uint8_t *)rows + (size_t)i * row_stride : el_zero_block;
        r->step[i] = i < n_rows ? row_bytes : 0;
    }
}

EL_INLINE void el_pack_next(el_pack_rows *r) {
    for (int32_t i = 0; i < EL_TILE_ROWS; i++) r->p[i] += r->step[i];
}

/* Clear what follows the `used` bytes of a panel up to its end, a multiple of 64. */
EL_INLINE void el_pack_end(void *panel, size_t used) { memset((char *)panel + used, 0, (0 - used) & 63); }

#endif
