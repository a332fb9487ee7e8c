/* A base that is quantised once, when a run begins: its matrices in four bits, in a folder of the run's own, which is then
 * read where it lies as any other (src/format/quantise.c). The folder is known by what it is made of, so that a run that
 * was killed finds it again; it appears when it is complete.
 *
 * Quantising at every visit instead would save this folder's disk, and no time: a visit would read 2 bytes an element in
 * place of 0.52 and quantise them, which takes longer than decoding, and with double quantisation every start would have
 * to pass over all of the model before the first step, since scales are taken less the mean of all scales of a matrix. */
#include "session/session.h"

#include "comm/comm.h"
#include "io/file/file.h"

#include <poll.h>
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
        q->list[t] = (tm_quantise_tensor){.name = x->name,
                                          .ndim = x->ndim,
                                          .elements = x->elements,
                                          .four_bits = job_in_four_bits(q->m, q->s->cfg->adapter, t)};
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
    (void)total, (void)tm_fault_hit("kill_quantising", NULL);
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

static tm_status write_folder(quantising *q, const char *dir) {
    const tm_config *c = q->s->cfg;
    tm_quantise_opts o = {.fmt = c->quantization.type == TM_QUANTIZE_NF4 ? TM_FMT_NF4 : TM_FMT_FP4,
                          .double_quant = c->quantization.double_quant,
                          .block = c->quantization.block,
                          .rest = job_compute_fmt(c->precision),
                          .tensor = q->list,
                          .n = tm_model_tensors(q->m),
                          .read = read_values,
                          .ctx = q,
                          .progress = show,
                          .progress_ctx = q};
    tm_phase_begin(&q->phase, "quantising the model", "elements", tm_model_parameters(q->m));
    tm_status rc = tm_quantise(q->s->source, dir, &o);
    tm_phase_end(&q->phase);
    return rc;
}

static tm_status list_model(quantising *q) {
    tm_model_config named;
    size_t len;
    const char *json = tm_source_config(q->s->source, &len);
    TM_TRY(tm_model_config_parse(&named, json, len, q->s->cfg->model));
    if (q->src) (void)tm_model_find_names(&named, source_has, q->src);
    TM_TRY(tm_model_create(&q->m, &named, q->s->cfg->precision));
    return list_tensors(q);
}

/* What the folder is made of. */
static uint64_t identity(const quantising *q) {
    const session *s = q->s;
    const tm_config *c = s->cfg;
    uint64_t all[] = {
        s->base_hash,          s->model_hash,          (uint64_t)c->quantization.type, c->quantization.double_quant,
        c->quantization.block, (uint64_t)c->precision, c->init_random ? c->seed : 0};
    uint64_t hash = tm_hash64(all, sizeof all, 0);
    for (uint32_t t = 0; t < tm_model_tensors(q->m); t++)
        hash = tm_hash64(&q->list[t].four_bits, sizeof q->list[t].four_bits, hash);
    return hash;
}

/* ---- the folder -------------------------------------------------------------------------------------------------- */

/* What others use is left; what a run was killed at before it was known whose it is, if nothing is in it. */
static tm_status remove_left(const char *dir, unsigned wait_ms) {
    tm_io_owner o;
    bool gone;
    TM_TRY(tm_io_run_owner(dir, &o));
    return *o.key ? tm_io_shared_remove(dir, NULL, wait_ms, &gone) : tm_io_run_discard_begun(dir);
}

/* The maker of another node may be removing it as well: for a moment it is there without its key. */
static tm_status remove_beside_others(const char *dir) {
    enum { TRIES = 50, NAP_MS = 20 };
    for (int left = TRIES;; left--) {
        tm_status rc = remove_left(dir, 0);
        if (rc == TM_OK || (left == 0 && tm_path_is_dir(dir))) return rc;
        tm_error_clear();
        if (!tm_path_is_dir(dir)) return TM_OK;
        (void)poll(NULL, 0, NAP_MS);
    }
}

/* What a life left that was killed while it made one: "base-HASH.PID.tmp". */
static tm_status sweep_one(void *ctx, const char *name, bool is_dir) {
    const char *path = ctx, *own = strrchr(path, '/') + 1;
    char left[4300];
    int pid = 0, end = 0;
    size_t n = strlen(own);
    if (!is_dir || strncmp(name, own, n) != 0) return TM_OK;
    if (sscanf(name + n, ".%d.tmp%n", &pid, &end) != 1 || end == 0 || name[n + (size_t)end] || pid <= 0) return TM_OK;
    snprintf(left, sizeof left, "%.*s%s", (int)(own - path), path, name);
    return remove_beside_others(left);
}

static tm_status sweep(char *path) {
    char parent[4096];
    snprintf(parent, sizeof parent, "%s", path);
    *strrchr(parent, '/') = 0;
    return tm_path_is_dir(parent) ? tm_list_dir(parent, sweep_one, path) : TM_OK;
}

