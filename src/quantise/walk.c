/* The walk: rows of ids through the model, all of them through a block before the next. What lies between two blocks is
 * in `x`; of the rest there is that of one row. */
#include "quantise/walk_internal.h"

#include <string.h>

enum { SLOT_IN, SLOT_OUT };

/* ---- sizes ---- */

static uint64_t longest_tokens(const walk *w) {
    return tm_round_up(w->o.rows->longest, 64);
}

/* Of the slots that only the unit has. */
static uint64_t slots_bytes(const walk *w, uint32_t unit) {
    const tm_unit *u = tm_model_unit(w->m, unit);
    uint64_t bytes = 0;
    for (uint32_t s = SLOT_OUT + 1; s < TM_MAX_SLOTS; s++)
        bytes += tm_round_up(u->slot[s].bytes * longest_tokens(w), 64);
    return bytes;
}

static uint64_t workspace_bytes(const walk *w, uint32_t unit) {
    uint64_t most = 0;
    for (uint32_t s = 0; s < tm_model_unit(w->m, unit)->n_stages; s++)
        most = tm_max_u64(most, tm_stage_workspace(w->m, unit, s, false, 1, w->o.rows->longest));
    return most;
}

static uint64_t stage_weights(const walk *w, uint32_t unit, uint32_t stage) {
    const tm_stage *s = &tm_model_unit(w->m, unit)->stage[stage];
    uint64_t bytes = 0;
    for (uint32_t p = 0; p < s->n_parts; p++)
        bytes += tm_round_up(tm_model_part(w->m, s->part[p])->elements * tm_dtype_bytes(w->o.compute), 64);
    return bytes;
}

typedef struct walk_sizes {
    uint64_t weights, slots, workspace, products, sums, parts, row;
} walk_sizes;

static tm_status measure(walk *w, walk_sizes *z) {
    *z = (walk_sizes){.row = longest_tokens(w) * w->x.token_bytes};
    for (uint32_t s = 0; s < tm_model_unit(w->m, 0)->n_stages; s++)
        z->weights = tm_max_u64(z->weights, stage_weights(w, 0, s));
    z->workspace = workspace_bytes(w, 0);
    for (uint32_t b = 0; b < walk_blocks(w); b++) {
        uint64_t sums = 0, products = 0;
        TM_TRY(walk_describe(w, b + 1));
        for (uint32_t i = 0; i < w->n_inputs; i++) {
            sums += 2 * w->input[i].width * sizeof(double);
            products += w->o.products ? w->input[i].width * w->input[i].width * sizeof(float) : 0;
        }
        z->sums = tm_max_u64(z->sums, sums);
        z->products = tm_max_u64(z->products, products);
        z->weights = tm_max_u64(z->weights, walk_unit_bytes(w, b + 1));
        z->slots = tm_max_u64(z->slots, slots_bytes(w, b + 1));
        z->workspace = tm_max_u64(z->workspace, workspace_bytes(w, b + 1));
        z->parts = tm_max_u64(z->parts, tm_model_unit(w->m, b + 1)->n_parts);
    }
    return TM_OK;
}

/* Without the activations of all rows. */
static uint64_t held_bytes(const walk *w, const walk_sizes *z) {
    return z->weights + z->slots + z->workspace + z->products + z->sums + z->parts * sizeof(uint64_t) + 2 * z->row +
           longest_tokens(w) * sizeof(int32_t) + WALK_PIECE * sizeof(float) + w->o.other_bytes;
}

static tm_status allocate(walk *w, const walk_sizes *z) {
    w->weights = tm_malloc(z->weights);
    w->slots = tm_malloc(z->slots + 1);
    w->workspace = tm_malloc(z->workspace + 64);
    w->row_in = tm_malloc(z->row);
    w->row_out = tm_malloc(z->row);
    w->values = tm_malloc(WALK_PIECE * sizeof *w->values);
    w->sums = tm_malloc(z->sums);
    w->products = z->products ? tm_malloc(z->products) : NULL;
    w->ids = tm_malloc(longest_tokens(w) * sizeof *w->ids);
    w->part_at = tm_calloc(z->parts + 1, sizeof *w->part_at);
    bool all = w->weights && w->slots && w->workspace && w->row_in && w->row_out && w->values && w->sums && w->ids &&
               w->part_at && (w->products || !z->products);
    return all ? TM_OK : tm_nomem(held_bytes(w, z));
}

