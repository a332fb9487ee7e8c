/* One rank among others: the strategy as shards, what has to be alike before the first collective, and how a failure of
 * one becomes the end of all. */
#include "comm/comm.h"
#include "io/run/run.h"
#include "kernels/kernels.h"
#include "step/elastic.h"
#include "train/trainer.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* DeepSpeed's default of stage3_prefetch_bucket_size. */
enum { PREFETCH_ELEMENTS = 50000000 };

/* ---- who is there -------------------------------------------------------------------------------------------- */

static void remember(const tm_train_args *args, tm_train_args *own, uint32_t rank) {
    *own = *args;
    if (rank > 0) {
        own->quiet = true;
        own->trace = NULL;
        tm_stop_silent(true);
        own->profile = false;           /* the first rank's is shown */
        tm_log_set_level(TM_LOG_ERROR); /* what the first rank says holds for all */
    }
}

tm_status trainer_open_ranks(trainer *t) {
    tm_comm *comm;
    if (!tm_comm_launched()) return TM_OK;
    tm_status rc = tm_comm_open(&comm, &(tm_comm_opts){.at_abort = tm_io_cleanup_at_exit});
    if (rc != TM_OK && t->args->reported) *t->args->reported = tm_comm_quiet();
    TM_TRY(rc);
    if (tm_comm_size(comm) == 1) {
        tm_comm_close(comm);
        return TM_OK;
    }
    t->comm = comm;
    t->ranks = (job_ranks){.comm = comm, .ranks = tm_comm_size(comm), .rank = tm_comm_rank(comm), .agreed = &t->agreed};
    remember(t->args, &t->own_args, t->ranks.rank);
    t->args = &t->own_args;
    return TM_OK;
}

tm_status trainer_imagine_ranks(trainer *t, uint32_t ranks, uint32_t per_node) {
    if (ranks == 1) return TM_OK;
    TM_TRY(tm_comm_imagine(&t->comm, ranks, per_node, 0));
    t->imagined = true;
    t->ranks = (job_ranks){.comm = t->comm, .ranks = ranks, .agreed = &t->agreed};
    return TM_OK;
}

void trainer_close_ranks(trainer *t) {
    tm_comm_close(t->comm);
    t->comm = NULL;
}

/* ---- one for all --------------------------------------------------------------------------------------------- */

tm_status trainer_agree(trainer *t, tm_status rc) {
    if (!t->comm || t->agreed) return rc;
    rc = tm_comm_agree(t->comm, rc);
    if (rc != TM_OK) t->agreed = true;
    return rc;
}

static int exit_status(const trainer *t, tm_status rc) {
    if (rc == TM_ESIGNAL && t->committed >= 0) return 3;
    return rc == TM_EINPUT || rc == TM_EUNSUPPORTED || rc == TM_EBUDGET ? 2 : 1;
}

/* The launcher hands the status on; the others end without a word. */
void trainer_end_all(trainer *t, tm_status rc) {
    if (!t->comm || t->imagined || t->agreed || rc == TM_OK) return;
    tm_say("tidemill: rank %u (%s): %s\n", t->ranks.rank, tm_comm_host(t->comm, t->ranks.rank), tm_error_get()->text);
    tm_io_cleanup_at_exit(); /* run directories without a commit */
    tm_comm_abort(t->comm, exit_status(t, rc));
}

void trainer_count_sent(trainer *t, uint64_t sent[2]) {
    tm_comm_stats s;
    if (!t->comm) return;
    tm_comm_get_stats(t->comm, &s);
    for (int l = 0; l < TM_COMM_LINKS; l++) {
        uint64_t all = 0;
        for (int c = 0; c < TM_COMM_CODES; c++) all += s.sent_bytes[c][l];
        if (t->job) all += t->job->sent_there[l];
        sent[l] = all - t->comm_sent[l];
        t->comm_sent[l] = all;
    }
}

/* The first rank's clock decides when a commit is due by the clock. */
uint32_t trainer_flags(const trainer *t) {
    double minutes = t->cfg->commit_minutes, since = (double)(tm_now_ns() - t->commit_ns) * 1e-9;
    return (job_stop_signal() ? FLAG_STOP : 0) |
           (minutes > 0 && since >= minutes * 60 && t->ranks.rank == 0 ? FLAG_COMMIT : 0);
}

