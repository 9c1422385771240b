/* A matrix product of few rows: what it costs is one pass over the weights. */
#include "calls.h"
#include "lanes.h"

/* rows and outputs of a tile: with its sums, weights and one input it fills sixteen registers */
enum { ROWS = 4, OUTPUTS = 3, BAND = 8 * OUTPUTS };

/* `count` rows by `wide` outputs. Every product is summed in the same order in a tile of any size, so that no row
   depends on how many there are beside it. */
INLINE void tile(const linear *l, int64_t row, int64_t output, const int count, const int wide) {
    const float *x = l->x + row * l->x_row, *w = l->weight + output * l->inputs;
    vec sums[ROWS * OUTPUTS] = {0};
    int64_t i = 0;
    for (; i + LANES <= l->inputs; i += LANES) {
        vec weights[OUTPUTS];
#pragma GCC unroll 3
        for (int n = 0; n < wide; n++) {
            weights[n] = load(w + n * l->inputs + i);
            /* the next tile's, in time */
            if (row == 0) __builtin_prefetch(w + (n + wide) * l->inputs + i);
        }
#pragma GCC unroll 4
        for (int m = 0; m < count; m++) {
            const vec inputs = load(x + m * l->x_row + i);
#pragma GCC unroll 3
            for (int n = 0; n < wide; n++) sums[m * OUTPUTS + n] = fused(inputs, weights[n], sums[m * OUTPUTS + n]);
        }
    }
    const int64_t rest = l->inputs - i;
#pragma GCC unroll 4
    for (int m = 0; m < count; m++) {
#pragma GCC unroll 3
        for (int n = 0; n < wide; n++) {
            vec total = sums[m * OUTPUTS + n];
            if (rest) total = fused(load_some(x + m * l->x_row + i, rest), load_some(w + n * l->inputs + i, rest), total);
            l->out[(row + m) * l->outputs + output + n] = folded(total);
        }
    }
}

/* All rows by `wide` outputs, whose weights stay in the nearest cache meanwhile. */
INLINE void rows(const linear *l, int64_t output, const int wide) {
    int64_t row = 0;
    for (; row + ROWS <= l->rows; row += ROWS) tile(l, row, output, ROWS, wide);
    if (l->rows - row == 3) tile(l, row, output, 3, wide);
    if (l->rows - row == 2) tile(l, row, output, 2, wide);
    if (l->rows - row == 1) tile(l, row, output, 1, wide);
}

void holdover_linear(const linear *l) {
    const int64_t bands = (l->outputs + BAND - 1) / BAND;
#pragma omp parallel for num_threads((int)l->threads) if (l->threads > 1)
    for (int64_t band = 0; band < bands; band++) {
        const int64_t end = (band + 1) * BAND < l->outputs ? (band + 1) * BAND : l->outputs;
        int64_t output = band * BAND;
        for (; output + OUTPUTS <= end; output += OUTPUTS) rows(l, output, OUTPUTS);
        for (; output < end; output++) rows(l, output, 1);
    }
}
