/* tidemill-bench kernels: each kernel of a layer, of the head and of the update, on a device, by what it has to move
 * and to multiply: seconds beside those that the device's memory (one large copy inside it) and the fastest product of
 * the same run would take. */
#include "device/device.h"
#include "kernels/gemm.h"
#include "bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 4096, ROUNDS = 3, MOST_CALLS = 2048, MOST_CASES = 32, PIECE = 4 << 20 };
static const uint64_t UPDATED = 16 << 20; /* elements of an update */

typedef struct args {
    const char *device, *precision;
    int64_t hidden, inner, heads, kv_heads, head_dim, vocab, seq, rows, milliseconds;
    bool json;
} args;

/* What kernels work on, in the order in which it lies in the arena. */
typedef enum region {
    X,      /* [tokens][hidden] */
    WEIGHT, /* the largest matrix */
    WIDE,   /* [tokens][2 inner], or queries, keys and values */
    D_WIDE,
    NARROW, /* [tokens][inner], or heads' outputs */
    D_NARROW,
    FLOATS,   /* [tokens][inner, hidden or a block of the vocabulary], fp32 */
    GRADIENT, /* of the largest matrix, fp32 */
    MASTER,   /* an update's: fp32, or two halves */
    EXP_AVG,
    EXP_AVG_SQ,
    UPDATE_GRADIENT,
    LSE,
    COEFFICIENT,
    IDS,
    ROW,
    STATE,
    WORK,
    PARTIAL,
    REGIONS
} region;

typedef struct bench bench;
typedef void kernel(bench *b);
typedef struct kase {
    const char *name;
    kernel *run;
    double bytes, flops, seconds;
} kase;
struct bench {
    const args *a;
    tm_device *d;
    tm_device_info info;
    const tm_kernel_table *k;
    tm_kernel_sizes sizes;
    tm_elem t;
    uint64_t tokens, block, at[REGIONS], bytes[REGIONS], all;
    char *memory; /* in place: the arena */
    tm_rope rope;
    uint64_t nonfinite;
    kase kase[MOST_CASES];
    size_t n;
    double moved, multiplied; /* a second: the limits */
};

static void *at(const bench *b, region r) {
    return b->memory ? b->memory + b->at[r] : tm_device_at(b->d, b->at[r]);
}

/* ---- kernels --------------------------------------------------------------------------------------------------- */

/* c[m][n] = a b: of tokens forward (the weight is stored [n][k]), of their gradient (fp32), of the weight's. */
static void product(bench *b, uint64_t m, uint64_t n, uint64_t k, region left, region right, region out, bool a_trans,
                    bool b_trans, tm_elem c_type, float beta) {
    b->k->gemm(&(tm_gemm_args){.m = m,
                               .n = n,
                               .k = k,
                               .alpha = 1,
                               .beta = beta,
                               .a = at(b, left),
                               .b = at(b, right),
                               .c = at(b, out),
                               .lda = a_trans ? m : k,
                               .ldb = b_trans ? k : n,
                               .ldc = n,
                               .a_type = b->t,
                               .b_type = b->t,
                               .c_type = c_type,
                               .a_trans = a_trans,
                               .b_trans = b_trans});
}
static uint64_t qkv_width(const args *a) {
    return (uint64_t)((a->heads + 2 * a->kv_heads) * a->head_dim);
}
static uint64_t o_width(const args *a) {
    return (uint64_t)(a->heads * a->head_dim);
}
#define HIDDEN ((uint64_t)b->a->hidden)
#define INNER ((uint64_t)b->a->inner)
static void product_qkv(bench *b) {
    product(b, b->tokens, qkv_width(b->a), HIDDEN, X, WEIGHT, WIDE, false, true, b->t, 0);
}
static void product_o(bench *b) {
    product(b, b->tokens, HIDDEN, o_width(b->a), NARROW, WEIGHT, X, false, true, b->t, 0);
}
static void product_gate_up(bench *b) {
    product(b, b->tokens, 2 * INNER, HIDDEN, X, WEIGHT, WIDE, false, true, b->t, 0);
}
static void product_down(bench *b) {
    product(b, b->tokens, HIDDEN, INNER, NARROW, WEIGHT, X, false, true, b->t, 0);
}
static void product_dx(bench *b) {
    product(b, b->tokens, HIDDEN, 2 * INNER, WIDE, WEIGHT, FLOATS, false, false, TM_ELEM_F32, 0);
}
static void product_dw(bench *b) {
    product(b, 2 * INNER, HIDDEN, b->tokens, WIDE, X, GRADIENT, true, false, TM_ELEM_F32, 0);
}
static void product_dw_added(bench *b) {
    product(b, 2 * INNER, HIDDEN, b->tokens, WIDE, X, GRADIENT, true, false, TM_ELEM_F32, 1);
}
static void product_logits(bench *b) {
    product(b, b->tokens, b->block, HIDDEN, X, WEIGHT, FLOATS, false, true, TM_ELEM_F32, 0);
}

