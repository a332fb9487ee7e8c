/* session: what training, planning and the bench of a step begin with, and share: the configuration, the ranks, the
 * device that computes, model and data as far as they are opened before there is a job. A job is not part of it.
 *
 *     session s = {.args = &args};
 *     TM_TRY(session_open_ranks(&s));
 *     TM_TRY(session_load_config(&s, false));
 *     TM_TRY(session_find_device(&s, false));
 *     TM_TRY(session_set_strategy(&s));
 *     TM_TRY(session_prepare(&s, false));
 *     job_opts o = session_job_options(&s);
 *     ...
 *     session_close(&s);       // after the job, which reads from its data
 *     session_close_ranks(&s); // last
 *
 * Errors: TM_EINPUT, TM_EUNSUPPORTED and TM_EBUDGET; nothing was started yet. Functions that are called collective are
 * called by all ranks in the same order; of one rank they return at once. One session at a time in a process.
 */
#ifndef TIDEMILL_SESSION_H
#define TIDEMILL_SESSION_H

#include "config/config.h"
#include "io/run/run.h"
#include "session/args.h"
#include "session/data_open.h"
#include "step/step.h"

typedef struct session {
    const tm_train_args *args;
    tm_train_args own_args; /* with ranks: what args points to */
    /* ranks.c */
    struct tm_comm *comm; /* NULL: one rank */
    bool imagined;        /* the other ranks do not exist (tidemill plan) */
    bool agreed;          /* a failure is known to all ranks */
    job_ranks ranks;      /* all zero: one rank */
    /* session.c */
    tm_config *cfg;
    char *weights;            /* folder of a base that was quantised; NULL: the model's own */
    tm_io_shared *base;       /* that folder, while it is used */
    bool made_weights;        /* by this process */
    const char *key, *of;     /* of whoever makes it (io/run/run.h); NULL: nobody's */
    tm_adapter_folder *saved; /* that the adapter starts from; NULL: it is new */
    tm_source *source;        /* for texts and side files; a job has its own */
    uint64_t model_hash;      /* of config.json */
    uint64_t base_hash;       /* of weights that do not learn, by samples; 0: all learn */
    uint64_t reference_hash;  /* of the reference's weights; 0: there is none of its own */
    text_tools text;
    data_file *train, *eval;
    uint64_t label_bytes;   /* session_label_bytes of eval; 0: not known */
    struct tm_trial *trial; /* eval_tasks, by args->scorer; NULL: none */
    tm_scores scores;       /* of it */
    char rows_basis[256];   /* what the lengths of rows are taken from (tidemill plan) */
    /* device.c */
    char device[24];       /* "cuda:1": this rank's on its node, where the configuration names a kind alone; else "" */
    uint64_t device_bytes; /* of the arena, where the configuration leaves it open; 0: as it says */
    bool imagined_device;  /* session_imagine_device */
    tm_device_peers peers; /* ranks.peers, where there are any */
} session;

/* ---- session.c: configuration, model and data ------------------------------------------------------------------ */

/* `data_optional`: data that are not there do not matter (tidemill plan). */
TM_MUST_USE tm_status session_load_config(session *s, bool data_optional);
/* Opens the data and gives back what only reading them took. */
TM_MUST_USE tm_status session_prepare(session *s, bool data_optional);
/* Instead, to look at the data alone: s->train, s->eval and s->text, of the files' first bytes (0: all). Tokens that do not
 * fit memory are forgotten. `notice` may be NULL. */
TM_MUST_USE tm_status session_read_data(session *s, uint64_t most_bytes, tm_data_notice_fn notice, void *ctx);
/* Instead: the data of the evaluation alone, in memory; s->text stays open. `vocabulary`: of the model. */
TM_MUST_USE tm_status session_prepare_evaluation(session *s, uint32_t *vocabulary);
/* Of text that all labels of the evaluation's data stand for, special tokens none; 0: there is no tokenizer, or the loss is one of
 * samples. While the tokenizer is there; reads all of the data once. label_bytes.c */
TM_MUST_USE tm_status session_label_bytes(const session *s, uint64_t *bytes);
TM_MUST_USE tm_status session_resolve_steps(const session *s); /* once the data are there; may be called again */
uint64_t session_data_disk(const session *s);                  /* of tokens that do not fit memory, in OUTPUT_DIR */
void session_keep_data(session *s, bool keep);                 /* tokens on disk, for the next start; else they go */
void session_close(session *s);                                /* all but the ranks */
TM_MUST_USE tm_status session_hash_model(const char *path, uint64_t *hash); /* base.c */
/* Collective. Where the configuration quantises a base, s->weights is a folder of it in four bits, made unless an earlier
 * life of the run has left it, or another run uses it. own_base.c */
TM_MUST_USE tm_status session_make_base(session *s);
/* Collective, at a run's end: away with it, unless another run uses it. */
TM_MUST_USE tm_status session_drop_base(session *s);
/* Of a start that failed: away with it, if this process made it. */
TM_MUST_USE tm_status session_undo_base(session *s);

