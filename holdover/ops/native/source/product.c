/* The gate of an MLP in one pass. */
#include "calls.h"
#include "lanes.h"

void holdover_silu_product(const product *p) {
#pragma omp parallel for num_threads((int)p->threads) if (p->threads > 1)
    for (int64_t row = 0; row < p->rows; row++) {
        const float *gate = p->gate + row * p->gate_row, *x = p->x + row * p->x_row;
        float *out = p->out + row * p->width;
        int64_t i = 0;
        for (; i + LANES <= p->width; i += LANES) store(out + i, silu(load(gate + i)) * load(x + i));
        const int64_t rest = p->width - i;
        if (rest) store_some(out + i, silu(load_some(gate + i, rest)) * load_some(x + i, rest), rest);
    }
}
