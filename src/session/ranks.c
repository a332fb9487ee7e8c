/* One rank among others: who is there, the strategy as shards, what has to be alike before the first collective, and how
 * a failure of one becomes the end of all. */
#include "session/session.h"

#include "comm/comm.h"
#include "io/run/run.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* DeepSpeed's default of stage3_prefetch_bucket_size. */
enum { PREFETCH_ELEMENTS = 50000000 };

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

tm_status session_open_ranks(session *s) {
    tm_comm *comm;
    if (!tm_comm_launched()) return TM_OK;
    tm_status rc = tm_comm_open(&comm, &(tm_comm_opts){.at_abort = tm_io_cleanup_at_exit});
    if (rc != TM_OK && s->args->reported) *s->args->reported = tm_comm_quiet();
    TM_TRY(rc);
    if (tm_comm_size(comm) == 1) {
        tm_comm_close(comm);
        return TM_OK;
    }
    s->comm = comm;
    s->ranks = (job_ranks){.comm = comm, .ranks = tm_comm_size(comm), .rank = tm_comm_rank(comm), .agreed = &s->agreed};
    remember(s->args, &s->own_args, s->ranks.rank);
    s->args = &s->own_args;
    return TM_OK;
}

tm_status session_imagine_ranks(session *s, uint32_t ranks, uint32_t per_node) {
    if (ranks == 1) return TM_OK;
    TM_TRY(tm_comm_imagine(&s->comm, ranks, per_node, 0));
    s->imagined = true;
    s->ranks = (job_ranks){.comm = s->comm, .ranks = ranks, .agreed = &s->agreed};
    return TM_OK;
}

void session_close_ranks(session *s) {
    tm_comm_close(s->comm);
    s->comm = NULL;
}

tm_status session_agree(session *s, tm_status rc) {
    if (!s->comm || s->agreed) return rc;
    rc = tm_comm_agree(s->comm, rc);
    if (rc != TM_OK) s->agreed = true;
    return rc;
}

static int exit_status(tm_status rc, bool resumable) {
    if (rc == TM_ESIGNAL && resumable) return 3;
    return rc == TM_EINPUT || rc == TM_EUNSUPPORTED || rc == TM_EBUDGET ? 2 : 1;
}

/* The launcher hands the status on; the others end without a word. */
void session_end_all(const session *s, tm_status rc, bool resumable) {
    if (!s->comm || s->imagined || s->agreed || rc == TM_OK) return;
    tm_say("tidemill: rank %u (%s): %s\n", s->ranks.rank, tm_comm_host(s->comm, s->ranks.rank), tm_error_get()->text);
    tm_io_cleanup_at_exit(); /* run directories without a commit */
    tm_comm_abort(s->comm, exit_status(rc, resumable));
}

tm_status session_same(session *s, const char *what, uint64_t hash) {
    tm_status rc = tm_comm_same(s->comm, what, hash);
    if (rc != TM_OK) s->agreed = true;
    return rc;
}

tm_status session_same_text(session *s, const char *what, const char *text, size_t n) {
    return session_same(s, what, tm_hash64(text, n, 0));
}

/* Budgets and offload paths may differ between ranks: how the configuration is resolved counts, without them. */
tm_status session_same_start(session *s) {
    tm_buf config = {0};
    if (!s->comm) return TM_OK;
    static const char build[] = TIDEMILL_VERSION;
    TM_TRY(session_same_text(s, "the version of tidemill", build, sizeof build));
    tm_config c = *s->cfg;
    c.memory.host_kind = TM_BUDGET_DEFAULT;
    c.memory.host_bytes = 0;
    c.memory.device_bytes = c.memory.device_bytes > 0;
    c.param_paths = c.optimizer_paths = (tm_strings){0};
    tm_status rc = tm_config_dump_json(&c, &config, 0);
    if (rc == TM_OK)
        rc = tm_buf_printf(&config, "%d %u %d %d %d %d", c.strategy, c.hpz_partition, c.quantized_weights,
                           c.quantized_gradients, c.comm_bf16, c.all_reduce_mpi);
    rc = session_agree(s, rc);
    if (rc == TM_OK) rc = session_same_text(s, "the configuration", config.data, config.len);
    tm_buf_free(&config);
    return rc;
}

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
tm_status session_set_strategy(session *s) {
    const tm_config *c = s->cfg;
    job_ranks *r = &s->ranks;
    if (!s->comm) return TM_OK;
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
        uint32_t nodes = tm_comm_nodes(s->comm);
        if (!tm_comm_uniform(s->comm))
            return tm_fail(TM_EINPUT, "strategy hsdp needs the same number of ranks on every node");
        uint32_t size = tm_comm_node_size(s->comm);
        if (c->mics_shard && c->mics_shard != size)
            return tm_fail(TM_EINPUT,
                           "mics_shard_size %u: state is divided among the %u ranks of a node, or among all; give %u, "
                           "or leave it out",
                           c->mics_shard, size, size);
        r->group = TM_COMM_NODE;
        r->across = true;
        r->own = r->weights = (holding){tm_comm_node_rank(s->comm) * nodes, nodes};
        r->sums = (holding){r->own.first + tm_comm_node(s->comm), 1};
    }
    if (c->strategy == TM_STRATEGY_HPZ) {
        uint32_t nodes = tm_comm_nodes(s->comm), size = tm_comm_node_size(s->comm);
        if (!tm_comm_uniform(s->comm) || (c->hpz_partition > 1 && c->hpz_partition != size))
            return tm_fail(
                TM_EINPUT,
                "zero_hpz_partition_size %u: a second copy is divided among the %u ranks of a node, on nodes "
                "of equal size",
                c->hpz_partition, size);
        r->second = (holding){tm_comm_node_rank(s->comm) * nodes, nodes};
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
    r->shared_by = may ? fewest_on_a_node(s->comm) : 0;
    if (r->must_share && r->shared_by == 0)
        return tm_fail(TM_EINPUT, "memory.shared_window on: %s; use auto",
                       may ? "a node with one rank has nobody to share with" : "not beside a device's memory");
    if (c->knobs.param_persistence_threshold != TM_AUTO_ELEMENTS)
        r->keep_elements = c->knobs.param_persistence_threshold;
    return TM_OK;
}

/* FSDP wraps layers of a class by its name in transformers: "LlamaDecoderLayer" for model_type "llama". */
tm_status session_check_wrap(const session *s, const char *model_type) {
    static const char layer[] = "DecoderLayer";
    for (uint32_t i = 0; i < s->cfg->wrap_classes.n; i++) {
        const char *name = s->cfg->wrap_classes.item[i];
        size_t n = strlen(model_type);
        if (strncasecmp(name, model_type, n) == 0 && strcmp(name + n, layer) == 0) continue;
        return tm_fail(TM_EINPUT, "fsdp_config: the model has no layers of class \"%.64s\"; its blocks are \"%c%s%s\"",
                       name, model_type[0] - 'a' + 'A', model_type + 1, layer);
    }
    return TM_OK;
}

const char *session_strategy(const session *s) {
    return tm_strategy_rows[s->cfg->strategy].name;
}
