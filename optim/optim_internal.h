/* The folder's own: rows of span kernels. A row is the same C compiled for another instruction set; the operations
 * and their order are those of the source, because contraction and reassociation are off. */
#ifndef TIDEMILL_OPTIM_INTERNAL_H
#define TIDEMILL_OPTIM_INTERNAL_H

#include "optim/optim.h"

/* Elements that one thread takes at a time. A multiple of every vector length; cutting there changes no bit. */
enum { OPTIM_GRAIN = 16384 };

typedef enum optim_isa { OPTIM_REF, OPTIM_AVX2, OPTIM_AVX512, OPTIM_ISAS } optim_isa;
extern const char *const optim_isa_name[OPTIM_ISAS];
/* The best row that the CPU has and TIDEMILL_ISA allows. Fixed at the first call. */
optim_isa optim_isa_get(void);
bool optim_isa_available(optim_isa isa);
/* Tests: forces a row that is available; OPTIM_ISAS returns to the choice by feature bits. */
void optim_isa_force(optim_isa isa);

/* The table's rows (table.c). */
void optim_adamw_prepare(tm_optim_step *, const tm_optim_opts *, double lr, int64_t t, double grad_scale);
uint64_t optim_adamw_run(const tm_optim_step *, const tm_optim_span *);
uint64_t optim_adamw_8bit_run(const tm_optim_step *, const tm_optim_span *);
void optim_sgd_prepare(tm_optim_step *, const tm_optim_opts *, double lr, int64_t t, double grad_scale);
uint64_t optim_sgd_run(const tm_optim_step *, const tm_optim_span *);
void optim_lion_prepare(tm_optim_step *, const tm_optim_opts *, double lr, int64_t t, double grad_scale);
uint64_t optim_lion_run(const tm_optim_step *, const tm_optim_span *);
void optim_adagrad_prepare(tm_optim_step *, const tm_optim_opts *, double lr, int64_t t, double grad_scale);
uint64_t optim_adagrad_run(const tm_optim_step *, const tm_optim_span *);
void optim_adafactor_prepare(tm_optim_step *, const tm_optim_opts *, double lr, int64_t t, double grad_scale);
/* Adafactor's states in the table. Those it does not keep are NULL. */
enum { ADAFACTOR_EXP_AVG, ADAFACTOR_ROW, ADAFACTOR_COLUMN, ADAFACTOR_FULL };

/* 8-bit states: the 256 codes in ascending order, and the nearest one (tests). */
const float *optim_codes(bool sign);
uint8_t optim_nearest_code(bool sign, float x);

#define OPTIM_TARGET_REF
#ifndef __x86_64__ /* rows of the table that are ref again, and never chosen */
#define OPTIM_TARGET_AVX2
#define OPTIM_TARGET_AVX512
#else
#define OPTIM_TARGET_AVX2 __attribute__((target("avx2")))
#ifdef __clang__ /* knows no width preference in the attribute */
#define OPTIM_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#else
#define OPTIM_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#endif
#endif
#define OPTIM_BODY static inline __attribute__((always_inline))

/* A span kernel's rows: `body` compiled once per instruction set, and the table of them. */
#define OPTIM_ROWS(ret, name, params, args)                                                                            \
    typedef ret(*name##_fn) params;                                                                                    \
    static ret name##_ref params {                                                                                     \
        return name##_body args;                                                                                       \
    }                                                                                                                  \
    OPTIM_TARGET_AVX2 static ret name##_avx2 params {                                                                  \
        return name##_body args;                                                                                       \
    }                                                                                                                  \
    OPTIM_TARGET_AVX512 static ret name##_avx512 params {                                                              \
        return name##_body args;                                                                                       \
    }                                                                                                                  \
    static const name##_fn name##_rows[OPTIM_ISAS] = {name##_ref, name##_avx2, name##_avx512};                         \
    static inline name##_fn name##_row(void) {                                                                         \
        return name##_rows[optim_isa_get()];                                                                           \
    }

#endif
