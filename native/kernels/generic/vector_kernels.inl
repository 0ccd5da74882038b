/* Every kernel that is written on the vector vocabulary. A level's .c file includes its vocabulary, then
 * this file, and calls set_vector_kernels from its override function. */
#include "fp.h"
#include "kernels.h"
#include "kv_store.h"

#include <math.h>
#include <string.h>

#include "generic/vector_base.inl"
#include "generic/vector_math.inl"

#include "generic/kv_formats.inl"

#include "generic/attention.inl"
#include "generic/rows.inl"
#include "generic/select.inl"

static void set_vector_kernels(el_kernels *table) {
    table->attn_segment = attn_segment;
    table->attn_fold = attn_fold;
    table->k_store[EL_KV_F16] = k_store_f16;
    table->k_store[EL_KV_F32] = k_store_f32;
    table->v_store[EL_KV_F16] = v_store_f16;
    table->v_store[EL_KV_F32] = v_store_f32;
    set_kv_stores(table);
    table->rms_norm = rms_norm;
    table->layer_norm = layer_norm;
    table->glu = glu;
    table->act = act;
    table->add = add;
    table->scale = scale;
    table->axpy = axpy;
    table->softcap = softcap;
    table->rope = rope;
    table->top_k = top_k;
    table->lse_segment = lse_segment;
    table->nonfinite = nonfinite;
}
