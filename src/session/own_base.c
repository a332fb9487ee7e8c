/* A base that is quantised once, when a run begins: its matrices in four bits, in a folder of the run's own, which is then
 * read where it lies as any other (src/format/quantise.c). The folder is known by what it is made of, so that a run that
 * was killed finds it again; it appears when it is complete. */
#include "session/session.h"

#include "comm/comm.h"
#include "io/file/file.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct quantising {
    const session *s;
    tm_model *m;
    tm_source *src; /* NULL: random */
    uint32_t *at;   /* per tensor: in src */
    tm_quantise_tensor *list;
    tm_phase phase;
} quantising;

static bool source_has(void *src, const char *name) {
    return tm_source_find(src, name) >= 0;
}

static bool in_four_bits(const tm_source *src) {
    for (uint32_t t = 0; src && t < tm_source_tensors(src); t++) {
        tm_fmt fmt = tm_source_tensor_get(src, t)->fmt;
        if (fmt == TM_FMT_NF4 || fmt == TM_FMT_FP4) return true;
    }
    return false;
}

/* Matrices of the blocks, as bitsandbytes takes every linear layer but the head; none that is trained whole. */
static bool is_quantised(const quantising *q, uint32_t t) {
    const tm_tensor *x = tm_model_tensor(q->m, t);
    uint32_t part = tm_model_tensor_segments(q->m, t)->part;
    bool block = tm_model_unit(q->m, tm_model_part(q->m, part)->unit)->kind == TM_UNIT_BLOCK;
    return block && x->ndim == 2 && !tm_adapter_learns(q->s->cfg->adapter, x->name);
}

static tm_status list_tensors(quantising *q) {
    uint32_t n = tm_model_tensors(q->m);
    q->list = tm_calloc(n + 1, sizeof *q->list);
    q->at = tm_calloc(n + 1, sizeof *q->at);
    if (!q->list || !q->at) return tm_nomem(n * sizeof *q->list);
    for (uint32_t t = 0; t < n; t++) {
        const tm_tensor *x = tm_model_tensor(q->m, t);
        int64_t at = q->src ? tm_source_find(q->src, x->name) : 0;
        if (at < 0)
            return tm_fail(TM_EINPUT, "%s: the tensor %s is missing; fetch the model again", q->s->cfg->model, x->name);
        q->at[t] = (uint32_t)at;
        q->list[t] = (tm_quantise_tensor){
            .name = x->name, .ndim = x->ndim, .elements = x->elements, .four_bits = is_quantised(q, t)};
        memcpy(q->list[t].shape, x->shape, sizeof x->shape);
        if (q->src && tm_source_tensor_get(q->src, q->at[t])->elements != x->elements)
            return tm_fail(TM_EINPUT, "%s: %s has another shape than config.json asks for", q->s->cfg->model, x->name);
    }
    return TM_OK;
}

static tm_status read_values(void *ctx, uint32_t t, uint64_t first, uint64_t n, float *values) {
    const quantising *q = ctx;
    if (q->src) return tm_source_read_f32(q->src, q->at[t], first, n, values);
    enum { RUN = 1 << 14 };
    int64_t runs = (int64_t)((n + RUN - 1) / RUN);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < runs; r++) {
        uint64_t at = (uint64_t)r * RUN;
        tm_model_init_values(q->m, t, q->s->cfg->seed, first + at, tm_min_u64(RUN, n - at), values + at);
    }
    return TM_OK;
}

static void show(void *ctx, uint64_t done, uint64_t total) {
    quantising *q = ctx;
    (void)total;
    tm_phase_at(&q->phase, done);
}

/* Beside the offload files; without those where commits are. */
static void name_folder(const session *s, uint64_t hash, char *path, size_t cap) {
    job_opts o = {.paths = NULL};
    session_set_paths(s->cfg, &o);
    if (o.n_paths)
        snprintf(path, cap, "%s/base-%016llx", o.paths[0], (unsigned long long)hash);
    else
        snprintf(path, cap, "%s/offload/base-%016llx", s->cfg->output_dir, (unsigned long long)hash);
}

