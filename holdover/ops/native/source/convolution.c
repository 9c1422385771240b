/* Causal depthwise convolution in one pass: products, bias and activation while the numbers are in registers. */
#include "calls.h"
#include "lanes.h"

enum { TILE = 32, WIDEST = 16 };

static const float *input(const convolution *c, int64_t b, int64_t t) {
    if (t >= 0) return c->x + b * c->x_batch + t * c->x_token;
    return c->pool + c->slots[b] * c->slot_stride + (c->width - 1 + t) * c->channels;
}

INLINE vec value(const convolution *c, const float *const *rows, int64_t at, int64_t lanes) {
#define PART(from) (lanes == LANES ? load(from) : load_some(from, lanes))
    vec y = c->bias ? PART(c->bias + at) : (vec){0};
    for (int64_t w = 0; w < c->width; w++) {
        y = fused(PART(rows[w] + at), PART(c->taps + w * c->channels + at), y);
    }
    return c->silu ? silu(y) : y;
}

static void outputs(const convolution *c, int64_t b, int64_t t) {
    const float *rows[WIDEST];
    for (int64_t w = 0; w < c->width; w++) rows[w] = input(c, b, t - c->width + 1 + w);
    float *out = c->out + (b * c->tokens + t) * c->channels;
    int64_t at = 0;
    for (; at + LANES <= c->channels; at += LANES) store(out + at, value(c, rows, at, LANES));
    if (at < c->channels) store_some(out + at, value(c, rows, at, c->channels - at), c->channels - at);
}

/* The last inputs become the history. Rows move towards the past, so none is overwritten before it is read. */
static void remember(const convolution *c, int64_t b) {
    float *history = c->pool + c->slots[b] * c->slot_stride;
    for (int64_t w = 0; w < c->width - 1; w++) {
        const float *from = input(c, b, c->tokens - (c->width - 1) + w);
        memmove(history + w * c->channels, from, (size_t)c->channels * sizeof(float));
    }
}

void holdover_convolve(const convolution *c) {
    const int64_t tiles = (c->tokens + TILE - 1) / TILE;
#pragma omp parallel for num_threads((int)c->threads) if (c->threads > 1)
    for (int64_t item = 0; item < c->batch * tiles; item++) {
        const int64_t b = item / tiles, first = item % tiles * TILE;
        for (int64_t t = first; t < c->tokens && t < first + TILE; t++) outputs(c, b, t);
    }
    for (int64_t b = 0; b < c->batch; b++) remember(c, b);
}
