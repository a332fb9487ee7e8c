/* objective: what a step minimises, a row each. It sees the negative log-likelihoods (nll) of the labels of a micro-batch, after
 * forward and before backward, and says how much the loss changes with each of them.
 *
 * A micro-batch goes through the model in *lanes*: as the policy; as the reference, without the adapter and forward only; and
 * both once more with kto's mismatched rows (each prompt with another sample's completion), which are a batch of their own.
 *
 *     const tm_objective *o = tm_objective_of(TM_OBJECTIVE_DPO);
 *     tm_lane_name lane[TM_LANES];
 *     uint32_t lanes = tm_objective_lanes(o, true, lane);            // the policy's, the reference's
 *     objective_step s = {.spec = &spec, .samples = 16, .scale = 1}; // of the whole step
 *     if (tm_objective_shares(o, &spec)) o->share(&s, &b, s.shared); // for each micro-batch, and summed over ranks
 *     loss += o->run(&s, &b, sum);                                   // for each micro-batch; b.lane[POLICY].nll: coefficients
 *     loss / tm_objective_divisor(o, s.labels, s.samples); o->metrics(&s, sum, value);
 *
 * A new one: a file with its functions and its row, and the row's name in table.c. */
#ifndef TIDEMILL_OBJECTIVE_H
#define TIDEMILL_OBJECTIVE_H

#include "base/objective_spec.h"
#include "model/model.h"

/* ---- lanes ------------------------------------------------------------------------------------------------------ */

typedef enum tm_lane_name {
    TM_LANE_POLICY,
    TM_LANE_MISMATCHED,
    TM_LANE_REFERENCE,
    TM_LANE_REFERENCE_MISMATCHED,
    TM_LANES
} tm_lane_name;
enum { TM_BATCH_ROWS, TM_BATCH_MISMATCHED, TM_BATCHES }; /* what a micro-batch has of the data */
static inline bool tm_lane_is_bare(tm_lane_name lane) {  /* adapters add nothing: it is the reference */
    return lane >= TM_LANE_REFERENCE;
}
static inline uint32_t tm_lane_batch(tm_lane_name lane) { /* whose rows it takes */
    return lane == TM_LANE_MISMATCHED || lane == TM_LANE_REFERENCE_MISMATCHED ? TM_BATCH_MISMATCHED : TM_BATCH_ROWS;
}

/* ---- columns ---------------------------------------------------------------------------------------------------- */

/* What a micro-batch carries beside ids and labels, a bit each. */
enum {
    TM_COLUMN_COMPLETION = 1 << 0, /* uint8 a token: its label is one of the completion, not of the prompt */
    TM_COLUMN_DESIRABLE = 1 << 1,  /* uint8 a row */
    TM_COLUMN_CACHE_ROW = 1 << 4,  /* uint32 a row, with a key-value cache: its row there */
    TM_COLUMN_BEGIN = 1 << 3, /* uint32 a token, of packed rows, whatever the objective: where its document begins */
    TM_COLUMN_REFERENCE =
        1 << 2 /* float a row: the reference's log-probability of the completion, made before step 1 */
};

/* ---- a step ----------------------------------------------------------------------------------------------------- */

enum { TM_OBJECTIVE_SUMS = 8, TM_OBJECTIVE_SHARED = 2 };

/* Of a whole step, on all ranks. */
typedef struct objective_step {
    const tm_objective_spec *spec;
    uint64_t labels;                    /* tokens that are predicted */
    uint64_t samples;                   /* pairs, or rows */
    double scale;                       /* coefficients are this times as large: fp16's loss scale, else 1 */
    double shared[TM_OBJECTIVE_SHARED]; /* what `share` summed */
} objective_step;

typedef struct objective_lane {
    const tm_micro_batch *batch;
    float *nll;                /* [T] 0 without a label */
    const uint8_t *completion; /* [T], [rows]: columns, NULL where there is none */
    const uint8_t *desirable;
    const float *reference;
    const void *state; /* the head's (tm_head_is_largest); NULL: not there any more */
} objective_lane;
typedef struct objective_batch {
    objective_lane lane[TM_LANES]; /* by tm_lane_name; batch NULL: there is none */
} objective_batch;

typedef struct tm_objective {
    const char *name; /* of the key objective.type */
    uint8_t rows;     /* a sample: 1; 2: chosen, rejected. Row r is the (r % rows)-th of its sample */
    bool by_sample;   /* the loss is a mean over samples, else over labels */
    bool reference;   /* there is a reference model, as lanes or as a column */
    bool mismatched;
    bool prompt_labels; /* chosen rows have labels on their prompts as well */
    uint8_t columns;    /* TM_COLUMN_*, COLUMN_REFERENCE and _BEGIN apart */
    uint8_t n_metrics;
    const char *const *metric; /* names in log.jsonl */
    /* Whether this needs sums over the whole step before any coefficient is known; NULL: never. */
    bool (*shares)(const tm_objective_spec *spec);
    void (*share)(const objective_step *s, const objective_batch *b, double shared[TM_OBJECTIVE_SHARED]); /* adds */
    /* What the micro-batch adds to the step's loss times the divisor, and to `sum`. Overwrites the policy's nll[t] by d loss /
     * d nll[t], times the scale; 0 where nothing follows from it. */
    double (*run)(const objective_step *s, const objective_batch *b, double sum[TM_OBJECTIVE_SUMS]);
    /* value [n_metrics] of a step by its sums; NAN: there is none. NULL where there are no metrics. */
    void (*metrics)(const objective_step *s, const double sum[TM_OBJECTIVE_SUMS], double *value);
} tm_objective;

const tm_objective *tm_objective_of(tm_objective_type type);
/* Those there are, the policy first, which alone has a backward; `reference`: it is a lane (adapters off) where the objective has one. */
uint32_t tm_objective_lanes(const tm_objective *o, bool reference, tm_lane_name lane[TM_LANES]);
bool tm_objective_shares(const tm_objective *o, const tm_objective_spec *spec);
double tm_objective_logp(const objective_lane *lane, uint32_t row);                    /* of the row's completion */
double tm_objective_divisor(const tm_objective *o, uint64_t labels, uint64_t samples); /* of the step's loss sum */

#endif
