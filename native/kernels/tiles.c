/* The tile formats of kernels.h as a table: sizes of a block of a panel and of a block in the file. */
#include "kernels.h"
#include "qblocks.h"

static const el_tile TILES[] = {
    /* type   block  quants  extras  row bytes              activations */
    {EL_Q8_0, 32, 512, 32, sizeof(el_block_q8_0), EL_ACT_A16},
    {EL_Q4_0, 32, 256, 32, sizeof(el_block_q4_0), EL_ACT_A16},
    {EL_Q4_1, 32, 256, 64, sizeof(el_block_q4_1), EL_ACT_A16},
    {EL_Q5_0, 32, 320, 32, sizeof(el_block_q5_0), EL_ACT_A16},
    {EL_Q5_1, 32, 320, 64, sizeof(el_block_q5_1), EL_ACT_A16},
    {EL_IQ4_NL, 32, 256, 32, sizeof(el_block_q4_0), EL_ACT_A16},
    {EL_MXFP4, 32, 256, 16, sizeof(el_block_mxfp4), EL_ACT_A16},
    {EL_NVFP4, 64, 512, 64, sizeof(el_block_nvfp4), EL_ACT_A16},
    {EL_IQ4_XS, 256, 2048, 160, sizeof(el_block_iq4_xs), EL_ACT_A256},
    {EL_IQ1_S, 256, 1536, 288, sizeof(el_block_iq1_s), EL_ACT_A256},
    {EL_IQ1_M, 256, 1536, 288, sizeof(el_block_iq1_m), EL_ACT_A256},
    {EL_IQ2_XXS, 256, 1536, 288, sizeof(el_block_iq2_xxs), EL_ACT_A256},
    {EL_IQ2_XS, 256, 1536, 288, sizeof(el_block_iq2_xs), EL_ACT_A256},
    {EL_IQ2_S, 256, 1536, 288, sizeof(el_block_iq2_s), EL_ACT_A256},
    {EL_IQ3_XXS, 256, 2048, 160, sizeof(el_block_iq3_xxs), EL_ACT_A256},
    {EL_IQ3_S, 256, 2048, 160, sizeof(el_block_iq3_s), EL_ACT_A256},
    {EL_TQ1_0, 256, 1024, 320, sizeof(el_block_tq1_0), EL_ACT_A256},
    {EL_TQ2_0, 256, 1024, 320, sizeof(el_block_tq2_0), EL_ACT_A256},
    {EL_Q2_K, 256, 1024, 320, sizeof(el_block_q2_k), EL_ACT_A256},
    {EL_Q3_K, 256, 1536, 288, sizeof(el_block_q3_k), EL_ACT_A256},
    {EL_Q4_K, 256, 2048, 320, sizeof(el_block_q4_k), EL_ACT_A256},
    {EL_Q5_K, 256, 2560, 320, sizeof(el_block_q5_k), EL_ACT_A256},
    {EL_Q6_K, 256, 3072, 288, sizeof(el_block_q6_k), EL_ACT_A256},
    {EL_F16, 1, 32, 0, 2, -1},
    {EL_BF16, 1, 32, 0, 2, -1},
    {EL_F32, 1, 64, 0, 4, -1},
};

const el_tile *el_tile_of(int32_t qtype) {
    for (size_t i = 0; i < sizeof TILES / sizeof *TILES; i++) {
        if (TILES[i].qtype == qtype) return &TILES[i];
    }
    return NULL;
}
