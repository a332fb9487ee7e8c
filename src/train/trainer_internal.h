/* The training job's own header: one struct, and what its files offer each other. */
#ifndef TIDEMILL_TRAINER_INTERNAL_H
#define TIDEMILL_TRAINER_INTERNAL_H

#include "train/train.h"
#include "io/run/run.h"
#include "io/file/file.h"
#include "planner/run.h"
#include "reference/reference.h"
#include "report/report.h"
#include "step/step.h"

/* What a step came to, as its operations left it. */
typedef struct step_line {
    step_frame r;
    step_total total; /* of all ranks */
    int64_t step;
    const tm_plan *plan;
    double loss_scale; /* that the step's loss was multiplied by, in fp16 */
    double at, took;   /* seconds: since the first step began; of the step, */
    double data;       /* and of it, until its batches were there */
    uint64_t sent[2];  /* bytes to other ranks: within the node, between nodes */
} step_line;
typedef struct trainer_watch trainer_watch;
typedef struct trainer_profile trainer_profile;

enum { TRAINER_LOSSES = 64 };
/* Ranks outlive a launcher that was killed, and some launchers the rank that was: whoever finds a run at work waits for
 * so long before it says so. */
enum { STILL_DYING_MS = 10000, LOOKED_AT_MS = 1000 }; /* the second: `clean` looks whether a directory is in use */
/* What OUTPUT_DIR/run.json says of the run before. */
typedef struct earlier {
    bool any, finished, kept;      /* kept: keep_state */
    bool starting;                 /* whatever was there before was given up; no step was done since */
    char key[TM_IO_KEY_CHARS + 1]; /* "": of a version before keys */
    bool damaged;                  /* it met state that was not what had been written */
    bool early;                    /* finished by early stopping */
    int64_t step;
    tm_json_doc *doc;                     /* the caller frees it */
    const tm_json *directories, *by_rank; /* of doc */
} earlier;

/* The run before, where it was laid out otherwise: on other ranks, with another strategy. */
typedef struct trainer_old {
    earlier run;
    const char **directory; /* of run (or of `texts`): the first of each rank */
    tm_buf texts;           /* of a full checkpoint's directories */
    uint32_t ranks;
    tm_commit **taken; /* [ranks] with their locks, by the rank that speaks */
    bool other;
} trainer_old;

/* Checkpoints of this run (trainer_save.c). The list is kept where there is a limit. */
typedef struct trainer_saves {
    int64_t *step; /* ascending */
    uint32_t n, cap;
    int64_t best, kept; /* step of the best that was saved; of the one that the latest commit names; 0: none */
    double best_loss;
    double loss; /* metric_for_best of this step's evaluation; not a number: there was none */
} trainer_saves;

/* Early stopping (trainer_patience.c): what evaluations came to. */
typedef struct trainer_patience {
    double best;
    bool any;       /* there is a best one */
    uint32_t count; /* evaluations since one was better by more than the threshold */
    int64_t step;   /* of the latest that was counted */
} trainer_patience;

/* What a start finds in OUTPUT_DIR, judged while it is held, so that what it makes itself can be told from the rest. */
typedef struct trainer_found {
    char path[4096];            /* of OUTPUT_DIR; "": not held (by this rank) */
    size_t above;               /* length of the folder above that was there already */
    bool folder, run_json, log; /* were there */
} trainer_found;

/* OUTPUT_DIR and the run directories, as this run's own (trainer_output.c). */
typedef struct trainer_output {
    tm_dir_lock *lock;             /* OUTPUT_DIR is this run's */
    char here[4096];               /* OUTPUT_DIR by its full name */
    char home[4096];               /* OUTPUT_DIR/offload: of commits, where nothing else needs a disk */
    char key[TM_IO_KEY_CHARS + 1]; /* OUTPUT_DIR's: in run.json and in its run directories */
    bool copied;       /* OUTPUT_DIR is a copy of one that is still there, whose run directories run.json names */
    tm_io_claim claim; /* what directories this run may have */
    const char **claim_paths;
    trainer_found found;
    char run_hash[16];      /* how the names of its run directories begin */
    char run_name[32];      /* the same, of this rank's */
    tm_buf directories;     /* run directories of all ranks: texts, each with its NUL, */
    const char **directory; /* where each begins, */
    uint32_t n_directories;
    uint32_t *directories_of; /* [ranks] and how many are a rank's */
} trainer_output;

