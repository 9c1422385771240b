/* The functions that others are put together from, with their arguments. Python declares the same in library.py. */
#ifndef HOLDOVER_CALLS_H
#define HOLDOVER_CALLS_H

#include <stdint.h>

typedef struct {
    float *pool; /* [S, W - 1, C], contiguous within a slot, oldest first */
    const int64_t *slots;
    int64_t slot_stride, batch, tokens, width, channels, threads, silu;
    const float *x; /* channels are contiguous */
    int64_t x_batch, x_token;
    const float *taps, *bias; /* [W, C]; [C] or null */
    float *out;               /* [B, T, C] */
} convolution;

/* Convolves and moves the histories at `slots` on. */
void holdover_convolve(const convolution *c);

typedef struct {
    int64_t rows, heads;
    const float *decay, *strength; /* raw, [rows, heads], heads contiguous; the second may be null */
    int64_t decay_row, strength_row;
    const float *bias, *rate; /* [heads]; the second may be null */
    float low, high, scale;
    float *decays, *strengths; /* [rows, heads] */
} gates;

/* softplus(decay + bias), between `low` and `high`, times the rate; sigmoid(strength) times the scale */
void holdover_gates(const gates *g);

enum { GDN = 0, KDA = 1, MAMBA2 = 2 };

typedef struct {
    const float *data;
    int64_t batch, token; /* strides, in numbers; heads and channels are contiguous */
} timed;

typedef struct {
    float *pool; /* [S, H, d_k, d_v], contiguous within a slot */
    const int64_t *slots;
    int64_t slot_stride, batch, tokens, heads, key_heads, d_k, d_v, family, threads;
    /* GDN, KDA: raw q, k; v; log decay; beta. Mamba-2: c, b, x, dt, dt */
    timed q, k, v, decay, strength;
    const float *rate, *skip; /* Mamba-2: a, d [H] */
    float *out;               /* [B, T, H, d_v] */
} recurrence;

/* Advances the states at `slots` and writes the readouts. */
void holdover_recur(const recurrence *r);

enum { NONE = 0, SILU = 1, SIGMOID = 2 };

typedef struct {
    int64_t rows, heads, width, threads, activation;
    const float *x, *gate;   /* [rows, heads, width]; the gate is not read without an activation */
    int64_t x_row, gate_row; /* strides of rows; heads are contiguous */
    const float *weight;     /* [width] */
    float eps;
    float *out; /* [rows, heads, width] */
} norm;

/* x / sqrt(mean(x^2) + eps) * weight, times the activated gate */
void holdover_norm(const norm *n);

typedef struct {
    int64_t rows, width, threads;
    const float *gate, *x;   /* [rows, width] */
    int64_t gate_row, x_row; /* strides of rows */
    float *out;              /* [rows, width] */
} product;

/* silu(gate) * x */
void holdover_silu_product(const product *p);

typedef struct {
    int64_t rows, inputs, outputs, threads;
    const float *x;      /* [rows, inputs] */
    int64_t x_row;       /* stride of rows */
    const float *weight; /* [outputs, inputs], contiguous */
    float *out;          /* [rows, outputs] */
} linear;

/* x times the transposed weights */
void holdover_linear(const linear *l);

#endif