static tm_status write_folder(quantising *q, const char *path) {
    const tm_config *c = q->s->cfg;
    char beside[4200];
    tm_quantise_opts o = {.fmt = c->quantization.type == TM_QUANTIZE_NF4 ? TM_FMT_NF4 : TM_FMT_FP4,
                          .double_quant = c->quantization.double_quant,
                          .block = c->quantization.block,
                          .rest = c->precision == TM_F32    ? TM_FMT_F32
                                  : c->precision == TM_BF16 ? TM_FMT_BF16
                                                            : TM_FMT_F16,
                          .tensor = q->list,
                          .n = tm_model_tensors(q->m),
                          .read = read_values,
                          .ctx = q,
                          .progress = show,
                          .progress_ctx = q};
    snprintf(beside, sizeof beside, "%s.%d.tmp", path, (int)getpid());
    tm_phase_begin(&q->phase, "quantising the model", "elements", tm_model_parameters(q->m));
    tm_status rc = tm_quantise(q->s->source, beside, &o);
    tm_phase_end(&q->phase);
    if (rc == TM_OK) rc = tm_publish_dir(beside, path);
    if (rc != TM_OK) rc = tm_first(rc, tm_remove_tree(beside));
    return rc;
}

static tm_status make_folder(quantising *q, const char *path) {
    tm_model_config named;
    size_t len;
    const char *json = tm_source_config(q->s->source, &len);
    TM_TRY(tm_model_config_parse(&named, json, len, q->s->cfg->model));
    if (q->src) (void)tm_model_find_names(&named, source_has, q->src);
    TM_TRY(tm_model_create(&q->m, &named, q->s->cfg->precision));
    TM_TRY(list_tensors(q));
    return write_folder(q, path);
}

/* What the folder is made of. */
static uint64_t identity(const session *s) {
    const tm_config *c = s->cfg;
    uint64_t all[] = {
        s->base_hash,          s->model_hash,          (uint64_t)c->quantization.type, c->quantization.double_quant,
        c->quantization.block, (uint64_t)c->precision, c->init_random ? c->seed : 0};
    return tm_hash64(all, sizeof all, 0);
}

/* What a life left that was killed while it made one: "base-HASH.PID.tmp". */
static tm_status sweep_one(void *ctx, const char *name, bool is_dir) {
    const char *path = ctx, *own = strrchr(path, '/') + 1;
    char left[4300];
    int pid = 0, end = 0;
    size_t n = strlen(own);
    if (!is_dir || strncmp(name, own, n) != 0) return TM_OK;
    bool ours = sscanf(name + n, ".%d.tmp%n", &pid, &end) == 1 && end > 0 && name[n + (size_t)end] == 0 && pid > 0;
    if (!ours || kill(pid, 0) == 0 || errno != ESRCH) return TM_OK;
    snprintf(left, sizeof left, "%.*s%s", (int)(own - path), path, name);
    return tm_remove_tree(left);
}

static tm_status sweep(char *path) {
    char parent[4096];
    snprintf(parent, sizeof parent, "%s", path);
    *strrchr(parent, '/') = 0;
    return tm_path_is_dir(parent) ? tm_list_dir(parent, sweep_one, path) : TM_OK;
}

static tm_status open_folder(session *s, bool make) {
    quantising q = {.s = s};
    char path[4096];
    tm_status rc = TM_OK;
    if (!s->cfg->init_random) TM_TRY(tm_source_open(&q.src, s->cfg->model));
    if (in_four_bits(q.src)) {
        tm_warn_once("quantization", "%s is in four bits already: it is read as it is", s->cfg->model);
        goto done;
    }
    name_folder(s, identity(s), path, sizeof path);
    if (!s->weights && !(s->weights = tm_strdup(path))) TM_GO(tm_nomem(sizeof path));
    if (!make || tm_path_is_dir(path)) goto done;
    TM_GO(sweep(path));
    TM_GO(make_folder(&q, path));
    s->made_weights = true;
done:
    tm_source_close(q.src);
    tm_model_free(q.m);
    TM_FREE_ALL(q.list, q.at);
    return rc;
}

/* One rank of a node makes it for all of them. */
static bool is_maker(const session *s) {
    return !s->comm || s->imagined || tm_comm_node_rank(s->comm) == 0;
}

tm_status session_make_base(session *s) {
    if (s->cfg->quantization.type == TM_QUANTIZE_NONE) return TM_OK;
    TM_TRY(session_agree(s, open_folder(s, is_maker(s))));
    return TM_OK;
}

tm_status session_drop_base(session *s, bool all) {
    bool drops = s->weights && is_maker(s) && (all || s->made_weights);
    return drops ? tm_remove_tree(s->weights) : TM_OK;
}