/* What the run goes on from (src/train/resume). */
typedef struct trainer_from {
    tm_commit *commit; /* NULL: it starts */
    char copy[4400];   /* run directory that this run made as a copy of another's, to go on from; "": none */
    trainer_old old;
    struct elastic *elastic; /* the state is read from there */
    int64_t found_step;      /* step of the commit that is to be gone on from, until it is; -1: none */
    bool finished, done;     /* run.json says so; of this job, and there is nothing left to do */
    bool rewound;            /* to a full checkpoint: an older state than the latest */
} trainer_from;

/* log.jsonl, each line hashed onto those before: so far, and up to the latest step line (trainer_lines.c). */
typedef struct trainer_lines {
    tm_append *file;
    uint64_t lines, hash, step_lines, step_hash;
} trainer_lines;

/* This process's share of the run. */
typedef struct trainer_life {
    uint64_t start_ns, tokens_done;
    int64_t start_step;
    uint64_t steps_ns;                          /* that the steps took */
    uint64_t commit_ns, step_began_ns, step_ns; /* time of the latest commit; start and length of the latest step */
    double commit_seconds;                      /* that it took */
} trainer_life;

/* What a person was told (trainer_progress.c). */
typedef struct trainer_said {
    run_forecast planned;    /* at the start of the steps, */
    uint64_t planned_before; /* when so much was written already */
    step_line line;          /* the latest that was seen, */
    uint64_t moved;          /* bytes of its reads and writes, */
    uint64_t ns, live_ns;    /* and when a line stayed, when the live one was drawn */
} trainer_said;

/* What is written for others to look at (trainer_report.c). */
typedef struct trainer_reports {
    tm_events *events; /* TensorBoard's; NULL: not asked for */
    tm_buf step;       /* tm_timeline_json of a step as it is planned; empty: not drawn */
    bool ended;        /* the run is over, and this rank speaks of it */
} trainer_reports;

/* The evaluation under way, or the latest. */
typedef struct trainer_eval {
    bool under_way;
    uint64_t step;
    step_total total; /* of its steps so far */
    double *task;     /* [s.scores.n] what tasks came to */
} trainer_eval;

typedef struct trainer {
    session s;
    tm_job *job;
    run_plans plans;
    trainer_output out;
    trainer_from from;
    trainer_lines log;
    /* the state, as a commit has it */
    int64_t step, applied;                      /* optimizer steps done; those whose update was applied */
    int64_t skipped_in_a_row, skipped_at_scale; /* the second: since the loss scale last fell */
    tm_loss_scaler scaler;                      /* of fp16: the scale of the step that comes next, and what moves it */
    trainer_saves saves;
    bool unfinished;               /* evaluation or checkpoint of this step is to be done after a resume */
    int64_t committed;             /* step of the latest commit of this run, -1: none */
    bool torn;                     /* an update is under way: the state is of no step */
    bool pending;                  /* update F: gradients wait for their update */
    uint64_t comm_sent[2];         /* bytes by link, up to the latest count */
    double losses[TRAINER_LOSSES]; /* of the latest steps, in a ring (diagnose.c) */
    uint32_t n_losses;
    trainer_eval eval;
    trainer_patience patience;
    reference_values reference;
    trainer_life life;
    trainer_said said;
    trainer_reports report;
    trainer_watch *watch;
    trainer_profile *profile; /* NULL: not asked for */
    char path[4096];          /* trainer_path */
} trainer;

const char *trainer_path(trainer *t, const char *name); /* OUTPUT_DIR/name, until the next call */

/* trainer_output.c: OUTPUT_DIR as this run's own. */
/* Collective. Refuses one whose files would replace the user's, holds it (nobody else starts there until the process
 * ends) and knows its key; a new OUTPUT_DIR gets one, in run.json. Before anything in it is believed or removed. */
tm_status trainer_take_output(trainer *t);
void trainer_undo_output(trainer *t); /* a start was refused: what it made goes, and nothing else */
/* Decided: there is nothing to go on from. run.json says so before anything of the run before is cut or removed. */
tm_status trainer_start_over(trainer *t);
tm_status trainer_put_run_json(trainer *t, const tm_buf *text); /* in place of the one before */
typedef enum dir_owner { DIR_NOBODYS, DIR_OURS, DIR_ANOTHERS } dir_owner;
/* Whose a run directory is; NOBODYS: not there, or none. Ours has the key and lies in a configured path. */
dir_owner trainer_whose(const trainer *t, const char *dir, tm_io_owner *o);
tm_status trainer_write_run_json(trainer *t, const char *status);
/* trainer_reference.c. Collective; before the job is opened, whose memory it needs. */
tm_status trainer_make_reference(trainer *t);
/* Micro-batch `mb` of the step under way, or of the evaluation under way (a job's `fill`). */
tm_status trainer_fill(void *ctx, uint32_t mb, uint32_t batch, const job_columns *to, job_batch *out);

