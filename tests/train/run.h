/* run: drives the built program as a user does - arguments, environment, exit status, what it prints and what it
 * leaves.
 *
 * A failed expectation ends the cmocka test at once; folders made with run_dir are removed by run_clean, which every
 * group gives as its teardown (and which also runs at exit, so that nothing stays behind a failed test).
 *
 *     const char *dir = run_dir();                                   // "./e2e-XXXXXX"
 *     run_result r = run((run_opts){.timeout_s = 60}, "train", config, "--set", "max_steps=2", NULL);
 *     RUN_OK(&r);                                                    // exit 0, or the test fails with its stderr
 *     train_log log = train_log_read(dir, "out");
 */
#ifndef TIDEMILL_TEST_RUN_H
#define TIDEMILL_TEST_RUN_H

#include "base/base.h"
#include "format/format.h"

#include <setjmp.h>
#include <sys/types.h>

#include <cmocka.h>

#define RUN_EXPECT_STATUS(expr)                                                                                        \
    do {                                                                                                               \
        if ((expr) != TM_OK) fail_msg("%s", tm_error_get()->text);                                                     \
    } while (0)

/* ---- processes ------------------------------------------------------------------------------------------- */

typedef struct run_opts {
    const char *const *env;   /* "NAME=value", ended by NULL; added to ours */
    unsigned timeout_s;       /* 0: 100; five times that long (see run.c) and it is killed, and the test fails */
    int signal;               /* != 0: sent once `signal_when` exists, or `stop_at` is reached */
    const char *signal_when;  /* path of a file that is not empty */
    unsigned signal_after_ms; /* after that, or with signal_when NULL since the start */
    const char *stop_at;      /* "CALL:I": there the test build stops, and goes on when it has been given `signal` */
    unsigned stop_again_ms;   /* > 0: it stops at each later CALL as well, for that long */
    void (*at_stop)(void *);  /* called while the program, or a rank (`fault` says at what), is stopped */
    void *at_stop_ctx;
    const char *cgroup;                  /* the process joins this cgroup (run_cgroup) before it starts; NULL: none */
    uint64_t address_bytes, stack_bytes; /* `ulimit -v`, `ulimit -s`; 0: as they are */
    const char *input;                   /* stdin; NULL: nothing */
    bool as_it_is;                       /* nvme_path is not made, as a user makes it before `train` */
    unsigned ranks;                      /* > 0: under mpirun with so many, one thread each */
    unsigned kill_rank; /* with ranks: 1 + the one that gets `signal`; 0 or more than there are: the launcher */
    const char *fault;  /* with ranks: TIDEMILL_FAULT of fault_rank alone */
    unsigned fault_rank;
    const char *program; /* another one than tidemill, of its folder */
    const char *prelude; /* with ranks: shell commands that fault_rank alone begins with ("$@": its arguments) */
} run_opts;

typedef struct run_result {
    int status;      /* exit status; 128 + n where signal n ended it */
    char *out, *err; /* NUL-terminated */
    size_t out_len;
    uint64_t peak_bytes; /* largest VmHWM seen in /proc while it ran; at most a few milliseconds old */
    double seconds;
} run_result;

/* Runs `tidemill ARGUMENTS`; ended by NULL. */
run_result run(run_opts opts, ...) __attribute__((sentinel));
run_result run_argv(const run_opts *opts, const char *const *arguments);
void run_free(run_result *r);
#define RUN_OK(r) run_expect_ok(r, __FILE__, __LINE__)
void run_expect_ok(const run_result *r, const char *file, int line);
/* Lines of `text` that begin with "tidemill": what a failure prints. *first: the first of them (in static storage). */
unsigned run_error_lines(const char *text, const char **first);

/* ---- folders and files ----------------------------------------------------------------------------------- */

const char *run_dir(void);                                       /* a new folder below the current one */
const char *run_path(const char *dir, const char *name);         /* DIR/NAME; kept until run_clean */
const char *run_format(const char *format, ...) TM_PRINTF(1, 2); /* text kept until run_clean */
int run_clean(void **state);                                     /* removes every folder; frees every text */
void run_write(const char *path, const char *text);
void run_copy(const char *from, const char *to);       /* a file */
void run_copy_model(const char *from, const char *to); /* a folder's files; TO is made */
char *run_read(const char *path, size_t *len);         /* malloc'd, NUL-terminated; fails the test if absent */
/* A file's first n lines as DIR/NAME; that path. */
const char *run_first_lines(const char *from, const char *dir, const char *name, unsigned n);
/* Names of files in a folder (not "." and ".."), folders counted too; 0 if it is absent. */
unsigned run_entries(const char *dir);
void run_remove(const char *path);           /* with everything below */
void run_damage(const char *path, off_t at); /* flips one bit */