/* ---- a row through a stage ---- */

typedef struct stage_run {
    tm_micro_batch batch;
    tm_stage_args args;
    uint32_t written; /* slots */
} stage_run;

static void begin_row(walk *w, stage_run *run, uint32_t unit, uint32_t row) {
    const tm_unit *u = tm_model_unit(w->m, unit);
    uint32_t n = id_rows_length(w->o.rows, row), tokens = (uint32_t)tm_round_up(n, 64);
    char *at = w->slots;
    memcpy(w->ids, w->o.rows->ids + w->o.rows->first[row], n * sizeof *w->ids);
    memset(w->ids + n, 0, (tokens - n) * sizeof *w->ids);
    *run = (stage_run){.batch = {.rows = 1, .seq = n, .tokens = tokens, .ids = w->ids}};
    run->args = (tm_stage_args){.model = w->m,
                                .unit = unit,
                                .workspace = (void *)(uintptr_t)tm_round_up((uint64_t)(uintptr_t)w->workspace, 64)};
    run->args.slot[SLOT_IN] = w->row_in;
    run->args.slot[SLOT_OUT] = w->row_out;
    for (uint32_t s = SLOT_OUT + 1; s < TM_MAX_SLOTS; s++) {
        if (!u->slot[s].bytes) continue;
        run->args.slot[s] = at;
        at += tm_round_up(u->slot[s].bytes * longest_tokens(w), 64);
    }
}

static tm_status run_stage(stage_run *run, uint32_t stage) {
    const tm_stage *s = &tm_model_unit(run->args.model, run->args.unit)->stage[stage];
    run->args.batch = &run->batch;
    run->args.stage = stage;
    run->args.slot_fresh = 0;
    for (uint32_t i = 0; i < s->n_forward; i++) {
        uint32_t bit = 1U << s->forward[i].slot;
        if (s->forward[i].access == TM_READ) continue;
        if (s->forward[i].access == TM_UPDATE && !(run->written & bit)) run->args.slot_fresh |= bit;
        run->written |= bit;
    }
    return tm_stage_forward(&run->args);
}

/* ---- blocks ---- */

static void set_weights(const walk *w, stage_run *run, uint32_t stage) {
    const tm_unit *u = tm_model_unit(w->m, w->unit);
    const tm_stage *s = &u->stage[stage];
    for (uint32_t p = 0; p < s->n_parts; p++) run->args.weight[p] = w->weights + w->part_at[s->part[p] - u->first_part];
}

static tm_status run_row(walk *w, uint32_t row, bool sum) {
    stage_run run;
    begin_row(w, &run, w->unit, row);
    for (uint32_t s = 0; s < tm_model_unit(w->m, w->unit)->n_stages; s++) {
        walk_taking taking = {.type = walk_elem(w)};
        for (uint32_t i = 0; i < w->n_inputs && sum; i++)
            if (w->input[i].stage == s) taking.in = &w->input[i];
        run.args.take_input = taking.in ? walk_add_input : NULL;
        run.args.take_ctx = &taking;
        set_weights(w, &run, s);
        TM_TRY(run_stage(&run, s));
    }
    return TM_OK;
}

static double operations(const walk *w, uint32_t unit, double tokens, bool sum) {
    const tm_unit *u = tm_model_unit(w->m, unit);
    double n = 0;
    for (uint32_t p = 0; p < u->n_parts; p++) n += (double)tm_model_part(w->m, u->first_part + p)->elements;
    for (uint32_t i = 0; i < w->n_inputs && sum && w->o.products; i++)
        n += (double)w->input[i].width * (double)w->input[i].width;
    return 2 * n * tokens;
}