static void copy(bench *b) {
    b->k->copy(at(b, D_WIDE), at(b, WIDE), b->bytes[WIDE]);
}
static void zero(bench *b) {
    b->k->zero(at(b, GRADIENT), b->bytes[GRADIENT]);
}
static void norm(bench *b) {
    b->k->norm_forward(&(tm_norm){.type = b->t,
                                  .rows = b->tokens,
                                  .n = HIDDEN,
                                  .x = at(b, X),
                                  .weight = at(b, WEIGHT),
                                  .eps = 1e-5F,
                                  .y = at(b, NARROW)});
}
static void norm_gradient(bench *b) {
    b->k->norm_backward(&(tm_norm){.type = b->t,
                                   .rows = b->tokens,
                                   .n = HIDDEN,
                                   .x = at(b, X),
                                   .weight = at(b, WEIGHT),
                                   .eps = 1e-5F,
                                   .dy = at(b, FLOATS),
                                   .dx = at(b, NARROW),
                                   .dx_add = true,
                                   .dw = at(b, GRADIENT),
                                   .dw_add = true,
                                   .workspace = at(b, WORK)});
}
static void rotation(bench *b) {
    b->k->rope_apply(&b->rope, b->t, 0, b->tokens, qkv_width(b->a), (uint32_t)(b->a->heads + b->a->kv_heads),
                     at(b, WIDE), (tm_positions){NULL, (uint32_t)b->a->seq, NULL}, false);
}
static void unit(bench *b) {
    b->k->glu_forward(&(tm_glu){.type = b->t, .rows = b->tokens, .width = INNER, .x = at(b, WIDE), .y = at(b, NARROW)});
}
static void unit_gradient(bench *b) {
    b->k->glu_backward(&(tm_glu){.type = b->t,
                                 .rows = b->tokens,
                                 .width = INNER,
                                 .x = at(b, WIDE),
                                 .dy = at(b, FLOATS),
                                 .dx = at(b, D_WIDE),
                                 .y = at(b, NARROW)});
}
static tm_attention attention_shape(const bench *b) {
    return (tm_attention){.type = b->t,
                          .rows = (uint32_t)b->a->rows,
                          .seq = (uint32_t)b->a->seq,
                          .padded = b->tokens,
                          .heads = (uint32_t)b->a->heads,
                          .kv_heads = (uint32_t)b->a->kv_heads,
                          .head_dim = (uint32_t)b->a->head_dim,
                          .scale = (float)(1 / sqrt((double)b->a->head_dim))};
}
static tm_attention attention_of(bench *b) {
    tm_attention x = attention_shape(b);
    x.o = at(b, NARROW), x.lse = at(b, LSE), x.d_o = at(b, D_NARROW);
    tm_attention_fuse(&x, at(b, WIDE), at(b, D_WIDE));
    x.workspace = at(b, WORK), x.rope = &b->rope;
    return x;
}
static void attention(bench *b) {
    tm_attention x = attention_of(b);
    x.rope = NULL;
    b->k->attention_forward(&x);
}
static void attention_gradient(bench *b) {
    tm_attention x = attention_of(b);
    b->k->attention_backward(&x);
}
static void embedding(bench *b) {
    b->k->embed_forward(&(tm_embed){.type = b->t,
                                    .rows = b->tokens,
                                    .padded = b->tokens,
                                    .n = HIDDEN,
                                    .ids = at(b, IDS),
                                    .first = 0,
                                    .count = (uint32_t)b->block,
                                    .weight = at(b, WEIGHT),
                                    .out = at(b, NARROW),
                                    .clear = true});
}
static void embedding_gradient(bench *b) {
    b->k->embed_backward(&(tm_embed){.type = b->t,
                                     .rows = b->tokens,
                                     .n = HIDDEN,
                                     .ids = at(b, IDS),
                                     .first = 0,
                                     .count = (uint32_t)b->block,
                                     .dout = at(b, X),
                                     .grad = at(b, GRADIENT),
                                     .grad_add = true});
}
static void head(bench *b) {
    b->k->head_update(&(tm_head){.rows = b->tokens,
                                 .row = at(b, ROW),
                                 .first = 0,
                                 .count = (uint32_t)b->block,
                                 .logits = at(b, FLOATS),
                                 .ld = b->block,
                                 .labels = at(b, IDS),
                                 .state = at(b, STATE)});
}
static void head_gradient(bench *b) {
    b->k->head_gradient(&(tm_head){.type = b->t,
                                   .rows = b->tokens,
                                   .row = at(b, ROW),
                                   .first = 0,
                                   .count = (uint32_t)b->block,
                                   .logits = at(b, FLOATS),
                                   .ld = b->block,
                                   .labels = at(b, IDS),
                                   .state = at(b, STATE),
                                   .coefficient = at(b, COEFFICIENT)});
}
static void gradient_finish(bench *b) {
    b->k->grad_finish(b->t, at(b, EXP_AVG), at(b, UPDATE_GRADIENT), UPDATED, at(b, PARTIAL));
}
static void update(bench *b) {
    char *master = at(b, MASTER);
    tm_adamw_args u = {.grad = at(b, UPDATE_GRADIENT),
                       .exp_avg = at(b, EXP_AVG),
                       .exp_avg_sq = at(b, EXP_AVG_SQ),
                       .n = UPDATED,
                       .grad_type = b->t,
                       .grad_scale = 1,
                       .decay = 0.999F,
                       .one_minus_beta1 = 0.1F,
                       .beta1 = 0.9F,
                       .beta2 = 0.999F,
                       .one_minus_beta2 = 0.001F,
                       .bc2_sqrt = 0.5F,
                       .eps = 1e-8F,
                       .neg_step_size = -1e-4F};
    if (b->t == TM_ELEM_F32)
        u.weight = (float *)(void *)master;
    else
        u.hi = (uint16_t *)(void *)master, u.lo = (uint16_t *)(void *)(master + UPDATED * sizeof(uint16_t));
    b->k->adamw(&u, &b->nonfinite);
}