/* ---- tensors --------------------------------------------------------------------------------------------- */

typedef struct tensor {
    float *v;
    size_t n;
    const tm_st_info *info;
} tensor;
tm_st *tensors_open(const char *path);
tensor tensor_read(const tm_st *st, const char *name); /* widened to f32; the test fails if it is absent */
int64_t *tensor_ints(const tm_st *st, const char *name, size_t *n);
/* Four rows of arch_llama's fixture, and a configuration that trains it with all state in files of `offload`: `run` and `memory`
 * are what it says beside that, as members of JSON ("\"max_steps\": 2"). Neither `output` nor `offload` is there. */
typedef struct paged_scene {
    const char *dir, *config, *output, *offload;
} paged_scene;
paged_scene paged_scene_open(const char *run, const char *memory);
bool tensor_exists(const tm_st *st, const char *name);
/* Writes rows for `train`: input_ids, labels and attention_mask of `from` (leading dimensions flattened) as i64, rows
 * [first, first + rows), positions [0, seq). `learn_all`: the labels are the ids, wherever the mask is 1. */
void rows_write(const char *path, const tm_st *from, size_t first, size_t rows, size_t seq, bool learn_all);

/* ---- training -------------------------------------------------------------------------------------------- */

enum { LOG_STEPS = 64 };
typedef struct train_step {
    double loss, grad_norm, learning_rate;
    uint64_t tokens, label_tokens, read_bytes, write_bytes, planned_read, planned_write, host_peak, device_peak;
    uint64_t copied[2], planned_copied[2]; /* in, out; where there is an arena */
    double wait_copy, seconds;
    double loss_scale;      /* of fp16; 0: not in the line */
    uint64_t skipped_steps; /* up to this one */
    bool skipped;
} train_step;
typedef struct train_log {
    train_step step[LOG_STEPS];
    unsigned steps;
    char hash[40];
    uint64_t host_peak;    /* of the end event */
    uint64_t sampled_peak; /* run_train: of /proc */
    double seconds;        /* run_train: of the process */
} train_log;
/* DIR/log.jsonl; fails the test where a contract key is missing, steps are not 1.. or the end event is not last. */
train_log train_log_read(const char *output_dir);
/* The run directory of `rank` that OUTPUT_DIR/run.json names. */
const char *run_directory(const char *output_dir, unsigned rank);
/* config.json of a model of a few million parameters, to be drawn at random ("init": "random"): several tiles in a
 * part, two parts of a tied vocabulary, six blocks. DIR is made. */
void run_random_model(const char *dir);
/* config.json of an untied model of 512 wide blocks with a vocabulary of 8,192, of which nothing else is there: for
 * plans. DIR is made, below one that is there. */
void run_imagined_model(const char *dir, unsigned blocks);
/* Runs `train CONFIG --resume never --set ...` (`sets` ends with NULL) into OUTPUT and returns its log. The test fails
 * unless it trains, within `budget` by its own count and by ours (0: not checked), with the planned bytes in every
 * step, and leaves nothing in OUTPUT/offload. */
train_log run_train(const char *config, const char *output, uint64_t budget, const run_opts *opts,
                    const char *const *sets);
/* The least host budget of such a job: what its refusal at one byte names. */
uint64_t run_train_minimum(const char *config, const char *output, const char *const *sets);
/* The least device budget of such a job on cpu-arena. */
uint64_t run_train_device_minimum(const char *config, const char *output, const char *const *sets);
/* The bytes that a refusal names as the least budget; fails the test where stderr names none. */
uint64_t train_minimum(const char *err);

#define SETS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* ---- where the machine allows it ------------------------------------------------------------------------- */

/* A cgroup of ours that allows so many threads; NULL where that is not allowed. One of these at a time. */
const char *run_cgroup_threads(unsigned threads);
/* A memory cgroup of ours, limited to `bytes` and without swap; NULL where that is not allowed. */
const char *run_cgroup(uint64_t bytes);
void run_cgroup_remove(void);
const char *smollm2_gguf(void); /* path, or NULL where the data folder is absent */
const char *smollm2_fixture(const char *file);

#endif