void trainer_close(trainer *t);

/* trainer_ranks.c: one rank among others. */
tm_status trainer_same_input(trainer *t);                         /* model, data, what computes */
tm_status trainer_same_plans(trainer *t);                         /* operations between ranks, of every plan */
tm_status trainer_gather_directories(trainer *t);                 /* collective: t->out.directory */
void trainer_describe_ranks(const trainer *t, tm_json_writer *w); /* into a commit: whose it is */
tm_status trainer_check_ranks(const trainer *t, const tm_json *info);
enum { FLAG_STOP = 1, FLAG_COMMIT = 2 };
void trainer_count_sent(trainer *t, uint64_t sent[2]); /* since the latest call */
uint32_t trainer_flags(const trainer *t);              /* what this rank tells the others with its step */

/* trainer_plan.c: the job that runs the step. */
tm_status trainer_open_job(trainer *t);
/* Whether it would fit, of a run that starts: nothing is made of it. TM_EBUDGET: as trainer_open_job, and which limit. */
tm_status trainer_plan_job(trainer *t, job_refusal *refusal);
job_opts trainer_job_options(const trainer *t); /* session_job_options, and whose the state is */

/* Where tests end the process, or hold it up for two seconds (kind "delay"). */
void trainer_kill_point(const char *name);

/* trainer_commit.c: commits. */
/* The state after the step that comes next will be committed (or looked at): nothing may be read ahead for the one
 * after it. To be asked before that step. */
bool trainer_commit_due(const trainer *t);
/* Every so many steps, or at the end of each epoch, where that is how it was said (TM_BY_EPOCH_*)? `step` are done. */
bool trainer_due(const trainer *t, int64_t every, unsigned by_epoch, int64_t step);
tm_status trainer_commit(trainer *t);
bool trainer_may_go_on(void *t);                           /* a signal came: there is time to end the step */
tm_status trainer_numerics(const trainer *t, tm_buf *out); /* what computes, as text */

/* trainer_resume.c: what a run goes on from. */
/* Opens the commit that --resume and OUTPUT_DIR ask for (t->from.commit; NULL: start), or refuses. */
tm_status trainer_choose_start(trainer *t);
/* Model and data are open: the commit is of this job, and there is something left to do. Sets the counters. */
tm_status trainer_check_commit(trainer *t);
tm_status trainer_end_finished(trainer *t); /* t->from.done: what is left of its state goes, the user is told */
/* Hashes that tell a job's input, into run.json. */
void trainer_describe_input(const trainer *t, tm_json_writer *w);
void trainer_forget_old(trainer *t);
tm_status trainer_remove_old(trainer *t);
tm_status earlier_read(const char *path, earlier *out);
tm_status earlier_mark_damaged(const char *path); /* run.json of a run that goes on */

/* trainer_state.c: full checkpoints of older states. */
tm_status trainer_save_state(trainer *t, const char *checkpoint); /* into CHECKPOINT/state */
tm_status trainer_open_full(trainer *t, const char *state);       /* goes on from a copy of it */
/* Goes on from the commit or, where its manifest is damaged or a file is not there or cut off, from the newest of
 * those. `prove`: where a page of it is damaged as well, all are read. */
tm_status trainer_open_commit(trainer *t, const char *directory, bool prove);
bool trainer_newest_full(const trainer *t, char *path, size_t cap); /* OUTPUT_DIR/checkpoint-N that holds state */
/* The newest of those with N < *below, which becomes N. */
bool trainer_next_full(const trainer *t, int64_t *below, char *path, size_t cap);
/* What `rc` refused is damaged, incomplete or cannot be read: an older one may not be. */
bool trainer_older_may_do(tm_status rc);
/* elastic_state.c: the same for several ranks. */
tm_status elastic_save(trainer *t, const char *checkpoint); /* collective */
bool elastic_is_checkpoint(const char *dir);                /* that several ranks made */
tm_status elastic_begin(trainer *t, const char *dir);       /* goes on from t->from.old.directory, only read */
tm_status elastic_resume(trainer *t, const char *checkpoint, bool *any); /* of any number of ranks; any: there is one */
/* The same for one that nobody asked for: collective; TM_OK: every page of it was read by someone and is right. */
tm_status elastic_go_back(trainer *t, const char *checkpoint);
/* After opening the ranks' commits, which was agreed on and came to `rc`: from damaged ones back to the newest full
 * checkpoint that is whole, if there is one. */