/* s->base: it is there, whole. One that was half removed goes. */
static tm_status use_folder(session *s) {
    char config[4200];
    bool gone;
    snprintf(config, sizeof config, "%s/config.json", s->weights);
    TM_TRY(tm_io_shared_open(&s->base, s->weights));
    if (!s->base || tm_path_exists(config)) return TM_OK;
    tm_io_shared_close(s->base);
    s->base = NULL;
    return tm_io_shared_remove(s->weights, NULL, 0, &gone);
}

/* Its values; headers are little beside them. */
static uint64_t bytes_of(const quantising *q) {
    const tm_config *c = q->s->cfg;
    uint64_t bytes = 0;
    for (uint32_t t = 0; t < tm_model_tensors(q->m); t++)
        bytes += q->list[t].four_bits
                     ? tm_quantised_bytes(q->list[t].elements, c->quantization.block, c->quantization.double_quant)
                     : q->list[t].elements * tm_dtype_bytes(c->precision);
    return bytes;
}

/* Before anything is written. */
static tm_status check_room(const session *s, const quantising *q) {
    uint64_t bytes = bytes_of(q), have = tm_free_bytes(s->weights);
    char a[32], b[32];
    tm_format_size(bytes, a, sizeof a);
    if (have && bytes > have)
        return tm_fail(
            TM_EINPUT,
            "%s: the model in four bits takes %s, and %s is free there; free some, or name a folder of a larger "
            "disk in nvme_path",
            s->weights, a, tm_format_size(have, b, sizeof b));
    if (session_is_rank0(s) && !s->args->quiet)
        tm_log(TM_LOG_INFO, "%s: the model in four bits, made once, %s", s->weights, a);
    return TM_OK;
}

static void let_go(session *s) {
    tm_io_shared_close(s->base);
    s->base = NULL;
}

/* Beside its name, which it takes when it is whole, unless another run was faster: that one's folder holds the same. */
static tm_status make_folder(session *s, quantising *q) {
    char beside[4300];
    snprintf(beside, sizeof beside, "%s.%d.tmp", s->weights, (int)getpid());
    tm_status rc = tm_io_shared_create(&s->base, beside, s->key, s->of);
    if (rc == TM_OK) rc = write_folder(q, beside);
    bool whole = rc == TM_OK;
    if (whole) rc = tm_rename_path(beside, s->weights);
    s->made_weights = rc == TM_OK;
    if (rc == TM_OK) return TM_OK;
    let_go(s);
    if (tm_path_is_dir(beside)) rc = tm_first(rc, remove_left(beside, 0));
    if (!whole || !tm_path_is_dir(s->weights)) return rc;
    tm_error_clear();
    return use_folder(s);
}

static tm_status open_folder(session *s, bool make) {
    quantising q = {.s = s};
    char path[4096];
    tm_status rc = TM_OK;
    if (!s->cfg->init_random) TM_TRY(tm_source_open(&q.src, s->cfg->model));
    if (q.src && tm_source_is_coded(q.src)) {
        tm_warn_once("quantization", "%s is quantised already: it is read as it is", s->cfg->model);
        goto done;
    }
    TM_GO(list_model(&q));
    name_folder(s, identity(&q), path, sizeof path);
    if (!s->weights && !(s->weights = tm_strdup(path))) TM_GO(tm_nomem(sizeof path));
    if (!make) goto done;
    TM_GO(sweep(path));
    TM_GO(use_folder(s));
    if (!s->base) TM_GO(check_room(s, &q));
    while (!s->base) TM_GO(make_folder(s, &q));
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

/* The others hold it while the maker does. */
static tm_status use_made(session *s) {
    if (!s->weights || s->base) return TM_OK;
    TM_TRY(use_folder(s));
    return s->base ? TM_OK
                   : tm_fail(TM_EINPUT, "%s: the base in four bits is not there; do all ranks of this node see it?",
                             s->weights);
}

tm_status session_make_base(session *s) {
    if (s->cfg->quantization.type == TM_QUANTIZE_NONE) return TM_OK;
    TM_TRY(session_agree(s, open_folder(s, is_maker(s))));
    return session_agree(s, use_made(s));
}

tm_status session_drop_base(session *s) {
    enum { LOOKED_AT_MS = 200 };
    let_go(s);
    TM_TRY(session_agree(s, TM_OK));
    return s->weights && is_maker(s) && tm_path_is_dir(s->weights) ? remove_left(s->weights, LOOKED_AT_MS) : TM_OK;
}

/* The ranks that share it end as this one does. */
tm_status session_undo_base(session *s) {
    enum { OTHERS_END_MS = 2000 };
    let_go(s);
    return s->made_weights && tm_path_is_dir(s->weights) ? remove_left(s->weights, OTHERS_END_MS) : TM_OK;
}