/* Seconds of all blocks. */
static tm_status count_work(walk *w) {
    w->total = 0;
    for (uint32_t b = 0; b < walk_blocks(w); b++) {
        TM_TRY(walk_describe(w, b + 1));
        double n = operations(w, b + 1, (double)w->tokens, true);
        if (w->o.twice) n += operations(w, b + 1, (double)w->tokens, false);
        w->total += n / w->rate;
        if (w->o.work) w->total += w->o.work(w) / w->rate_f32;
    }
    return TM_OK;
}

static tm_status passed(walk *w, double seconds) {
    w->done += seconds;
    return w->o.at ? w->o.at(w->o.ctx, w->done < w->total ? w->done / w->total : 1) : TM_OK;
}

tm_status walk_did(walk *w, double n) {
    return passed(w, n / w->rate_f32);
}

tm_status walk_pass(walk *w, bool sum, bool advance) {
    const id_rows *rows = w->o.rows;
    for (uint32_t r = 0; r < rows->n; r++) {
        uint64_t first = rows->first[r], n = id_rows_length(rows, r), bytes = w->x.token_bytes;
        TM_TRY(activations_read(&w->x, first, n, w->row_in));
        memset(w->row_in + n * bytes, 0, (tm_round_up(n, 64) - n) * bytes);
        TM_TRY(run_row(w, r, sum));
        if (advance) TM_TRY(activations_write(&w->x, first, n, w->row_out));
        TM_TRY(passed(w, operations(w, w->unit, (double)n, sum) / w->rate));
    }
    return advance ? activations_turn(&w->x) : TM_OK;
}

/* ---- the embedding ---- */

/* A stage of it, which may be some rows of a vocabulary; each adds what it knows. */
static tm_status embed_stage(walk *w, uint32_t stage) {
    const tm_stage *s = &tm_model_unit(w->m, 0)->stage[stage];
    const id_rows *rows = w->o.rows;
    const void *weight[TM_MAX_STAGE_PARTS];
    char *at = w->weights;
    for (uint32_t p = 0; p < s->n_parts; p++) {
        weight[p] = at;
        TM_TRY(walk_load_part(w, s->part[p], at));
        at += tm_round_up(tm_model_part(w->m, s->part[p])->elements * tm_dtype_bytes(w->o.compute), 64);
    }
    for (uint32_t r = 0; r < rows->n; r++) {
        uint64_t first = rows->first[r], n = id_rows_length(rows, r);
        stage_run run;
        begin_row(w, &run, 0, r);
        if (stage > 0) TM_TRY(activations_read(&w->x, first, n, w->row_out));
        run.written = stage > 0 ? 1U << SLOT_OUT : 0;
        memcpy(run.args.weight, weight, sizeof weight);
        TM_TRY(run_stage(&run, stage));
        TM_TRY(activations_write(&w->x, first, n, w->row_out));
    }
    return activations_turn(&w->x);
}

/* ---- the whole ---- */

static bool source_has(void *source, const char *name) {
    return tm_source_find(source, name) >= 0;
}

static tm_status make_model(walk *w) {
    tm_model_config c;
    size_t len;
    const char *json = tm_source_config(w->o.src, &len);
    const tm_model_roles none = {.learns = NULL}; /* every matrix by itself */
    TM_TRY(tm_model_config_parse(&c, json, len, "config.json"));
    (void)tm_model_find_names(&c, source_has, (void *)(uintptr_t)w->o.src);
    TM_TRY(tm_model_check_positions(&c, w->o.rows->longest, "rows to calibrate on"));
    TM_TRY(tm_model_create_roles(&w->m, &c, w->o.compute, &none));
    tm_model_set_positions(w->m, w->o.rows->longest);
    bool shared = false;
    for (uint32_t u = 0; u < tm_model_units(w->m); u++)
        for (uint32_t k = 0; k < TM_MAX_SLOTS; k++) shared |= tm_model_unit(w->m, u)->slot[k].bridged;
    /* Gemma 4 norms values as well: what is folded into v would not come out of o. */
    if (shared || strncmp(c.model_type, "gemma4", 6) == 0)
        return tm_fail(TM_EUNSUPPORTED,
                       "%s: blocks of %s are not calibrated; leave --calibrate out, or take a type without it",
                       tm_source_path(w->o.src), c.model_type);
    return TM_OK;
}

