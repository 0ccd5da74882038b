/* Attention and what stores K and V, on the vector vocabulary: all that a level with better integer products needs anew.
 * A level's .c file includes its vocabulary, then this file, and calls set_attention_kernels from its override function. */
#include "fp.h"
#include "kernels.h"
#include "kv_store.h"

#include <math.h>
#include <string.h>

#include "generic/vector_base.inl"
#include "generic/vector_math.inl"

#include "generic/kv_formats.inl"

#include "generic/attention.inl"

static void set_attention_kernels(el_kernels *table) {
    table->attn_segment = attn_segment;
    table->attn_fold = attn_fold;
    table->k_store[EL_KV_F16] = k_store_f16;
    table->k_store[EL_KV_F32] = k_store_f32;
    table->v_store[EL_KV_F16] = v_store_f16;
    table->v_store[EL_KV_F32] = v_store_f32;
    set_kv_stores(table);
}
