/* quantise: weights in few bits that some text has a say in. The text goes through the model, a block at a time; of what
 * each matrix multiplies is kept how large it is, or how its elements go together, and by that codes are chosen.
 *
 *   gptq         codes one column after the other, each making up for what those before it lost (Frantar et al. 2022)
 *   awq          columns that matter are scaled up, and what they multiply down, before rounding (Lin et al. 2023)
 *   importance   of GGUF's blocks: mean squares of what each column multiplies, as llama.cpp's imatrix has them
 *
 * It is what src/format asks while it writes (tm_calibrated of format.h):
 *
 *     tm_calibration *c;
 *     TM_TRY(tm_calibration_open(&c, &(tm_calibration_args){.model = "smollm2", .data = "text.jsonl"}));
 *     request.convert.calibrated = tm_calibration_asked(c);
 *     request.convert.dtype = "gptq";
 *     rc = tm_export(&request);
 *     tm_calibration_close(c);
 *
 * Memory: of one block its weights, what its inputs say ([in, in] fp32 for gptq and awq) and one row's activations; and
 * the activations of all rows, which lie in a file beside OUT where they do not fit the budget. All of it is counted
 * before anything is allocated: TM_EBUDGET names the least budget.
 * Threads: one export at a time; teams inside.
 * The result is a function of model, data, options, threads and ISA; not of the budget. */
#ifndef TIDEMILL_QUANTISE_H
#define TIDEMILL_QUANTISE_H

#include "format/format.h"

typedef struct tm_calibration tm_calibration;
typedef struct tm_calibration_args {
    const char *model;        /* of messages; what is exported says the rest */
    const char *data;         /* what `eval` takes: records side by side, cut into rows; or rows of ids */
    uint32_t rows, seq_len;   /* at most; 0: 128, 2048 */
    uint64_t host_bytes;      /* UINT64_MAX: as much as is available */
    const char *offload_path; /* folder for activations, in a file of this process alone; NULL: beside OUT */
} tm_calibration_args;
/* Opens nothing yet. The strings are the caller's, for as long as it. */
TM_MUST_USE tm_status tm_calibration_open(tm_calibration **out, const tm_calibration_args *args);
const tm_calibrated *tm_calibration_asked(const tm_calibration *c);
void tm_calibration_close(tm_calibration *c); /* NULL is fine */

#endif
