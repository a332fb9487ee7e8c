/* report: what a run left behind, for people and for the programs that they know.
 *
 *     tm_history *r;
 *     TM_TRY(tm_history_open(&r, "out", 0));           // OUTPUT_DIR: run.json and log.jsonl
 *     TM_TRY(tm_report_write("out/report.html", (const tm_history *const[]){r}, 1));
 *     tm_history_close(r);
 *
 * A record is what log.jsonl says, folded: sums, and a curve of each number that its lines have. Memory does not grow with
 * the run: a curve keeps at most TM_SERIES_POINTS points, among them the highest and the lowest of those that it left out.
 *
 * Nothing here knows a trainer: what a line of the log means is in DESIGN section 12. A file that is not what a run writes is
 * TM_EINPUT; a last line that is not ended yet is left for the next look.
 *
 * Threads: a record belongs to one thread. The run may go on writing meanwhile.
 */
#ifndef TIDEMILL_REPORT_H
#define TIDEMILL_REPORT_H

#include "base/base.h"

/* ---- what a run left ---------------------------------------------------------------------------------------------- */

enum { TM_SERIES_POINTS = 2048, TM_SERIES_MOST = 96, TM_SERIES_NAME = 80 };
typedef struct tm_point {
    int64_t step;
    double value;
} tm_point;
typedef struct tm_series {
    char name[TM_SERIES_NAME]; /* as in the log; "eval/loss" of an evaluation */
    bool of_evaluation;
    tm_point *point; /* ascending steps */
    uint32_t n, most;
    uint64_t stride;    /* how many values a pair of points stands for; 1: each point is one */
    tm_point low, high; /* of the pair that is being filled, */
    uint64_t pending;   /* from so many values */
    tm_point last;
} tm_series;

typedef enum tm_wait { TM_WAIT_COMPUTE, TM_WAIT_READ, TM_WAIT_WRITE, TM_WAIT_COPY, TM_WAIT_COMM, TM_WAITS } tm_wait;
extern const char *const tm_wait_names[TM_WAITS]; /* as in wait_seconds */

/* Sums over the steps of the log. */
typedef struct tm_history_sums {
    uint64_t steps, skipped, tokens, label_tokens;
    uint64_t read_bytes, write_bytes, commit_bytes;
    uint64_t commits, checkpoints, evaluations, resumes;
    double step_seconds, predicted_seconds, data_seconds, commit_seconds;
    double wait_seconds[TM_WAITS];
    uint64_t host_peak_bytes, device_peak_bytes; /* the largest of any step */
} tm_history_sums;

typedef struct tm_history {
    char dir[4096];
    tm_json_doc *run; /* run.json; NULL: there is none */
    tm_series *series;
    uint32_t n_series;
    tm_history_sums sums;
    tm_history_sums latest;  /* of the latest step alone */
    int64_t step, committed; /* 0: none */
    uint32_t ranks;
    bool ended;
    char state_hash[40];
    uint32_t points; /* of a curve, at most */
    /* where reading goes on */
    uint64_t at, lines;
    uint64_t last_bytes, last_hash; /* of the line that ends there */
} tm_history;

/* `points`: that a curve keeps at most, 8 at the least; 0: TM_SERIES_POINTS. 16 bytes each. TM_EINPUT: `dir` holds no
 * log.jsonl. */
TM_MUST_USE tm_status tm_history_open(tm_history **out, const char *dir, uint32_t points);
/* Reads run.json again, and the lines that came since; all of them where the log is another one by now. */
TM_MUST_USE tm_status tm_history_follow(tm_history *r);
void tm_history_close(tm_history *r); /* NULL is fine */
/* One line of a log, as tm_history_follow takes it; for who has it already. */
TM_MUST_USE tm_status tm_history_line(tm_history *r, const char *line, size_t n);
const tm_series *tm_history_series(const tm_history *r, const char *name); /* NULL: there is none */
/* Of run.json: "config.model", "planned.seconds"; NULL: not there. */
const tm_json *tm_history_fact(const tm_history *r, const char *path);
double tm_history_number(const tm_history *r, const char *path, double absent);
const char *tm_history_text(const tm_history *r, const char *path, const char *absent);
/* How many points of a curve are to be drawn, the pending ones with them, into `to` [TM_SERIES_POINTS + 2]. */
uint32_t tm_series_points(const tm_series *s, tm_point *to);

/* ---- report.html -------------------------------------------------------------------------------------------------- */

/* Of OUTPUT_DIR: what held-out prompts were answered. {"tokens": a bound of each answer, "left_out"?: why there are none,
 * "questions": [{"prompt_ids", "wanted_ids", and once they were answered "prompt", "wanted", "before"?, "after": texts}]} */
#define TM_REPORT_ANSWERS "report_answers.json"
enum { TM_REPORT_QUESTIONS = 3 };

/* One page without a network: what was trained on what, curves with zoom, held-out answers, planned beside found, where the
 * seconds went, a step as it was planned, warnings, versions, how to use the result. Several runs are laid over each other.
 * Written a curve at a time: what it takes beside the records is some kilobytes, a step's timeline and a buffer of 64 KiB. */
TM_MUST_USE tm_status tm_report_write(const char *path, const tm_history *const *runs, uint32_t n);
TM_MUST_USE tm_status tm_report_page(tm_buf *out, const tm_history *const *runs, uint32_t n);

/* A page of one step alone: `step` is tm_timeline_json's object (offload/sim/sim.h). */
TM_MUST_USE tm_status tm_report_step_write(const char *path, const char *title, const char *subtitle,
                                           const tm_buf *step);

/* ---- curves in characters (UTF-8) ---------------------------------------------------------------------------------- */

/* `columns` blocks, each as high as the mean of the points that it stands for; fewer where there are fewer points. */
enum { TM_CURVE_COLUMNS = 64 };
TM_MUST_USE tm_status tm_curve_line(tm_buf *out, const tm_point *p, uint32_t n, uint32_t columns);
/* Lines of `columns` characters, each of 2 x 4 dots. */
TM_MUST_USE tm_status tm_curve_picture(tm_buf *out, const tm_point *p, uint32_t n, uint32_t columns, uint32_t rows);

/* ---- what other programs read -------------------------------------------------------------------------------------- */

/* DIR/trainer_state.json as HF Trainer writes it (transformers.TrainerState), of run.json and log.jsonl in `output_dir` up to
 * `step`. A line at a time: memory does not grow with the log. */
TM_MUST_USE tm_status tm_trainer_state_write(const char *dir, const char *output_dir, int64_t step);
/* DIR/README.md, a model card of the Hub (YAML front matter). One that is there and is not ours stays as it is. */
TM_MUST_USE tm_status tm_model_card_write(const char *dir, const tm_history *r);

/* TensorBoard's event file, DIR/events.out.tfevents.TIME.HOST.PID.0: scalars of lines of a log, as they come, under the tags
 * of HF Trainer ("train/loss", "eval/loss"). Format: records of TFRecord (length, masked CRC-32C of it, bytes, masked CRC-32C
 * of them) of tensorflow.Event, protocol buffers, as tensorboard/compat/proto/event.proto and summary.proto have them. */
typedef struct tm_events tm_events;
TM_MUST_USE tm_status tm_events_open(tm_events **out, const char *dir);
TM_MUST_USE tm_status tm_events_line(tm_events *e, const char *line, size_t n);
void tm_events_close(tm_events *e); /* NULL is fine */

#endif
