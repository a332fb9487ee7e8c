/* adapted: PEFT's adapters of the fixtures as jobs. Each has a base, the batches of its five steps and what PEFT found
 * in them; `settings`, `tolerances` and the rest of golden.json are asked for by name. */
#ifndef TIDEMILL_TEST_ADAPTED_H
#define TIDEMILL_TEST_ADAPTED_H

#include "run.h"

typedef struct adapted {
    const char *name, *folder, *base; /* folder: the adapter's; base: the model's */
    const char *dir, *rows;           /* ours; the rows of all steps, in it */
    tm_json_doc *doc;
    tm_st *golden, *inputs;
    size_t steps, batch, seq;
} adapted;

adapted adapted_open(const char *name); /* "peft_lora" */
void adapted_close(adapted *a);
const tm_json *adapted_get(const adapted *a, const char *block, const char *key);
double adapted_number(const adapted *a, const char *block, const char *key);
double adapted_element(const adapted *a, const char *block, const char *key, size_t i);
/* DIR/config.json of the trajectory of golden.json, in fp32, which begins with the fixture's adapter; of `model`, or
 * NULL: the fixture's base. */
const char *adapted_config(const adapted *a, const char *model);
/* Fails unless the log has golden.json's losses and norms, and `file` the final values. */
void adapted_check_steps(const adapted *a, const train_log *log, double loss_abs, double norm_rel);
void adapted_check_final(const adapted *a, const char *file);
/* The least budget of such a job, as a --set, and the budget in bytes. */
const char *adapted_least(const char *config, const char *dir, const char *const *sets, uint64_t *bytes);
/* The next --set of those that page a job at its least budget: state and weights in files below `dir`. */
#define ADAPTED_FILES(dir)                                                                                             \
    "memory.cache=none", "zero_optimization.offload_param.device=nvme",                                                \
        "zero_optimization.offload_optimizer.device=nvme",                                                             \
        run_format("zero_optimization.offload_param.nvme_path=%s/disk", dir),                                          \
        run_format("zero_optimization.offload_optimizer.nvme_path=%s/disk", dir)

void adapted_near(const char *what, double got, double want, double tolerance);
double adapted_l2(const float *a, const float *b, size_t n); /* of a - b; b NULL: of a */
double adapted_max_abs(const float *a, const float *b, size_t n);
/* The same bytes. */
void adapted_same_files(const char *a, const char *b);
/* bytes_by_kind.KIND.read or .write of a step's line of DIR/log.jsonl; 0 where it is absent. */
uint64_t adapted_bytes(const char *output_dir, unsigned step, const char *kind, const char *way);

#endif
