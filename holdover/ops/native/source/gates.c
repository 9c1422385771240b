/* Gates with one number a head. */
#include <math.h>

#include "calls.h"

/* from 20 on it is x to the last bit */
static float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

/* NaN stays */
static float between(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

void holdover_gates(const gates *g) {
    for (int64_t row = 0; row < g->rows; row++) {
        for (int64_t h = 0; h < g->heads; h++) {
            const float x = g->decay[row * g->decay_row + h] + g->bias[h];
            const float step = between(softplus(x), g->low, g->high);
            g->decays[row * g->heads + h] = g->rate ? g->rate[h] * step : step;
        }
        for (int64_t h = 0; g->strength && h < g->heads; h++) {
            g->strengths[row * g->heads + h] = g->scale / (1.0f + expf(-g->strength[row * g->strength_row + h]));
        }
    }
}
