/* The room's own: rows of text, the walk over blocks, and what makes codes. */
#ifndef TIDEMILL_QUANTISE_INTERNAL_H
#define TIDEMILL_QUANTISE_INTERNAL_H

#include "model/model.h"
#include "quantise/quantise.h"

/* ---- rows.c: ids of the calibration rows, one after the other ---- */

typedef struct id_rows {
    int32_t *ids;
    uint64_t *first; /* [n + 1] */
    uint32_t n, longest;
} id_rows;
TM_MUST_USE tm_status id_rows_read(id_rows *out, const tm_source *src, uint32_t vocabulary,
                                   const tm_calibration_args *args);
void id_rows_free(id_rows *r);
static inline uint32_t id_rows_length(const id_rows *r, uint32_t i) {
    return (uint32_t)(r->first[i + 1] - r->first[i]);
}

/* ---- activations.c: [tokens][bytes], in memory or in a file that is read while the next is written ---- */

typedef struct activations {
    uint64_t token_bytes, tokens;
    char *memory;     /* NULL: in the file */
    const char *path; /* of the file */
    struct tm_file *in;
    struct tm_out *out;
    uint64_t since; /* bytes written since the last flush */
} activations;
TM_MUST_USE tm_status activations_open(activations *a, uint64_t token_bytes, uint64_t tokens, bool in_memory,
                                       const char *path);
TM_MUST_USE tm_status activations_read(activations *a, uint64_t token, uint64_t n, void *to);
/* In order, each token once between two turns; in memory each replaces what was read. */
TM_MUST_USE tm_status activations_write(activations *a, uint64_t token, uint64_t n, const void *from);
TM_MUST_USE tm_status activations_turn(activations *a); /* what was written is what is read from here on */
void activations_close(activations *a);                 /* its file is gone */

/* ---- walk.c: the rows through the model, a block at a time ---- */

/* What one or several matrices of a block multiply. Sums over all tokens of the rows. */
typedef struct walk_input {
    uint32_t slot, stage; /* stage: the first that multiplies it, which alone is counted */
    uint64_t width;
    float *products;            /* [width][width] sum of x x^T; NULL: not asked for */
    double *magnitude, *square; /* [width] sum of |x|, of x^2 */
} walk_input;
typedef struct walk_matrix {
    uint32_t tensor, source; /* of the model; of the source */
    uint32_t stage, part, input;
    uint64_t rows, width; /* [out, in] */
} walk_matrix;
enum { WALK_INPUTS = 8, WALK_MATRICES = 12 };

typedef struct walk walk;
typedef struct walk_opts {
    const tm_source *src;
    const id_rows *rows;
    tm_dtype compute;
    bool products;                            /* as well as the other sums */
    bool twice;                               /* the rows go through each block twice */
    uint64_t room_bytes;                      /* for everything that the walk holds */
    const char *path;                         /* for activations that do not fit */
    uint64_t other_bytes;                     /* of that room: the caller's, while a block is there */
    double (*work)(const walk *w);            /* operations of the caller at a block that was described; NULL: none */
    tm_status (*at)(void *ctx, double share); /* now and then */
    void *ctx;
} walk_opts;

struct walk {
    walk_opts o;
    tm_model *m;
    activations x;
    uint32_t unit;
    walk_input input[WALK_INPUTS];
    walk_matrix matrix[WALK_MATRICES];
    uint32_t n_inputs, n_matrices;
    uint64_t tokens;
    /* buffers */
    char *weights, *slots, *row_in, *row_out, *workspace;
    float *values, *products;
    double *sums;
    int32_t *ids;
    uint64_t *part_at;     /* of the unit's parts, in `weights` */
    double rate, rate_f32; /* operations a second, of the compute type and of fp32 */
    double done, total;    /* seconds, as predicted */
};
/* Counts, allocates, and brings the rows through the embedding. TM_EBUDGET: the least room is more; `fixed`: what the
 * process has beside it, for the message. */
TM_MUST_USE tm_status walk_open(walk *w, const walk_opts *o, uint64_t fixed);
void walk_close(walk *w);
uint32_t walk_blocks(const walk *w);
/* Weights of block b are there, sums are zero. */
TM_MUST_USE tm_status walk_enter(walk *w, uint32_t b);
/* All rows through the block: its inputs are summed, its outputs become the next one's inputs, or both. */
TM_MUST_USE tm_status walk_pass(walk *w, bool sum, bool advance);
/* n values of the matrix in the block that the rows go through, from `first` on. */
TM_MUST_USE tm_status walk_replace(walk *w, const walk_matrix *x, uint64_t first, uint64_t n, const float *values);
TM_MUST_USE tm_status walk_did(walk *w, double operations); /* of the caller */

/* The next of some buffers that lie in one: `at` goes on behind it, to a multiple of 64. */
static inline void *quantise_take(char **at, uint64_t bytes) {
    void *p = *at;
    *at += tm_round_up(bytes, 64);
    return p;
}

/* ---- factor.c ---- */

/* H [n][n], symmetric and positive definite: its upper triangle becomes R with H = R R^T, R upper triangular; below the
 * diagonal H stays. False: it is not positive definite. */
bool factor_upper(float *h, uint64_t n);
/* Adds share times the mean of the diagonal to it (1 where that is 0). */
void factor_damp(float *h, uint64_t n, double share);

/* ---- nearest.c: symmetric codes of 4 bits ---- */

typedef struct nearest_opts {
    uint64_t group; /* elements that share a scale */
    tm_fmt fmt;     /* that scales are stored in */
} nearest_opts;
enum { NEAREST_MOST = 8, NEAREST_GROUP = 128 /* at most */ };
float nearest_scale(tm_fmt fmt, float largest, double clip); /* of the largest magnitude times clip, as it is stored */
float nearest_largest(const float *x, uint64_t n);
int nearest_code(float x, float scale); /* -8 .. 7 */
/* The clip of 1, 0.95 .. 0.5 with the least sum of weight (x - code scale)^2. */
float nearest_search(tm_fmt fmt, const float *x, uint64_t n, const float *weight);

/* ---- gptq.c ---- */

/* Some rows of a matrix. */
typedef struct gptq_rows {
    const float *factor; /* R of factor_upper, [n][n] */
    nearest_opts o;
    uint64_t n, rows;
    const float *w; /* [rows][n] */
    /* out */
    int8_t *codes;
    float *scale;        /* [rows][n / group] */
    float *lost;         /* [rows][n]: W - code scale */
    double *loss, *full; /* [rows]: |lost R|^2, |W R|^2 */
    /* scratch */
    float *carried; /* [rows][group] */
    int8_t *plain_codes;
    float *plain_scale, *plain_lost;
    double *plain_loss;
} gptq_rows;
uint64_t gptq_bytes(uint64_t n, uint64_t rows, uint64_t group); /* of out and scratch together */
void gptq_place(gptq_rows *g, void *memory);                    /* pointers into that many bytes */
/* Of each row what GPTQ makes of it, or rounding to nearest where that loses less. */
void gptq_round(gptq_rows *g);

#endif
