/* The scalar level: plain C that defines the bits every other level must produce. One fill function per file. */
#ifndef EL_SCALAR_H
#define EL_SCALAR_H

#include "kernels.h"

void el_scalar_pack_kernels(el_kernels *table);      /* scalar_pack.c: pack */
void el_scalar_matmul_kernels(el_kernels *table);    /* scalar_matmul.c: mm, quantize */
void el_scalar_attention_kernels(el_kernels *table); /* scalar_attention.c: attn_*, k_store, v_store */
void el_scalar_row_kernels(el_kernels *table);       /* scalar_rows.c: rows, selection */
void el_codebook_kernels(el_kernels *table);         /* codebooks.c: pack and dequant of IQ1 to IQ3 */
void el_dequant_kernels(el_kernels *table);          /* dequant.c: dequant, the same at every level */

#endif