/* ---- ranks.c: one rank among others ---------------------------------------------------------------------------- */

TM_MUST_USE tm_status session_open_ranks(session *s); /* first of all */
/* Instead: the first of so many that do not exist. */
TM_MUST_USE tm_status session_imagine_ranks(session *s, uint32_t ranks, uint32_t per_node);
void session_close_ranks(session *s);
/* It prints and writes OUTPUT_DIR. */
static inline bool session_is_rank0(const session *s) {
    return s->ranks.rank == 0;
}
/* Collective: TM_OK if all ranks say so, else the failure of the first that does not. */
TM_MUST_USE tm_status session_agree(session *s, tm_status rc);
/* Collective: all ranks have the same `hash` of WHAT. */
TM_MUST_USE tm_status session_same(session *s, const char *what, uint64_t hash);
TM_MUST_USE tm_status session_same_text(session *s, const char *what, const char *text, size_t n);
TM_MUST_USE tm_status session_same_start(session *s); /* collective: build, configuration */
/* A failure that the other ranks do not know of ends them all; then it does not return. `resumable`: a run that a
 * signal ended can be gone on with. */
void session_end_all(const session *s, tm_status rc, bool resumable);
TM_MUST_USE tm_status session_check_wrap(const session *s, const char *model_type); /* fsdp_config's classes are its */
TM_MUST_USE tm_status session_set_strategy(session *s); /* s->ranks, from the configuration */
const char *session_strategy(const session *s);

/* ---- device.c: memory.device, where it is not the host's processors; all return at once where it is ------------- */

/* It is there, and how much of its memory is taken. `planning`: it may be missing. Once the configuration is there. */
TM_MUST_USE tm_status session_find_device(session *s, bool planning);
/* Collective: whether ranks exchange from device to device (memory.exchange). All have one configuration, and the
 * strategy is set. */
TM_MUST_USE tm_status session_find_peers(session *s);
/* Instead of looking for it, one that nobody has: a kind that is known (device.h), with an arena of so many bytes; each
 * of several ranks has its own. */
void session_imagine_device(session *s, const char *kind, uint64_t arena_bytes);
const char *session_device(const session *s); /* then: memory.device, with this rank's number on its node */
TM_MUST_USE tm_status session_describe_device(const session *s, tm_buf *out); /* what its results' bits depend on */

/* ---- options.c: the configuration as a job's options ----------------------------------------------------------- */

job_opts session_job_options(const session *s);
job_shape session_step_shape(const session *s); /* the largest micro-batch of the run */
#define SESSION_CACHE "tidemill-cache"
/* "DIR/tidemill-cache/NAME" for an OUTPUT_DIR in DIR: what other runs beside it may take as well. Returns path. */
const char *session_cache_path(const tm_config *c, const char *name, char *path, size_t cap);
/* The objective's reference is a column that is made before step 1, not lanes; then (reference.c) of the data that are open, of
 * training or evaluation and one batch (TM_BATCH_*): steps whose rows are asked for; values, one a row; the place of a row's, of
 * this rank. */
bool session_reference_column(const tm_config *c);
uint32_t session_batches(const session *s); /* of a micro-batch */
uint64_t session_samples_a_step(const session *s, bool eval);
uint64_t session_reference_steps(const session *s, bool eval, uint32_t batch);
uint64_t session_reference_rows(const session *s, bool eval, uint32_t batch);
uint64_t session_reference_place(const session *s, bool eval, uint64_t step, uint32_t batch, uint32_t micro_batch,
                                 uint32_t row);
uint64_t session_reference_bytes(const session *s); /* of all values; of files that were read in part, of all of them */
job_opts session_reference_options(const session *s); /* of the job that makes them */
job_shape session_reference_shape(const session *s);  /* the largest micro-batch that it is given */
job_shape session_eval_shape(const session *s);       /* of an evaluation; s->eval is there */
static inline bool session_evaluates(const session *s) {
    return s->eval || s->trial;
}
/* Weights are scored as they are computed with; an adapter as it is. */
tm_fmt session_score_format(const tm_config *c);
bool session_commits(const session *s);           /* such a job makes commits */
bool session_has_checkpoints(const tm_config *c); /* before its end, where it is long enough */
/* Of the budget, of such a job: a page about the run so far, beside the plan (train, trainer_report.c), with the step that is drawn
 * on it, ready from the start, and the file's buffer. */
enum { SESSION_PAGE_BYTES = 512 << 10 };
tm_fmt session_save_format(const tm_config *c);                 /* of the models that it writes */
uint64_t session_host_bytes(const tm_config *c);                /* of memory.host_budget; UINT64_MAX: unlimited */
TM_MUST_USE tm_status session_check_budget(const tm_config *c); /* this machine, or the cgroup, has it */
void session_set_paths(const tm_config *c, job_opts *o); /* where its files go, and what of the state; none: nowhere */
/* tm_machine_of its paths, and their kinds. */
TM_MUST_USE tm_status session_machine(const job_opts *o, tm_machine *out);

#endif