tm_status elastic_fall_back(trainer *t, tm_status rc, bool *any);
/* Removes what an earlier run was writing in OUTPUT_DIR when it was killed. */
tm_status trainer_sweep(trainer *t);
/* trainer_lines.c: log.jsonl across lives. */
void trainer_count_line(trainer *t, const char *line, size_t n); /* it was appended */
void trainer_mark_log(trainer *t); /* what comes from here on belongs to what follows a step */
void trainer_describe_log(const trainer *t, tm_json_writer *w);      /* into a commit: the lines so far */
tm_status trainer_check_log(trainer *t, const tm_json *info);        /* they are there as they were */
tm_status trainer_cut_log(trainer *t);                               /* lines of steps past the commit go */
TM_MUST_USE tm_status trainer_log_has_commit(trainer *t, bool *any); /* of the run before */

tm_status trainer_settle(trainer *t); /* applies what is pending, ends what was begun ahead */

/* trainer_step.c: steps, evaluations and checkpoints; then the model and the last line of the log. */
tm_status trainer_run_steps(trainer *t);
tm_status trainer_stopped(const trainer *t); /* TM_ESIGNAL, with the step that is committed */
tm_status trainer_finish(trainer *t);

/* trainer_report.c: what others look at. A failure of it is a warning. Of the first rank alone. */
void trainer_describe_run(const trainer *t, tm_json_writer *w); /* into run.json: plan, best checkpoint, warnings */
void trainer_report_step(trainer *t, const tm_plan *step,
                         const pass_opts *way);                   /* it was chosen; the slab is not there */
void trainer_report_open(trainer *t);                             /* the log is open */
void trainer_report_line(trainer *t, const char *line, size_t n); /* it was appended to the log */
void trainer_report_state(const trainer *t, const char *dir);     /* DIR/trainer_state.json */
void trainer_report_checkpoint(trainer *t);                       /* report.html so far */
void trainer_report_questions(trainer *t); /* the job is closed, the data are not: held-out prompts, to be answered */
bool trainer_report_is_missing(const trainer *t); /* of a finished run: killed before page and card were there */
void trainer_report_end(trainer *t);              /* all is closed: report.html, README.md */
void trainer_report_free(trainer *t);

/* trainer_scale.c: the loss scale of fp16. All return at once in other precisions. */
void trainer_open_scale(trainer *t);                              /* once the configuration is there */
void trainer_describe_scale(const trainer *t, tm_json_writer *w); /* into a commit, */
tm_status trainer_read_scale(trainer *t, const tm_json *info);    /* and from it */
int64_t trainer_schedule_step(const trainer *t);                  /* whose learning rate the next step has */
/* After a step that began with `scale`, which is said where it overflowed. False: the run has to stop. */
bool trainer_scale_step(trainer *t, double scale);
void trainer_log_scale(const trainer *t, tm_json_writer *w, double scale);

/* trainer_save.c: checkpoint-N folders, the best of them, the model at the end. */
tm_status trainer_find_best(trainer *t);       /* before the first step: what is called the best is there */
tm_status trainer_save_checkpoint(trainer *t); /* after a step and its evaluation: if one is due */
void trainer_note_best(trainer *t);            /* the last step's evaluation: its model goes to OUTPUT_DIR itself */
tm_status trainer_save_last(trainer *t);
void trainer_describe_best(const trainer *t, tm_json_writer *w);  /* its step, how good it is and by what */
void trainer_describe_saves(const trainer *t, tm_json_writer *w); /* into a commit, */
tm_status trainer_read_saves(trainer *t, const tm_json *info);    /* and from it */
tm_status trainer_committed_saves(trainer *t);                    /* it was published */

/* A model or adapter of the state as it is, into `dir`; collective. */
tm_status trainer_write_model(trainer *t, const char *dir, tm_fmt dtype);

/* trainer_tasks.c: eval_tasks. */
tm_status trainer_open_tasks(trainer *t);
tm_status trainer_score_tasks(trainer *t); /* collective; the state is settled: with its weights */
bool trainer_task_metric(const trainer *t, const char *name, double *value); /* false: none of that name */
void trainer_log_tasks(const trainer *t, tm_json_writer *w);                 /* into an evaluation's line */
void trainer_say_tasks(const trainer *t);

