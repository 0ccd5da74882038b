/* Choosing experts from router logits: docs/numerics.md. */
#include "engine.h"
#include "fp.h"

enum { SOFTMAX, SIGMOID, SOFTMAX_TOPK };

/* x becomes exp(x - max) / fold16 of them. */
static void softmax(float *x, int32_t n) {
    float max = x[0], sums[16] = {0};
    for (int32_t i = 1; i < n; i++) max = x[i] > max ? x[i] : max;
    for (int32_t i = 0; i < n; i++) {
        x[i] = el_exp(x[i] - max);
        sums[i % 16] += x[i];
    }
    float sum = el_fold16(sums);
    for (int32_t i = 0; i < n; i++) x[i] = x[i] / sum;
}

void el_route_row(el_engine *e, const el_cop *c, int32_t thread, int32_t row) {
    const float *logits = el_row(e, &c->op.v[0], row), *bias = c->vec[0];
    int32_t *ids = (int32_t *)el_row(e, &c->op.v[1], row);
    float *weights = el_row(e, &c->op.v[2], row);
    int32_t n = c->op.v[0].width, k = c->op.i[0], func = c->op.i[1];
    float *value = e->scratch[thread].row; /* what an expert weighs */
    float *choice = value + n;             /* what it is ranked by */
    float *taken = choice + n;             /* 1: chosen already */
    for (int32_t i = 0; i < n; i++) value[i] = func == SIGMOID ? el_sigmoid(logits[i]) : logits[i];
    if (func == SOFTMAX) softmax(value, n);
    for (int32_t i = 0; i < n; i++) {
        choice[i] = bias ? value[i] + bias[i] : value[i];
        taken[i] = 0.0f;
    }
    for (int32_t j = 0; j < k; j++) {
        int32_t best = -1;
        for (int32_t i = 0; i < n; i++) {
            if (taken[i] == 0.0f && (best < 0 || choice[i] > choice[best])) best = i;
        }
        taken[best] =
            1.0f; /* k is at most n; a nan is chosen only when nothing else is left or it comes first */
        ids[j] = best;
        weights[j] = value[best];
    }
    if (func == SOFTMAX_TOPK) softmax(weights, k);
    if (c->op.i[2]) {
        float sum = weights[0];
        for (int32_t j = 1; j < k; j++) sum = sum + weights[j];
        sum = sum > 6.103515625e-5f ? sum : 6.103515625e-5f;
        for (int32_t j = 0; j < k; j++) weights[j] = weights[j] / sum;
    }
    if (c->op.f[0] != 1.0f) {
        for (int32_t j = 0; j < k; j++) weights[j] = weights[j] * c->op.f[0];
    }
}
