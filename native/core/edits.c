/* Edits of the logits that follow the tokens of a sequence: penalties over its latest tokens, biases, bans. The same
 * sums as edgellm/sampling/edits.py, in float64, rounded once. */
#include "engine.h"
#include "fpenv.h"

#include <string.h>

/* Where `token` is among n ascending tokens, or belongs. */
static int32_t place(const int32_t *tokens, int32_t n, int32_t token) {
    int32_t low = 0, high = n;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (tokens[middle] < token) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static void see(el_edits *e, int32_t token) {
    int32_t at = place(e->seen, e->n_seen, token);
    if (at < e->n_seen && e->seen[at] == token) {
        e->counts[at]++;
        return;
    }
    size_t rest = (size_t)(e->n_seen - at) * sizeof(int32_t);
    memmove(e->seen + at + 1, e->seen + at, rest);
    memmove(e->counts + at + 1, e->counts + at, rest);
    e->seen[at] = token;
    e->counts[at] = 1;
    e->n_seen++;
}

static void forget(el_edits *e, int32_t token) {
    int32_t at = place(e->seen, e->n_seen, token);
    if (at == e->n_seen || e->seen[at] != token || --e->counts[at] > 0) return;
    size_t rest = (size_t)(e->n_seen - at - 1) * sizeof(int32_t);
    memmove(e->seen + at, e->seen + at + 1, rest);
    memmove(e->counts + at, e->counts + at + 1, rest);
    e->n_seen--;
}

int32_t el_edits_check(const el_edits *e, int32_t n_steps, el_error *err) {
    if (e->n_bias < 0 || (e->n_bias > 0 && (!e->bias_tokens || !e->bias)) || e->n_ends < 0 ||
        (e->n_ends > 0 && !e->ends)) {
        return el_fail(err, EL_E_ARGUMENT, "edits: n_bias is %d, n_ends is %d, or one of their lists is NULL",
                       e->n_bias, e->n_ends);
    }
    if (e->last_n == 0) return EL_OK;
    if (e->room < 0 || e->n_tokens < 0 || e->n_seen < 0 || e->n_seen > e->n_tokens || n_steps < 0 ||
        e->room - n_steps < e->n_tokens || !e->tokens || !e->seen || !e->counts) {
        return el_fail(err, EL_E_ARGUMENT,
                       "edits: %d tokens and %d different ones in room for %d, expected room for %d more, "
                       "tokens, seen and counts",
                       e->n_tokens, e->n_seen, e->room, n_steps);
    }
    return EL_OK;
}

int32_t el_edits_add(el_edits *e, const int32_t *tokens, int32_t n, el_error *err) {
    if (!e || (n > 0 && !tokens)) return el_fail(err, EL_E_ARGUMENT, "edits or tokens is NULL");
    int32_t code = el_edits_check(e, n, err);
    for (int32_t i = 0; i < n && !code && e->last_n != 0; i++) {
        if (e->last_n > 0 && e->n_tokens >= e->last_n) forget(e, e->tokens[e->n_tokens - e->last_n]);
        e->tokens[e->n_tokens++] = tokens[i];
        see(e, tokens[i]);
    }
    return code;
}

int32_t el_edits_write(const el_edits *e, int64_t n_generated, int32_t n_vocab, int32_t row, int32_t room,
                       int32_t *rows, int32_t *tokens, float *rep, float *add) {
    const int32_t n_seen = e->last_n ? e->n_seen : 0, n_ends = n_generated < e->min_tokens ? e->n_ends : 0;
    const double infinity = 1e300 * 1e300;
    int32_t n = 0;
    el_fpenv old = el_fp_enter();
    for (int32_t i = 0, j = 0, k = 0; i < n_seen || j < e->n_bias || k < n_ends;) {
        int32_t token = INT32_MAX;
        double r = 1.0, a = 0.0;
        if (i < n_seen) token = e->seen[i];
        if (j < e->n_bias) token = el_min(token, e->bias_tokens[j]);
        if (k < n_ends) token = el_min(token, e->ends[k]);
        if (token >= n_vocab) break;
        if (n == room) {
            n = -1;
            break;
        }
        if (i < n_seen && e->seen[i] == token) {
            r = e->repeat;
            a = -((double)e->counts[i++] * e->frequency + e->presence);
        }
        if (j < e->n_bias && e->bias_tokens[j] == token) a += e->bias[j++];
        if (k < n_ends && e->ends[k] == token) {
            a += -infinity;
            k++;
        }
        rows[n] = row;
        tokens[n] = token;
        rep[n] = (float)r;
        add[n++] = (float)a;
    }
    el_fp_leave(old);
    return n;
}