/* ---- alike? -------------------------------------------------------------------------------------------------- */

static tm_status same(trainer *t, const char *what, uint64_t hash) {
    tm_status rc = tm_comm_same(t->comm, what, hash);
    if (rc != TM_OK) t->agreed = true;
    return rc;
}

static tm_status same_text(trainer *t, const char *what, const char *text, size_t n) {
    return same(t, what, tm_hash64(text, n, 0));
}

/* Budgets and offload paths may differ between ranks: how the configuration is resolved counts, without them. */
tm_status trainer_same_start(trainer *t) {
    tm_buf config = {0};
    if (!t->comm) return TM_OK;
    static const char build[] = TIDEMILL_VERSION;
    TM_TRY(same_text(t, "the version of tidemill", build, sizeof build));
    tm_config c = *t->cfg;
    c.memory.host_kind = TM_BUDGET_DEFAULT;
    c.memory.host_bytes = 0;
    c.memory.device_bytes = c.memory.device_bytes > 0;
    c.param_paths = c.optimizer_paths = (tm_strings){0};
    tm_status rc = tm_config_dump_json(&c, &config, 0);
    if (rc == TM_OK)
        rc = tm_buf_printf(&config, "%d %u %d %d %d %d", c.strategy, c.hpz_partition, c.quantized_weights,
                           c.quantized_gradients, c.comm_bf16, c.all_reduce_mpi);
    rc = trainer_agree(t, rc);
    if (rc == TM_OK) rc = same_text(t, "the configuration", config.data, config.len);
    tm_buf_free(&config);
    return rc;
}

tm_status trainer_same_input(trainer *t) {
    tm_buf numerics = {0};
    if (!t->comm) return TM_OK;
    TM_TRY(same(t, "the model's config.json", t->model_hash));
    TM_TRY(same(t, "the training data", tm_dataset_fingerprint(data_set(t->train))));
    TM_TRY(same(t, "the evaluation data", t->eval ? tm_dataset_fingerprint(data_set(t->eval)) : 0));
    tm_status rc = trainer_agree(t, trainer_numerics(t, &numerics));
    if (rc == TM_OK)
        rc = same_text(t, "what computes (instruction set, matrix library, threads)", numerics.data, numerics.len);
    tm_buf_free(&numerics);
    return rc;
}

/* The communication operations of a plan, in order. */
static uint64_t hash_plan(const tm_plan *plan, uint64_t hash) {
    uint32_t n = 0;
    const tm_plan_op *op = plan ? tm_plan_ops(plan, &n) : NULL;
    for (uint32_t i = 0; i < n; i++) {
        if (op[i].engine != TM_ENGINE_COMM) continue;
        uint32_t what[] = {op[i].op.code, op[i].op.arg[0]};
        hash = tm_hash64(what, sizeof what, hash);
    }
    return hash;
}

/* What is gathered into memory that a node has once has to lie at one place for all that read it there. */
tm_status trainer_same_plans(trainer *t) {
    if (!t->comm) return TM_OK;
    const tm_plan *plans[] = {t->plan, t->first_plan, t->drain_plan, t->eval_plan};
    uint64_t operations = 0, places = 0;
    for (size_t i = 0; i < TM_COUNT(plans); i++) {
        const uint64_t frames = plans[i] ? tm_plan_shared_hash(plans[i]) : 0;
        operations = hash_plan(plans[i], operations + i);
        places = tm_hash64(&frames, sizeof frames, places + i);
    }
    TM_TRY(same(t, "the plan of operations between ranks", operations));
    return same(t, "the place of gathered weights in shared memory", places);
}

/* ---- the strategy -------------------------------------------------------------------------------------------- */

/* Ranks of the node that has the fewest: a share of what a node holds once is nowhere larger. 0: some are alone. */
static uint32_t fewest_on_a_node(const tm_comm *comm) {
    uint32_t fewest = UINT32_MAX, n;
    for (uint32_t k = 0; k < tm_comm_nodes(comm); k++, fewest = n < fewest ? n : fewest) {
        n = 0;
        for (uint32_t r = 0; r < tm_comm_size(comm); r++) n += tm_comm_node_of(comm, r) == k;
    }
    return fewest > 1 ? fewest : 0;
}

