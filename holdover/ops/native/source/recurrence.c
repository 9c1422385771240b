/* The recurrences, token by token: a part of a head's state stays in the nearest cache for a whole sequence. */
#include "calls.h"
#include "lanes.h"

/* What one token does to every column of a head's state. */
typedef struct {
    float *decay, *key, *query; /* [d_k] */
    float strength, overlap;    /* overlap: key . query */
} token;

static void prepare(const recurrence *r, int64_t b, int64_t t, int64_t h, token *now) {
    const int64_t d_k = r->d_k, group = h / (r->heads / r->key_heads);
    const float *q = r->q.data + b * r->q.batch + t * r->q.token + group * d_k;
    const float *k = r->k.data + b * r->k.batch + t * r->k.token + group * d_k;
    const float *g = r->decay.data + b * r->decay.batch + t * r->decay.token;
    float of_q = 1, of_k = 1;
    now->strength = r->strength.data[b * r->strength.batch + t * r->strength.token + h];
    if (r->family == KDA) {
        int64_t i = 0;
        for (g += h * d_k; i + LANES <= d_k; i += LANES) store(now->decay + i, exponential(load(g + i)));
        store_some(now->decay + i, exponential(load_some(g + i, d_k - i)), d_k - i);
    } else {
        const float decay = expf(r->family == MAMBA2 ? g[h] * r->rate[h] : g[h]);
        for (int64_t i = 0; i < d_k; i++) now->decay[i] = decay;
    }
    if (r->family != MAMBA2) {
        of_q = inverse_root(q, d_k, 1, 1e-6f) / sqrtf((float)d_k);
        of_k = inverse_root(k, d_k, 1, 1e-6f);
    }
    float overlap = 0;
    for (int64_t i = 0; i < d_k; i++) {
        now->query[i] = q[i] * of_q;
        now->key[i] = k[i] * of_k;
        overlap += now->query[i] * now->key[i];
    }
    now->overlap = overlap;
}

/* `count` vectors of columns, the last of them `last` lanes wide, through all tokens. A token's update is written when
   the next one reads: the state passes the registers once a token. */
INLINE void columns(const recurrence *r, int64_t b, int64_t h, int64_t first, const int count, int64_t last, float *room) {
    const int64_t d_k = r->d_k, d_v = r->d_v;
    float *state = r->pool + r->slots[b] * r->slot_stride + h * d_k * d_v + first;
    float *written = room + 3 * d_k;
    token now = {room, room + d_k, room + 2 * d_k, 0, 0};
    vec update[4] = {0};
#define WIDTH(n) ((n) == count - 1 ? last : LANES)
#define LOAD(from, n) (WIDTH(n) == LANES ? load((from) + (n) * LANES) : load_some((from) + (n) * LANES, WIDTH(n)))
#define STORE(to, x, n) \
    do { \
        if (WIDTH(n) == LANES) store((to) + (n) * LANES, x); \
        else store_some((to) + (n) * LANES, x, WIDTH(n)); \
    } while (0)
    for (int64_t i = 0; i < d_k; i++) written[i] = 0;
    for (int64_t t = 0; t < r->tokens; t++) {
        prepare(r, b, t, h, &now);
        vec predicted[4] = {0}, read[4] = {0};
        for (int64_t i = 0; i < d_k; i++) {
            float *row = state + i * d_v;
            const float decay = now.decay[i], key = now.key[i], query = now.query[i], before = written[i];
#pragma GCC unroll 4
            for (int n = 0; n < count; n++) {
                const vec s = fused(update[n], all(before), LOAD(row, n)) * decay;
                STORE(row, s, n);
                predicted[n] = fused(s, all(key), predicted[n]);
                read[n] = fused(s, all(query), read[n]);
            }
        }
        const float *v = r->v.data + b * r->v.batch + t * r->v.token + h * d_v + first;
        float *out = r->out + ((b * r->tokens + t) * r->heads + h) * d_v + first;
#pragma GCC unroll 4
        for (int n = 0; n < count; n++) {
            const vec value = LOAD(v, n);
            vec change = value;
            if (r->family != MAMBA2) change -= predicted[n];
            update[n] = change * now.strength;
            vec y = fused(update[n], all(now.overlap), read[n]);
            if (r->family == MAMBA2) y = fused(value, all(r->skip[h]), y);
            STORE(out, y, n);
        }
        memcpy(written, now.key, (size_t)d_k * sizeof(float));
    }
    for (int64_t i = 0; i < d_k; i++) {
#pragma GCC unroll 4
        for (int n = 0; n < count; n++) {
            const vec s = fused(update[n], all(written[i]), LOAD(state + i * d_v, n));
            STORE(state + i * d_v, s, n);
        }
    }
}

void holdover_recur(const recurrence *r) {
    const int64_t parts = (r->d_v + 4 * LANES - 1) / (4 * LANES);
#pragma omp parallel for num_threads((int)r->threads) if (r->threads > 1)
    for (int64_t item = 0; item < r->batch * r->heads * parts; item++) {
        const int64_t part = item % parts, h = item / parts % r->heads, b = item / parts / r->heads;
        const int64_t first = part * 4 * LANES;
        const int64_t width = r->d_v - first < 4 * LANES ? r->d_v - first : 4 * LANES;
        const int64_t last = width % LANES ? width % LANES : LANES;
        float room[4 * r->d_k];
        if (width == 4 * LANES) columns(r, b, h, first, 4, LANES, room);
        else if (width == 2 * LANES) columns(r, b, h, first, 2, LANES, room);
        else if (width > 3 * LANES) columns(r, b, h, first, 4, last, room);
        else if (width > 2 * LANES) columns(r, b, h, first, 3, last, room);
        else if (width > LANES) columns(r, b, h, first, 2, last, room);
        else columns(r, b, h, first, 1, last, room);
    }
}
