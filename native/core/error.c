/* Error messages, and the names that appear in them. */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>

int32_t el_fail(el_error *err, int32_t code, const char *format, ...) {
    if (err) {
        va_list args;
        va_start(args, format);
        vsnprintf(err->message, sizeof err->message, format, args);
        va_end(args);
        err->code = code;
    }
    return code;
}

const char *el_op_name(int32_t code) {
    static const char *const names[] = {
        "?",     "EMBED",         "NORM",         "QUANTIZE", "LINEAR",      "GATED",    "GLU",
        "ACT",   "ADD",           "SCALE",        "SOFTCAP",  "ROPE",        "KV_WRITE", "ATTENTION",
        "ROUTE", "EXPERT_LINEAR", "EXPERT_GATED", "COMBINE",  "SELECT_ROWS",
    };
    return code >= EL_OP_EMBED && code <= EL_OP_SELECT_ROWS ? names[code] : "?";
}

const char *el_qtype_name(int32_t qtype) {
    switch (qtype) {
    case EL_F32: return "F32";
    case EL_F16: return "F16";
    case EL_Q4_0: return "Q4_0";
    case EL_Q4_1: return "Q4_1";
    case EL_Q5_0: return "Q5_0";
    case EL_Q5_1: return "Q5_1";
    case EL_Q8_0: return "Q8_0";
    case EL_Q2_K: return "Q2_K";
    case EL_Q3_K: return "Q3_K";
    case EL_IQ1_S: return "IQ1_S";
    case EL_IQ1_M: return "IQ1_M";
    case EL_IQ2_XXS: return "IQ2_XXS";
    case EL_IQ2_XS: return "IQ2_XS";
    case EL_IQ2_S: return "IQ2_S";
    case EL_IQ3_XXS: return "IQ3_XXS";
    case EL_IQ3_S: return "IQ3_S";
    case EL_IQ4_NL: return "IQ4_NL";
    case EL_IQ4_XS: return "IQ4_XS";
    case EL_TQ1_0: return "TQ1_0";
    case EL_TQ2_0: return "TQ2_0";
    case EL_MXFP4: return "MXFP4";
    case EL_NVFP4: return "NVFP4";
    case EL_Q4_K: return "Q4_K";
    case EL_Q5_K: return "Q5_K";
    case EL_Q6_K: return "Q6_K";
    case EL_BF16: return "BF16";
    default: return "?";
    }
}
