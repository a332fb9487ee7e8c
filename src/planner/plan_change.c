/* What to change where a step does not fit: fewer rows a micro-batch, then shorter rows. */
#include "planner/plan_internal.h"

enum { SEQ_GRAIN = 64 };

typedef struct question {
    bool (*fits)(void *ctx, uint32_t rows, uint32_t seq);
    void *ctx;
    uint32_t rows, seq; /* the one of them that is 0 is searched for, in steps of `grain` */
    uint32_t grain;
} question;

static bool ask(const question *q, uint32_t n) {
    n *= q->grain;
    return q->fits(q->ctx, q->rows ? q->rows : n, q->seq ? q->seq : n);
}

/* The largest n in [1, below) that fits; 0: none. Less never needs more, so that the least of all is asked first: where
 * it does not fit, nothing does. */
static uint32_t largest(const question *q, uint32_t below) {
    uint32_t lo = 1, hi = below;
    if (below < 2 || !ask(q, lo)) return 0;
    while (lo + 1 < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (ask(q, mid))
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

tm_plan_change plan_smaller_batch(const job_shape *shape, bool (*fits)(void *ctx, uint32_t rows, uint32_t seq),
                                  void *ctx) {
    question rows = {fits, ctx, 0, shape->seq, 1}, seq = {fits, ctx, shape->rows, 0, SEQ_GRAIN};
    uint32_t n = largest(&rows, shape->rows);
    if (n) return (tm_plan_change){"per_device_train_batch_size", n};
    n = largest(&seq, (shape->seq + SEQ_GRAIN - 1) / SEQ_GRAIN) * SEQ_GRAIN;
    return n ? (tm_plan_change){"data.seq_len", n} : (tm_plan_change){NULL, 0};
}