/* Who holds what: one slice each, or all; in a group a member holds as many as there are groups. */
tm_status trainer_set_strategy(trainer *t) {
    const tm_config *c = t->cfg;
    job_ranks *r = &t->ranks;
    if (!t->comm) return TM_OK;
    holding one = {r->rank, 1}, all = {0, r->ranks};
    r->group = TM_COMM_WORLD;
    r->across = false;
    r->second = (holding){0, 0};
    r->sums = one;
    unsigned divides = tm_strategy_rows[c->strategy].divides;
    r->own = divides & TM_DIVIDES_STATE ? one : all;
    r->weights = divides & TM_DIVIDES_WEIGHTS ? one : all;
    r->mpi_sums = c->all_reduce_mpi && c->strategy == TM_STRATEGY_DDP;
    if (r->mpi_sums) r->sums = all;
    if (c->strategy == TM_STRATEGY_HSDP) {
        uint32_t nodes = tm_comm_nodes(t->comm);
        if (!tm_comm_uniform(t->comm))
            return tm_fail(TM_EINPUT, "strategy hsdp needs the same number of ranks on every node");
        uint32_t size = tm_comm_node_size(t->comm);
        if (c->mics_shard && c->mics_shard != size)
            return tm_fail(TM_EINPUT,
                           "mics_shard_size %u: state is divided among the %u ranks of a node, or among all; give %u, "
                           "or leave it out",
                           c->mics_shard, size, size);
        r->group = TM_COMM_NODE;
        r->across = true;
        r->own = r->weights = (holding){tm_comm_node_rank(t->comm) * nodes, nodes};
        r->sums = (holding){r->own.first + tm_comm_node(t->comm), 1};
    }
    if (c->strategy == TM_STRATEGY_HPZ) {
        uint32_t nodes = tm_comm_nodes(t->comm), size = tm_comm_node_size(t->comm);
        if (!tm_comm_uniform(t->comm) || (c->hpz_partition > 1 && c->hpz_partition != size))
            return tm_fail(
                TM_EINPUT,
                "zero_hpz_partition_size %u: a second copy is divided among the %u ranks of a node, on nodes "
                "of equal size",
                c->hpz_partition, size);
        r->second = (holding){tm_comm_node_rank(t->comm) * nodes, nodes};
    }
    if (c->quantized_weights) r->gather_wire = TM_COMM_WIRE_Q8;
    if (c->comm_bf16) r->reduce_wire = TM_COMM_WIRE_BF16;
    if (c->quantized_gradients) r->reduce_wire = TM_COMM_WIRE_Q4;
    if (c->knobs.reduce_bucket_size != TM_AUTO_ELEMENTS) r->reduce_elements = c->knobs.reduce_bucket_size;
    r->prefetch_elements = PREFETCH_ELEMENTS;
    if (c->wrap == TM_WRAP_SIZE) r->prefetch_elements = c->wrap_elements;
    if (c->wrap == TM_WRAP_NONE) r->prefetch_elements = UINT64_MAX;
    r->prefetch_unit = c->wrap == TM_WRAP_BLOCK;
    if (c->knobs.prefetch_bucket_size != TM_AUTO_ELEMENTS) {
        r->prefetch_elements = c->knobs.prefetch_bucket_size;
        r->prefetch_unit = false;
    }
    r->must_share = c->memory.shared_window > 0;
    /* beside an arena the last to read a gathered part is a copy, whose place is each rank's own affair */
    bool may = c->memory.shared_window >= 0 && c->memory.device_bytes == 0;
    r->shared_by = may ? fewest_on_a_node(t->comm) : 0;
    if (r->must_share && r->shared_by == 0)
        return tm_fail(TM_EINPUT, "memory.shared_window on: %s; use auto",
                       may ? "a node with one rank has nobody to share with" : "not beside a device's memory");
    if (c->knobs.param_persistence_threshold != TM_AUTO_ELEMENTS)
        r->keep_elements = c->knobs.param_persistence_threshold;
    return TM_OK;
}

/* FSDP wraps layers of a class by its name in transformers: "LlamaDecoderLayer" for model_type "llama". */
tm_status trainer_check_wrap(const trainer *t, const char *model_type) {
    static const char layer[] = "DecoderLayer";
    for (uint32_t i = 0; i < t->cfg->wrap_classes.n; i++) {
        const char *name = t->cfg->wrap_classes.item[i];
        size_t n = strlen(model_type);
        if (strncasecmp(name, model_type, n) == 0 && strcmp(name + n, layer) == 0) continue;
        return tm_fail(TM_EINPUT, "fsdp_config: the model has no layers of class \"%.64s\"; its blocks are \"%c%s%s\"",
                       name, model_type[0] - 'a' + 'A', model_type + 1, layer);
    }
    return TM_OK;
}