/* ---- what they move and multiply ------------------------------------------------------------------------------- */

static void add(bench *b, const char *name, kernel *run, double bytes, double flops) {
    b->kase[b->n++] = (kase){.name = name, .run = run, .bytes = bytes, .flops = flops};
}
/* Operands once, the result once. */
static void add_product(bench *b, const char *name, kernel *run, double m, double n, double k, double c_bytes) {
    double e = (double)tm_elem_bytes(b->t);
    add(b, name, run, e * (m * k + k * n) + c_bytes * m * n, 2 * m * n * k);
}

static void add_products(bench *b) {
    double T = (double)b->tokens, h = (double)b->a->hidden, f = (double)b->a->inner, e = (double)tm_elem_bytes(b->t);
    add_product(b, "product: queries, keys, values", product_qkv, T, (double)qkv_width(b->a), h, e);
    add_product(b, "product: attention's output", product_o, T, h, (double)o_width(b->a), e);
    add_product(b, "product: gate and up", product_gate_up, T, 2 * f, h, e);
    add_product(b, "product: down", product_down, T, h, f, e);
    add_product(b, "product: gradient of tokens", product_dx, T, h, 2 * f, 4);
    add_product(b, "product: gradient of a weight", product_dw, 2 * f, h, T, 4);
    add_product(b, "the same, added to what is there", product_dw_added, 2 * f, h, T, 8);
    add_product(b, "product: logits", product_logits, T, (double)b->block, h, 4);
}

