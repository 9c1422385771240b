/* Parts of a layer in one call each: what one function writes, the next one reads. */
#include "calls.h"

typedef struct {
    linear up; /* gate and value side by side */
    product gate;
    linear down;
} mlp;

/* down(silu(gate(x)) * up(x)) */
void holdover_mlp(const mlp *m) {
    holdover_linear(&m->up);
    holdover_silu_product(&m->gate);
    holdover_linear(&m->down);
}

typedef struct {
    convolution convolution;
    gates gates;
    recurrence recurrence;
    norm norm; /* without rows, the readouts stay as they are */
} mixing;

/* A recurrent layer between its projections. */
void holdover_mix(const mixing *m) {
    holdover_convolve(&m->convolution);
    holdover_gates(&m->gates);
    holdover_recur(&m->recurrence);
    holdover_norm(&m->norm);
}
