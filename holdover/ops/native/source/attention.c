/* Attention of one token of each sequence over its rows, read where they lie. */
#include "lanes.h"

typedef struct {
    int64_t batch, heads, group, d_k, d_v, threads, parts; /* query heads of a KV head; parts of all sequences */
    const float *q;                                        /* [B, Hkv * G, d_k] */
    const float *keys, *values;                            /* [R, Hkv, d_k], [R, Hkv, d_v] */
    int64_t key_row, value_row;                            /* strides of rows; heads are contiguous */
    const int64_t *rows, *ends; /* of all sequences in order; where each one's end, [B] */
    float scale;
    float *room; /* [parts, Hkv, G, d_v + 2]: sums, largest score, sum of weights */
    float *out;  /* [B, Hkv * G, d_v] */
} attention;

/* rows of a part: always the same ones, however many threads there are */
enum { PART = 256 };

static float dot(const float *a, const float *b, int64_t count) {
    vec total = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) total = fused(load(a + i), load(b + i), total);
    if (i < count) total = fused(load_some(a + i, count - i), load_some(b + i, count - i), total);
    return folded(total);
}

/* to += from * by */
static void add(float *to, const float *from, float by, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store(to + i, fused(load(from + i), all(by), load(to + i)));
    const int64_t rest = count - i;
    if (rest) store_some(to + i, fused(load_some(from + i, rest), all(by), load_some(to + i, rest)), rest);
}

/* Weights of scores against their largest, in place; their sum. */
static float weigh(float *scores, int64_t count, float largest) {
    float total = 0;
    for (int64_t j = 0; j < count; j += LANES) {
        const int64_t lanes = count - j < LANES ? count - j : LANES;
        store_some(scores + j, exponential(load_some(scores + j, lanes) - largest), lanes);
    }
    for (int64_t j = 0; j < count; j++) total += scores[j];
    return total;
}

/* One KV head over `count` rows, by itself. */
static void part(const attention *a, int64_t b, int64_t h, const int64_t *rows, int64_t count, float *room) {
    float scores[PART];
    for (int64_t g = 0; g < a->group; g++) {
        const float *q = a->q + ((b * a->heads + h) * a->group + g) * a->d_k;
        float *sums = room + g * (a->d_v + 2), largest = -INFINITY;
        for (int64_t j = 0; j < count; j++) {
            scores[j] = dot(q, a->keys + rows[j] * a->key_row + h * a->d_k, a->d_k) * a->scale;
            largest = scores[j] > largest || scores[j] != scores[j] ? scores[j] : largest;
        }
        sums[a->d_v] = largest;
        sums[a->d_v + 1] = weigh(scores, count, largest);
        memset(sums, 0, (size_t)a->d_v * sizeof(float));
        for (int64_t j = 0; j < count; j++) {
            add(sums, a->values + rows[j] * a->value_row + h * a->d_v, scores[j], a->d_v);
        }
    }
}

/* A query head's parts as one. */
static void combine(const attention *a, const float *room, int64_t parts, int64_t stride, float *out) {
    float largest = -INFINITY, total = 0;
    for (int64_t p = 0; p < parts; p++) {
        const float own = room[p * stride + a->d_v];
        largest = own > largest || own != own ? own : largest;
    }
    memset(out, 0, (size_t)a->d_v * sizeof(float));
    for (int64_t p = 0; p < parts; p++) {
        const float *sums = room + p * stride, weight = expf(sums[a->d_v] - largest);
        total += sums[a->d_v + 1] * weight;
        add(out, sums, weight, a->d_v);
    }
    for (int64_t i = 0; i < a->d_v; i++) out[i] /= total;
}

void holdover_attend(const attention *a) {
    const int64_t stride = a->heads * a->group * (a->d_v + 2);
#pragma omp parallel for schedule(static) num_threads((int)a->threads) if (a->threads > 1)
    for (int64_t item = 0; item < a->parts * a->heads; item++) {
        const int64_t h = item % a->heads;
        int64_t b = 0, start = 0, own = item / a->heads;
        /* which sequence it belongs to, and where in it */
        for (; own >= (a->ends[b] - start + PART - 1) / PART; start = a->ends[b++]) {
            own -= (a->ends[b] - start + PART - 1) / PART;
        }
        const int64_t first = start + own * PART, left = a->ends[b] - first;
        float *room = a->room + item / a->heads * stride + h * a->group * (a->d_v + 2);
        part(a, b, h, a->rows + first, left < PART ? left : PART, room);
    }
    const float *room = a->room;
    for (int64_t b = 0, start = 0; b < a->batch; start = a->ends[b++]) {
        const int64_t parts = (a->ends[b] - start + PART - 1) / PART;
        for (int64_t h = 0; h < a->heads * a->group; h++) {
            float *out = a->out + (b * a->heads * a->group + h) * a->d_v;
            combine(a, room + h * (a->d_v + 2), parts, stride, out);
        }
        room += parts * stride;
    }
}