/* trainer_patience.c: metric_for_best_model, early stopping. */
tm_status trainer_check_metric(const trainer *t);     /* the data are there: evaluations have it */
double trainer_metric(const trainer *t, double loss); /* of the latest evaluation */
double trainer_bits_per_byte(const trainer *t);       /* the same; NAN: not known */
void trainer_count_patience(trainer *t, double value);
bool trainer_is_out_of_patience(const trainer *t); /* the run ends with this step */
void trainer_say_patience(const trainer *t);
void trainer_describe_patience(const trainer *t, tm_json_writer *w); /* into a commit, */
void trainer_read_patience(trainer *t, const tm_json *info);         /* and from it */

/* trainer_room.c: what the run will write to OUTPUT_DIR has room there. After the job is open, whose space is taken by
 * then; of the rank that speaks. */
tm_status trainer_check_room(const trainer *t);

/* trainer_watch.c: steps as predicted and as they ran; which step's first reads may begin before the one before it
 * ends. */
tm_status trainer_watch_open(trainer *t,
                             const job_opts *o); /* after job_open: machine and costs, for the choice of plan */
/* The other plans are there, the slab is not: for proving who follows whom a thousand micro-batches take 20 MiB. */
tm_status trainer_watch_link(trainer *t, const tm_plan *step);
tm_status trainer_watch_start(trainer *t);                    /* plans and executor are there */
void trainer_watch_announce(trainer *t, const tm_plan *plan); /* a step is about to run `plan` */
tm_status trainer_watch_step(trainer *t, const step_line *line);
/* Of the steps to come and what comes with them, by the same simulation; after the start. */
TM_MUST_USE tm_status trainer_watch_forecast(trainer *t, run_forecast *out);
double trainer_watch_seconds(const trainer *t); /* predicted, of a step; 0 before the start */
/* A step as it is planned, into t->report.step: while the slab is not there, as trainer_watch_link. */
tm_status trainer_watch_draw(trainer *t, const tm_plan *step, const pass_opts *way);
void trainer_watch_stopped(trainer *t);  /* a signal ended the steps: the trace is written */
tm_status trainer_watch_end(trainer *t); /* after the last step: the trace is written */
void trainer_watch_close(trainer *t);

/* profile.c: --profile. */
tm_status trainer_profile_open(trainer *t);                  /* plans and executor are there */
void trainer_profile_add(trainer *t, const tm_run_stats *s); /* a step's last transfer has landed */
/* After the last step: the table, and a log line. `rc`: how the steps ended; a stop by a signal stays one. */
tm_status trainer_profile_end(trainer *t, tm_status rc);
void trainer_profile_close(trainer *t);

/* trainer_device.c: the algorithms that the device chose. */
tm_status trainer_describe_choices(const trainer *t, tm_json_writer *w); /* into a commit, */
tm_status trainer_take_choices(trainer *t);                              /* and from it, before the first step */

/* diagnose.c */
tm_status trainer_give_up(trainer *t, int skipped); /* commits, says where the step's numbers stop being finite */
tm_status trainer_note_loss(trainer *t);            /* after a step: a loss that stands out is logged */

/* replay.c: --replay-every. */
uint64_t trainer_replay_bytes(const trainer *t);    /* of the budget; the model is open */
tm_status trainer_replay_start(trainer *t);         /* plans and executor are there */
void trainer_replay_step(trainer *t, int64_t step); /* around a run of its plans; 0: no step */

/* trainer_progress.c: what a person sees of a run. */
TM_MUST_USE tm_status trainer_show_steps(trainer *t); /* around the steps of this process */
void trainer_show_no_more(trainer *t);
void trainer_show_step(trainer *t, const step_line *line, uint64_t moved);
void trainer_summary(trainer *t);

/* trainer_log.c: log.jsonl. */
tm_status trainer_log_step(trainer *t, const step_line *line, const tm_run_stats *run, double predicted_seconds);
/* A line of log.jsonl that is not a step's: {"event", "step", what the caller writes in between}. `line` is freed. */
void trainer_line_begin(const trainer *t, tm_json_writer *w, tm_buf *line, const char *event);
TM_MUST_USE tm_status trainer_line_end(trainer *t, tm_json_writer *w, tm_buf *line);
tm_status trainer_log_event(trainer *t, const char *event, const char *hash, double eval_loss);
tm_status trainer_log_commit(trainer *t, const tm_commit_stats *stats); /* trainer_commit.c */

#endif