/* Of attention, the products of pairs that see each other: 2 forward, 5 backward. */
static void add_rows(bench *b) {
    const args *a = b->a;
    double T = (double)b->tokens, h = (double)a->hidden, f = (double)a->inner, e = (double)tm_elem_bytes(b->t);
    double qkv = T * (double)qkv_width(a), o = T * (double)o_width(a), seq = (double)a->seq;
    double pairs = (double)a->rows * seq * (seq + 1) / 2 * (double)o_width(a);
    add(b, "norm", norm, 2 * e * T * h, 0);
    add(b, "norm's gradient", norm_gradient, (4 * e + 8) * T * h, 0);
    add(b, "rotation", rotation, 2 * e * T * (double)((a->heads + a->kv_heads) * a->head_dim), 0);
    add(b, "gated unit", unit, 3 * e * T * f, 0);
    add(b, "gated unit's gradient", unit_gradient, (5 * e + 4) * T * f, 0);
    add(b, "attention", attention, e * (qkv + o), 2 * 2 * pairs);
    add(b, "attention's gradient", attention_gradient, e * (2 * qkv + 3 * o), 5 * 2 * pairs);
    add(b, "embedding", embedding, 2 * e * T * h, 0);
    add(b, "embedding's gradient", embedding_gradient, (e + 8) * T * h, 0);
    add(b, "head: log-sum-exp", head, 4 * T * (double)b->block, 0);
    add(b, "head: logits' gradient", head_gradient, (4 + e) * T * (double)b->block, 0);
}

