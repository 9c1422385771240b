/* Gated norms in one pass over their rows. */
#include "calls.h"
#include "lanes.h"

INLINE vec normed(const norm *n, vec x, vec weight, vec gate, float inverse) {
    const vec y = x * inverse * weight;
    if (n->activation == SILU) return y * silu(gate);
    return n->activation == SIGMOID ? y * sigmoid(gate) : y;
}

void holdover_norm(const norm *n) {
#pragma omp parallel for num_threads((int)n->threads) if (n->threads > 1)
    for (int64_t item = 0; item < n->rows * n->heads; item++) {
        const int64_t row = item / n->heads, at = item % n->heads * n->width;
        const float *x = n->x + row * n->x_row + at;
        const float *gate = n->activation == NONE ? x : n->gate + row * n->gate_row + at;
        float *out = n->out + item * n->width;
        const float inverse = inverse_root(x, n->width, 1.0f / (float)n->width, n->eps);
        int64_t i = 0;
        for (; i + LANES <= n->width; i += LANES) {
            store(out + i, normed(n, load(x + i), load(n->weight + i), load(gate + i), inverse));
        }
        const int64_t rest = n->width - i;
        if (rest) {
            const vec w = load_some(n->weight + i, rest);
            store_some(out + i, normed(n, load_some(x + i, rest), w, load_some(gate + i, rest), inverse), rest);
        }
    }
}