const char *trainer_strategy(const trainer *t) {
    return tm_strategy_rows[t->cfg->strategy].name;
}

/* ---- what ranks leave behind --------------------------------------------------------------------------------- */

static tm_status own_directories(const trainer *t, tm_buf *out) {
    for (unsigned i = 0; tm_store_path(t->job->store, i); i++) {
        char full[PATH_MAX]; /* the run may go on from another folder */
        const char *path = tm_store_path(t->job->store, i);
        if (realpath(path, full)) path = full;
        TM_TRY(tm_buf_append(out, path, strlen(path) + 1));
    }
    return TM_OK;
}

/* Texts of all ranks, in order. bytes: [ranks], zeros. */
static tm_status gather_texts(trainer *t, const tm_buf *own, uint64_t *bytes) {
    uint64_t all = 0;
    bytes[t->ranks.rank] = own->len;
    TM_TRY(tm_comm_all_reduce_u64(t->comm, TM_COMM_WORLD, TM_COMM_SUM, bytes, t->ranks.ranks));
    for (uint32_t r = 0; r < t->ranks.ranks; r++) all += bytes[r];
    TM_TRY(trainer_agree(t, tm_buf_reserve(&t->directories, all + 1)));
    if (all > 0)
        TM_TRY(tm_comm_run(t->comm, &(tm_comm_op){.code = TM_COMM_ALL_GATHER,
                                                  .group = TM_COMM_WORLD,
                                                  .type = TM_COMM_BYTE,
                                                  .send = own->data,
                                                  .recv = t->directories.data,
                                                  .counts = bytes}));
    t->directories.len = all;
    for (uint32_t r = 0, at = 0; r < t->ranks.ranks; at += (uint32_t)bytes[r++])
        for (uint32_t i = 0; i < bytes[r]; i++) t->directories_of[r] += t->directories.data[at + i] == 0;
    return TM_OK;
}

/* Only when every rank has its own list does any send it. */
static tm_status gather_together(trainer *t) {
    tm_buf own = {0};
    uint64_t *bytes = tm_calloc(t->ranks.ranks, sizeof *bytes);
    t->directories_of = tm_calloc(t->ranks.ranks, sizeof *t->directories_of);
    tm_status rc = bytes && t->directories_of ? own_directories(t, &own) : tm_nomem(t->ranks.ranks * 2 * sizeof *bytes);
    rc = trainer_agree(t, rc);
    if (rc == TM_OK) rc = gather_texts(t, &own, bytes);
    tm_free(bytes);
    tm_buf_free(&own);
    return rc;
}

tm_status trainer_gather_directories(trainer *t) {
    TM_TRY(t->comm ? gather_together(t) : own_directories(t, &t->directories));
    for (size_t i = 0; i < t->directories.len; i++) t->n_directories += t->directories.data[i] == 0;
    t->directory = tm_calloc(t->n_directories + 1, sizeof *t->directory);
    if (!t->directory) return tm_nomem(t->n_directories * sizeof *t->directory);
    const char *at = t->directories.data;
    for (uint32_t i = 0; i < t->n_directories; i++, at += strlen(at) + 1) t->directory[i] = at;
    return TM_OK;
}

/* ---- commits ------------------------------------------------------------------------------------------------- */

void trainer_describe_ranks(const trainer *t, tm_json_writer *w) {
    elastic_describe(&t->ranks, w);
}

/* --resume DIR with a rank's directory. */
tm_status trainer_check_ranks(const trainer *t, const tm_json *info) {
    job_ranks was, now = t->ranks;
    TM_TRY(elastic_shards(info, &was));
    if (!t->comm) now = (job_ranks){.ranks = 1, .weights = {0, 1}, .own = {0, 1}};
    if (t->old.other || elastic_same(&was, &now)) return TM_OK;
    return tm_fail(TM_EUNSUPPORTED,
                   "the commit holds one of %u ranks' share of the state; --resume auto finds the others", was.ranks);
}
