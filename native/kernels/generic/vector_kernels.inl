/* Every kernel that is written on the vector vocabulary. A level's .c file includes its vocabulary, then
 * this file, and calls set_vector_kernels from its override function. */
#include "generic/attention_kernels.inl"

#include "generic/rows.inl"
#include "generic/select.inl"

static void set_vector_kernels(el_kernels *table) {
    set_attention_kernels(table);
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