static void add_all(bench *b) {
    double n = (double)UPDATED, e = (double)tm_elem_bytes(b->t);
    add(b, "copy inside the device", copy, 2 * (double)b->bytes[WIDE], 0); /* the first: it is the limit */
    add(b, "zero", zero, (double)b->bytes[GRADIENT], 0);
    add_products(b);
    add_rows(b);
    if (b->k->grad_finish) add(b, "gradient's rounding and norm", gradient_finish, (4 + e) * n, 0);
    if (b->k->adamw) add(b, "AdamW", update, (2 * 12 + e) * n, 0);
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */

static uint64_t norm_workspace(const bench *b) {
    uint64_t (*f)(uint64_t, uint64_t) = b->sizes.norm_workspace ? b->sizes.norm_workspace : tm_norm_workspace;
    return f(b->tokens, (uint64_t)b->a->hidden);
}
static uint64_t attention_workspace(const bench *b) {
    tm_attention x = attention_shape(b);
    uint64_t (*f)(const tm_attention *, bool) =
        b->sizes.attention_workspace ? b->sizes.attention_workspace : tm_attention_workspace;
    return tm_max_u64(f(&x, false), f(&x, true));
}

static void lay_out(bench *b) {
    const args *a = b->a;
    uint64_t T = b->tokens, h = (uint64_t)a->hidden, f = (uint64_t)a->inner, e = tm_elem_bytes(b->t);
    uint64_t wide = tm_max_u64(2 * f, qkv_width(a)), narrow = tm_max_u64(f, tm_max_u64(h, o_width(a)));
    uint64_t matrix = tm_max_u64(h * tm_max_u64(wide, b->block), h * o_width(a));
    const uint64_t bytes[REGIONS] = {[X] = T * h * e,
                                     [WEIGHT] = matrix * e,
                                     [WIDE] = T * wide * e,
                                     [D_WIDE] = T * wide * e,
                                     [NARROW] = T * narrow * e,
                                     [D_NARROW] = T * o_width(a) * e,
                                     [FLOATS] = T * tm_max_u64(narrow, b->block) * 4,
                                     [GRADIENT] = matrix * 4,
                                     [MASTER] = UPDATED * 4,
                                     [EXP_AVG] = UPDATED * 4,
                                     [EXP_AVG_SQ] = UPDATED * 4,
                                     [UPDATE_GRADIENT] = UPDATED * e,
                                     [LSE] = T * (uint64_t)a->heads * 4,
                                     [COEFFICIENT] = T * 4,
                                     [IDS] = T * 4,
                                     [ROW] = T * 4,
                                     [STATE] = T * sizeof(tm_head_state),
                                     [WORK] = tm_max_u64(norm_workspace(b), attention_workspace(b)),
                                     [PARTIAL] = UPDATED / 4096};
    for (int r = 0; r < REGIONS; r++) {
        b->bytes[r] = bytes[r];
        b->at[r] = b->all;
        b->all += tm_round_up(bytes[r], ALIGN);
    }
}

static bool in_floats(const bench *b, int r) {
    return r >= FLOATS && r <= COEFFICIENT && r != UPDATE_GRADIENT ? true : b->t == TM_ELEM_F32;
}

/* `bytes` of a region from `first` on: numbers in (-1, 1), ids of the vocabulary's block, rows in order, zeros. */
static void fill(const bench *b, int r, uint64_t first, void *to, uint64_t bytes) {
    uint64_t e = r >= IDS || in_floats(b, r) ? 4 : tm_elem_bytes(b->t);
    memset(to, 0, bytes);
    if (r >= STATE) return;
    for (uint64_t i = 0, n = first / e; i < bytes / e; i++, n++) {
        float x = (float)((n * 7 + n / 61) % 61) / 32 - 1;
        if (r == EXP_AVG_SQ) x = fabsf(x);
        if (r == IDS)
            ((int32_t *)to)[i] = (int32_t)(n * 7919 % b->block);
        else if (r == ROW)
            ((uint32_t *)to)[i] = (uint32_t)n;
        else if (e == 4)
            ((float *)to)[i] = x;
        else
            tm_narrow(&x, (uint16_t *)to + i, 1);
    }
}

static tm_status fill_all(bench *b) {
    char *piece = b->memory ? NULL : tm_malloc(PIECE);
    tm_status rc = b->memory || piece ? TM_OK : tm_nomem(PIECE);
    for (int r = 0; r < REGIONS && rc == TM_OK; r++)
        for (uint64_t done = 0; done < b->bytes[r] && rc == TM_OK; done += PIECE) {
            uint64_t n = tm_min_u64(PIECE, b->bytes[r] - done);
            tm_event e = {0};
            fill(b, r, done, piece ? piece : b->memory + b->at[r] + done, n);
            if (!piece) continue;
            const tm_device_transfer t = {.host = piece, .offset = b->at[r] + done, .bytes = tm_round_up(n, ALIGN)};
            rc = tm_device_copy(b->d, &t, &e);
            if (rc == TM_OK) rc = tm_event_wait(b->d, &e);
        }
    tm_free(piece);
    return rc;
}

/* ---- measuring ------------------------------------------------------------------------------------------------- */

typedef struct calls {
    bench *b;
    kernel *run;
    unsigned n;
} calls;
static tm_status call(void *ctx) {
    calls *c = ctx;
    for (unsigned i = 0; i < c->n; i++) c->run(c->b);
    return TM_OK;
}

/* From the submission on, which is little beside many calls: when the first of them began is not known. */
static tm_status time_calls(bench *b, kernel *run, unsigned n, double *seconds) {
    calls c = {b, run, n};
    const tm_device_frame frame = {0, b->all};
    const tm_device_op op = {.frame = &frame, .n = 1, .fn = call, .ctx = &c};
    tm_event e = {0};
    uint64_t began = tm_now_ns();
    if (b->memory) {
        TM_TRY(call(&c));
        e.end_ns = tm_now_ns();
    } else {
        TM_TRY(tm_device_submit(b->d, &op, &e));
        TM_TRY(tm_event_wait(b->d, &e));
    }
    *seconds = 1e-9 * (double)tm_max_u64(1, e.end_ns - began) / n;
    return TM_OK;
}

/* After one that does not count (a library chooses its algorithm), the fastest of ROUNDS. */
static tm_status measure(bench *b, kase *k) {
    double once, wanted = 1e-3 * (double)b->a->milliseconds / ROUNDS;
    TM_TRY(time_calls(b, k->run, 1, &once));
    TM_TRY(time_calls(b, k->run, 1, &once));
    unsigned n = wanted > once ? (unsigned)fmin(MOST_CALLS, wanted / once) : 1;
    k->seconds = once;
    for (int i = 0; i < ROUNDS; i++) {
        double seconds;
        TM_TRY(time_calls(b, k->run, n, &seconds));
        k->seconds = i ? fmin(k->seconds, seconds) : seconds;
    }
    return TM_OK;
}

static tm_status measure_all(bench *b) {
    for (size_t i = 0; i < b->n; i++) TM_TRY(measure(b, &b->kase[i]));
    b->moved = b->kase[0].bytes / b->kase[0].seconds;
    for (size_t i = 0; i < b->n; i++) b->multiplied = fmax(b->multiplied, b->kase[i].flops / b->kase[i].seconds);
    return TM_OK;
}

/* Of the time that memory and products take at their limits, whichever is longer. */
static double of_limit(const bench *b, const kase *k) {
    return fmax(k->bytes / b->moved, k->flops / b->multiplied) / k->seconds;
}

/* ---- results --------------------------------------------------------------------------------------------------- */

static void print_table(const bench *b) {
    printf("device   %s, %s\n", b->a->device, b->info.about);
    printf(
        "shape    %llu tokens (rows of %lld), hidden %lld, inner %lld, heads %lld of %lld (%lld of keys and values), "
        "%llu of the vocabulary, %s\n",
        (unsigned long long)b->tokens, (long long)b->a->seq, (long long)b->a->hidden, (long long)b->a->inner,
        (long long)b->a->heads, (long long)b->a->head_dim, (long long)b->a->kv_heads, (unsigned long long)b->block,
        b->a->precision);
    printf("limit    memory %.1f GB/s (the copy), products %.2f Tflop/s (the fastest below)\n\n", b->moved * 1e-9,
           b->multiplied * 1e-12);
    printf("%-34s %12s %10s %10s %9s\n", "kernel", "seconds", "GB/s", "Tflop/s", "of limit");
    for (size_t i = 0; i < b->n; i++) {
        const kase *k = &b->kase[i];
        printf("%-34s %12.6f %10.1f ", k->name, k->seconds, k->bytes / k->seconds * 1e-9);
        if (k->flops > 0)
            printf("%10.2f", k->flops / k->seconds * 1e-12);
        else
            printf("%10s", "");
        printf(" %9.2f\n", of_limit(b, k));
    }
}

static tm_status print_kernels_json(const bench *b) {
    tm_json_writer w;
    tm_cli_json(&w, 0);
    tm_jw_field_str(&w, "device", b->a->device);
    tm_jw_field_str(&w, "about", b->info.about);
    tm_jw_field_str(&w, "precision", b->a->precision);
    tm_jw_field_uint(&w, "tokens", b->tokens);
    tm_jw_field_double(&w, "memory_bytes_per_second", b->moved);
    tm_jw_field_double(&w, "product_flops_per_second", b->multiplied);
    tm_jw_field_array(&w, "results");
    for (size_t i = 0; i < b->n; i++) {
        const kase *k = &b->kase[i];
        tm_jw_object(&w);
        tm_jw_field_str(&w, "kernel", k->name);
        tm_jw_field_double(&w, "seconds", k->seconds);
        tm_jw_field_double(&w, "bytes", k->bytes);
        tm_jw_field_double(&w, "flops", k->flops);
        tm_jw_field_double(&w, "of_limit", of_limit(b, k));
        tm_jw_object_end(&w);
    }
    tm_jw_array_end(&w);
    return tm_cli_print_json(&w);
}

/* ---- the command ----------------------------------------------------------------------------------------------- */

static tm_status open_device(bench *b) {
    tm_device_traits traits;
    TM_TRY(tm_device_known(b->a->device, &traits));
    TM_TRY(tm_device_look_for(b->a->device, &b->info));
    b->sizes = traits.sizes;
    b->block = tm_min_u64((uint64_t)b->a->vocab, traits.sizes.vocab_block ? traits.sizes.vocab_block : 2048);
    lay_out(b);
    if (b->info.free_bytes < traits.fixed_bytes || b->info.free_bytes - traits.fixed_bytes < b->all) {
        char x[32], y[32];
        return tm_fail(TM_EBUDGET, "operands of this shape take %s, and %s are free; use fewer --rows",
                       tm_format_size(b->all, x, sizeof x), tm_format_size(b->info.free_bytes, y, sizeof y));
    }
    TM_TRY(tm_device_open(&b->d, &(tm_device_opts){.name = b->a->device, .arena_bytes = b->all}));
    b->k = tm_device_kernels(b->d) ? tm_device_kernels(b->d) : tm_kernels_host();
    if (!traits.in_place) return TM_OK;
    b->memory = aligned_alloc(ALIGN, b->all);
    return b->memory ? TM_OK : tm_nomem(b->all);
}

static tm_status run_device(bench *b) {
    TM_TRY(open_device(b));
    tm_rope_frequencies(&b->rope, (uint32_t)b->a->head_dim, 1e4);
    TM_TRY(tm_rope_fill(&b->rope, (uint32_t)b->a->seq));
    TM_TRY(fill_all(b));
    add_all(b);
    return measure_all(b);
}

static tm_status run(const args *a, tm_elem t) {
    static bench b;
    b = (bench){.a = a, .t = t, .tokens = (uint64_t)(a->rows * a->seq)};
    tm_status rc = tm_kernels_init(0, t);
    if (rc == TM_OK) rc = run_device(&b);
    if (rc != TM_OK) {
        tm_error why = *tm_error_get();
        tm_error_clear();
        rc = tm_fail(rc, "device \"%s\": %s", a->device, why.text);
    }
    tm_rope_free(&b.rope);
    tm_device_close(b.d);
    free(b.memory);
    tm_kernels_close();
    if (rc == TM_OK && a->json) rc = print_kernels_json(&b);
    if (rc == TM_OK && !a->json) print_table(&b);
    return rc;
}

/* -1: all right; else the exit status. */
static int check_args(const args *a) {
    static const char name[] = "kernels";
    const int64_t size[] = {a->hidden, a->inner, a->heads, a->kv_heads, a->head_dim, a->vocab, a->seq, a->rows};
    for (size_t i = 0; i < TM_COUNT(size); i++)
        if (size[i] < 1 || size[i] > 1 << 20) return tm_cli_wrong(name, "sizes are 1 to 1048576");
    if (a->heads % a->kv_heads) return tm_cli_wrong(name, "--heads takes a multiple of --kv-heads");
    if (a->head_dim % 2 || a->head_dim > 256)
        return tm_cli_wrong(name, "--head-dim takes an even number from 2 to 256");
    if (a->rows * a->seq > 1 << 21) return tm_cli_wrong(name, "--rows times --seq is 2097152 at most");
    if (a->milliseconds < 0 || a->milliseconds > 60000) return tm_cli_wrong(name, "--milliseconds takes 0 to 60000");
    if (strcmp(a->precision, "bf16") && strcmp(a->precision, "fp32"))
        return tm_cli_wrong(name, "--precision takes bf16 or fp32, not '%s'", a->precision);
    return -1;
}

int bench_kernels(int argc, char **argv) {
    args a = {.device = "cuda:0",
              .precision = "bf16",
              .hidden = 2048,
              .inner = 5632,
              .heads = 32,
              .kv_heads = 32,
              .head_dim = 64,
              .vocab = 32000,
              .seq = 2048,
              .rows = 4,
              .milliseconds = 60};
    const tm_opt opts[] = {
        TM_OPTION("device", TM_OPT_STRING, &a.device, "NAME", "cuda:N (default cuda:0), cpu-arena or cpu"),
        TM_OPTION("precision", TM_OPT_STRING, &a.precision, "TYPE", "bf16 (default) or fp32"),
        TM_OPTION("hidden", TM_OPT_INT, &a.hidden, "N", "columns of a token (2048)"),
        TM_OPTION("inner", TM_OPT_INT, &a.inner, "N", "columns inside the gated unit (5632)"),
        TM_OPTION("heads", TM_OPT_INT, &a.heads, "N", "(32)"),
        TM_OPTION("kv-heads", TM_OPT_INT, &a.kv_heads, "N", "of keys and values (32)"),
        TM_OPTION("head-dim", TM_OPT_INT, &a.head_dim, "N", "(64)"),
        TM_OPTION("vocab", TM_OPT_INT, &a.vocab, "N", "(32000), of which one block is measured"),
        TM_OPTION("seq", TM_OPT_INT, &a.seq, "N", "tokens of a row (2048)"),
        TM_OPTION("rows", TM_OPT_INT, &a.rows, "N", "(4)"),
        TM_OPTION("milliseconds", TM_OPT_INT, &a.milliseconds, "N", "for each kernel (60)"),
        TM_FLAG("json", &a.json, "print one JSON object"),
    };
    const tm_cli cli = {
        .usage = "kernels [--device NAME] [--precision TYPE] [--hidden N] [--inner N] ... [--json]",
        .about = "Times each kernel of a layer, of the head and of the update by itself, on operands of this shape, "
                 "beside what the\ndevice can do: seconds that its memory, at the rate of a copy inside it, and its "
                 "products, at the rate of the\nfastest here, would take for the same bytes and operations, whichever "
                 "is longer. What is far below 1 and takes\nlong is where a step loses its time. Small operands stay "
                 "in a cache, and can be above it.",
        .example =
            "tidemill-bench kernels --device cuda:0\n"
            "tidemill-bench kernels --device cpu --hidden 576 --inner 1536 --heads 9 --kv-heads 3 --seq 256 --rows 1",
        TM_CLI_OPTIONS(opts),
    };
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    rc = check_args(&a);
    if (rc >= 0) return rc;
    return run(&a, strcmp(a.precision, "fp32") ? TM_ELEM_BF16 : TM_ELEM_F32) == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
}
