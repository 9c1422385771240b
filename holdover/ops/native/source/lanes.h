/* Vectors as wide as the machine's registers, in the compilers' portable notation, and the functions on them. */
#ifndef HOLDOVER_LANES_H
#define HOLDOVER_LANES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
#define FUSED(a, b, c) (vec) _mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c))
#elif defined(__AVX__) && defined(__FMA__)
#include <immintrin.h>
#define LANES 8
#define FUSED(a, b, c) (vec) _mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c))
#elif defined(__aarch64__)
#include <arm_neon.h>
#define LANES 4
#define FUSED(a, b, c) (vec) vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b))
#else
#define LANES 4
#define FUSED(a, b, c) ((a) * (b) + (c))
#endif

typedef float vec __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t ivec __attribute__((vector_size(LANES * sizeof(int32_t))));

#define INLINE static inline __attribute__((always_inline))

INLINE vec load(const float *from) {
    vec x;
    memcpy(&x, from, sizeof x);
    return x;
}

INLINE void store(float *to, vec x) { memcpy(to, &x, sizeof x); }

/* a * b + c, rounded once where the machine can. Asked for and not left to the compiler: it would round some loops so
   and others not, and a sequence in two calls would differ from the same in one. */
INLINE vec fused(vec a, vec b, vec c) { return FUSED(a, b, c); }

/* the first `count` lanes; the others are zero, or are not written */
INLINE vec load_some(const float *from, int64_t count) {
    vec x = {0};
    memcpy(&x, from, (size_t)count * sizeof(float));
    return x;
}

INLINE void store_some(float *to, vec x, int64_t count) { memcpy(to, &x, (size_t)count * sizeof(float)); }

INLINE vec all(float x) { return x - (vec){0}; }

INLINE vec choose(ivec condition, vec yes, vec no) { return (vec)((condition & (ivec)yes) | (~condition & (ivec)no)); }

INLINE float sum(vec x) {
    float total = 0;
    for (int lane = 0; lane < LANES; lane++) total += x[lane];
    return total;
}

/* The same by halves, each of them one instruction of a narrower vector: for where sums are most of the work. */
INLINE float folded(vec x) {
    float parts[LANES];
    memcpy(parts, &x, sizeof x);
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int lane = 0; lane < half; lane++) parts[lane] += parts[lane + half];
    }
    return parts[0];
}

/* e^x to about one unit in the last place: 2^n times a polynomial of the rest; 0 below the normal numbers, infinite above */
INLINE vec exponential(vec x) {
    const vec low = all(-87.33654f), high = all(88.72283f), shift = all(12582912.0f);
    vec y = choose(x > high, high, choose(x < low, low, x));
    const vec n = (y * 1.44269504f + shift) - shift;
    y = fused(n, all(2.12194440e-4f), fused(n, all(-0.693359375f), y));
    vec p = all(1.9875691500e-4f);
    p = fused(p, y, all(1.3981999507e-3f));
    p = fused(p, y, all(8.3334519073e-3f));
    p = fused(p, y, all(4.1665795894e-2f));
    p = fused(p, y, all(1.6666665459e-1f));
    p = fused(p, y, all(5.0000001201e-1f));
    p = fused(p, y * y, y) + 1.0f;
    /* in two factors: 2^128 alone has no representation */
    const ivec half = __builtin_convertvector(n, ivec) >> 1, rest = __builtin_convertvector(n, ivec) - half;
    p = p * (vec)((half + 127) << 23) * (vec)((rest + 127) << 23);
    p = choose(x < low, all(0.0f), choose(x > high, all(INFINITY), p));
    return choose(x == x, p, x);
}

INLINE vec sigmoid(vec x) { return 1.0f / (1.0f + exponential(-x)); }

INLINE vec silu(vec x) { return x / (1.0f + exponential(-x)); }

/* 1 / sqrt(|x|^2 * share + eps) over `count` numbers */
INLINE float inverse_root(const float *x, int64_t count, float share, float eps) {
    vec squares = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) squares = fused(load(x + i), load(x + i), squares);
    const vec last = load_some(x + i, count - i);
    return 1.0f / sqrtf(sum(fused(last, last, squares)) * share + eps);
}

#endif