uint32_t walk_blocks(const walk *w) {
    return tm_model_units(w->m) - 2;
}

/* Operations a second of products like those of the walk, from one of them; buffers are there. */
static double rate_of(walk *w, tm_elem type) {
    enum { ROWS = 512, TIMES = 3 };
    uint64_t n = tm_min_u64(tm_model_get_config(w->m)->hidden_size, longest_tokens(w) / 2), rows = tm_min_u64(ROWS, n);
    tm_gemm_args g = {.m = rows, .n = n, .k = n, .alpha = 1, .b_trans = true, .lda = n, .ldb = n, .ldc = n};
    g.a = w->row_in, g.b = w->row_in, g.c = w->row_out, g.a_type = g.b_type = g.c_type = type;
    uint64_t least = UINT64_MAX;
    memset(w->row_in, 0, longest_tokens(w) * w->x.token_bytes);
    for (int i = 0; i < TIMES; i++) {
        uint64_t began = tm_now_ns();
        tm_gemm(&g);
        least = tm_min_u64(least, tm_max_u64(tm_now_ns() - began, 1));
    }
    return 2e9 * (double)rows * (double)n * (double)n / (double)least;
}

static tm_status choose_place(walk *w, const walk_sizes *z, uint64_t fixed) {
    uint64_t held = held_bytes(w, z), all = w->x.token_bytes * w->tokens;
    char a[32], b[32], time[24];
    if (held > w->o.room_bytes)
        return tm_fail(TM_EBUDGET, "calibrating needs a host budget of %llu bytes (%s); shorter rows need less",
                       (unsigned long long)(held + fixed), tm_format_size(held + fixed, a, sizeof a));
    bool in_memory = all <= w->o.room_bytes - held;
    TM_TRY(allocate(w, z));
    w->rate = rate_of(w, walk_elem(w));
    w->rate_f32 = rate_of(w, TM_ELEM_F32);
    TM_TRY(count_work(w));
    tm_log(TM_LOG_INFO, "calibrating on %u rows, %llu tokens: %s of memory, least %s, about %s%s", w->o.rows->n,
           (unsigned long long)w->tokens, tm_format_size(held + fixed + (in_memory ? all : 0), a, sizeof a),
           tm_format_size(held + fixed, b, sizeof b), tm_format_left(w->total, time, sizeof time),
           in_memory ? "" : "; activations in a file");
    return activations_open(&w->x, w->x.token_bytes, w->tokens, in_memory, w->o.path);
}

tm_status walk_open(walk *w, const walk_opts *o, uint64_t fixed) {
    walk_sizes z;
    *w = (walk){.o = *o, .tokens = o->rows->first[o->rows->n]};
    TM_TRY(make_model(w));
    w->x.token_bytes = tm_model_get_config(w->m)->hidden_size * tm_dtype_bytes(o->compute);
    TM_TRY(measure(w, &z));
    TM_TRY(choose_place(w, &z, fixed));
    for (uint32_t s = 0; s < tm_model_unit(w->m, 0)->n_stages; s++) TM_TRY(embed_stage(w, s));
    return TM_OK;
}

void walk_close(walk *w) {
    activations_close(&w->x);
    tm_model_free(w->m);
    TM_FREE_ALL(w->weights, w->slots, w->workspace, w->row_in, w->row_out, w->values, w->products, w->sums, w->ids,
                w->part_at);
    *w = (walk){0};
}
