/* The configuration's own: the schema table, and the state while layers are merged and resolved.
 * README.md has the map of files, and how a key is added. */
#ifndef TIDEMILL_CONFIG_INTERNAL_H
#define TIDEMILL_CONFIG_INTERNAL_H

#include "config/config.h"

typedef struct cfg_state cfg_state;

/* ---- schema (schema.c) --------------------------------------------------------------------------------------- */

/* What a value may be. Several may be allowed. */
enum {
    T_BOOL = 1,
    T_INT = 2, /* integral; 5e8 counts */
    T_NUM = 4,
    T_STR = 8,
    T_ENUM = 16,      /* a string of `choices` */
    T_SIZE = 32,      /* bytes, or "3GiB" */
    T_LIST = 64,      /* a string, or an array of strings */
    T_PAIR = 128,     /* two numbers */
    T_OBJ = 256,      /* its keys are rows of their own */
    T_ANY = 512,      /* not looked into */
    T_AUTO = 1024,    /* "auto" */
    T_NULL = 2048,    /* null: as if absent */
    T_ALWAYS = 8192,  /* K_IGNORED: true is what is done anyway; false warns */
    T_EMPTY = 32768,  /* of T_LIST: it may have nothing in it */
    T_TABLE = 65536,  /* an object that is not looked into */
    T_NAMES = 131072, /* an object of names, each with another name */
    T_FILES = 262144, /* a path, an object, or a list of these: config_data.c */
    T_RANKS = 16384,  /* K_IGNORED: `help` is the reason on several ranks */
    T_WORD = 4096     /* booleans may be the strings "true" and "false" (ds_nvme_tune prints those) */
};
typedef enum schema_kind {
    K_OURS,    /* tidemill's, ms-swift's and HF Trainer's names */
    K_DS,      /* DeepSpeed's, honoured */
    K_BOTH,    /* the same name on both sides */
    K_IGNORED, /* recognised, no effect here: warns once */
    K_LATER,   /* recognised; would change the result; not in this version: refused unless switched off */
    K_REFUSED  /* refused for good, with the reason */
} schema_kind;
/* How a row's field in tm_config holds its value. Where a value of this form is "not set", it is left out of the dump. */
typedef enum field_form {
    F_NONE,   /* the row has no field */
    F_BOOL,   /* bool */
    F_INT,    /* an integer of `bytes` bytes, signed or not; not set below the row's least */
    F_STEPS,  /* int64_t of the schedule: may be "auto" until the data are known */
    F_DOUBLE, /* double; not set below the row's least, or NaN */
    F_PAIR,   /* two doubles, one after the other */
    F_TEXT,   /* const char *; NULL: not set */
    F_LIST,   /* tm_strings; none: not set */
    F_ENUM,   /* an enum that counts as the choices do, or a bool of two */
    F_SIGN,   /* int: the first of three choices is 0, the second 1, the third -1 */
    F_DTYPE,  /* tm_dtype */
    F_PLACE,  /* tm_place */
    F_SHAPE,  /* tm_lr_shape */
    F_WORD,   /* const char *: the choice's name */
    F_BF16,   /* tm_dtype: is it that one */
    F_F16,    /* tm_dtype: is it that one */
    /* What bounds the planner where it is given; "auto" leaves it to the planner. */
    F_ELEMENTS, /* uint64_t; TM_AUTO_ELEMENTS: not set */
    F_BUCKET,   /* as F_ELEMENTS; the value with its default, or "auto", is at resolved_at */
    F_DENIED,   /* bool: false was given, by any of the rows with this field; else not set */
    F_RATIO     /* double; below 0: not set */
} field_form;

typedef struct schema_row schema_row;
struct schema_row {
    const char *path; /* "memory.host_budget" */
    const char *help; /* meaning and unit; for K_IGNORED, K_LATER, K_REFUSED the reason */
    schema_kind kind;
    unsigned types;
    const char *choices;  /* T_ENUM: "bf16=bfloat16|fp32": canonical=synonym, or NULL */
    const char *def;      /* the default as JSON text without quotes; NULL: none */
    double min, max;      /* of T_INT, T_NUM, T_SIZE (bytes), T_PAIR; max 0: none */
    const char *alias_of; /* another spelling of that row */
    /* where the value goes */
    field_form form;
    size_t at, bytes;   /* offset in tm_config, and size */
    size_t resolved_at; /* F_BUCKET */
    bool filled;        /* by cfg_fill_all, from the value or else the default; otherwise by a resolver */
    bool option;        /* by the optimizer, whose option of the same name it is */
    unsigned takers;    /* by the schedule: those that take this argument, 1 << tm_lr_type */
    /* the dump: NULL, never; a section is shown with what is in it */
    bool (*shown)(const tm_config *c, const schema_row *row);
    void (*write)(tm_json_writer *w, const tm_config *c, const schema_row *row); /* key and value; NULL: as they are */
    tm_config_change change;
    bool method; /* it, or what is in it, says what learns, or how */
};
extern const schema_row schema_rows[];
extern const size_t schema_row_count;
const schema_row *schema_find(const char *path); /* as spelled; NULL if unknown */
/* Index of a row; a path that is not there is our own bug. */
size_t schema_index(const char *path);
/* Which of the choices (from 0) a value is, synonyms included; -1: none. */
int schema_choice(const schema_row *row, const char *value, size_t len);
const char *schema_choice_name(const schema_row *row, int index, char *buf, size_t cap);
/* "one of a, b, c" / "an integer or \"auto\"" into buf. */
const char *schema_expects(const schema_row *row, char *buf, size_t cap);

/* ---- fields of rows (config_field.c) ------------------------------------------------------------------------- */

/* Rows that are `filled`, in the order of the table. */
tm_status cfg_fill_all(cfg_state *s) TM_MUST_USE;
/* One row, from its value or else its default; without either the field stays as it is. */
tm_status cfg_fill(cfg_state *s, const schema_row *row) TM_MUST_USE;
tm_status cfg_fill_path(cfg_state *s, const char *path) TM_MUST_USE;
tm_dtype cfg_dtype(const cfg_state *s, const char *path); /* of a key that was given, or has a default */
tm_place cfg_place(const cfg_state *s, const char *path);
bool field_is_set(const tm_config *c, const schema_row *row);
bool field_is_number(const schema_row *row);
double field_number(const tm_config *c, const schema_row *row);
void field_write(tm_json_writer *w, const tm_config *c, const schema_row *row); /* the value alone */

/* ---- what is written down, and how (config_dump.c); named in rows -------------------------------------------- */

typedef bool shown_when(const tm_config *c, const schema_row *row);
shown_when shown_always, shown_set, shown_nonzero, shown_eval, shown_columns, shown_thinking, shown_f16, shown_hf,
    shown_deepspeed, shown_argument;
shown_when shown_option, shown_betas, shown_beta1, shown_rate, shown_bucket, shown_aio, shown_best, shown_tracked;
shown_when shown_losses, shown_host_budget, shown_adapter, shown_quantized, shown_blocks, shown_objective,
    shown_other_than_sft, shown_greater, shown_tasks;
typedef void write_how(tm_json_writer *w, const tm_config *c, const schema_row *row);
write_how write_schedule, write_files, write_columns, write_budget, write_every, write_best, write_metric,
    write_optimizer, write_eps, write_one;
write_how write_adapter, write_losses;

/* Where it lies instead, if the caller knows (config.c). */
tm_status cfg_find_model(cfg_state *s, const char **name) TM_MUST_USE;

/* ---- strategies (strategy.c) --------------------------------------------------------------------------------- */

/* TM_STRATEGY_COUNT: there is none of that name. */
tm_strategy strategy_of_word(const char *word); /* of the key "strategy" */
tm_strategy strategy_of_stage(uint32_t stage);
tm_strategy strategy_of_sharding(const char *sharding); /* FSDP's, in capital letters */

/* ---- suggestions (config_suggest.c) -------------------------------------------------------------------------- */

/* Appends "; did you mean ..." or "; it belongs under ..." for an unknown key inside `section` ("" at top level), or
 * nothing. */
tm_status config_suggest_key(tm_buf *out, const char *section, const char *key) TM_MUST_USE;
/* Appends "; did you mean ..." for a wrong value of an enum, or nothing. */
tm_status config_suggest_value(tm_buf *out, const schema_row *row, const char *value) TM_MUST_USE;

/* ---- YAML (config_yaml.c) ------------------------------------------------------------------------------------- */

bool cfg_is_yaml(const char *name); /* by its end */
/* As tm_json_parse. TM_EUNSUPPORTED: this build reads none. */
tm_status cfg_parse_yaml(tm_json_doc **out, const char *text, size_t len, const char *name) TM_MUST_USE;

/* ---- state while loading (config_values.c) ------------------------------------------------------------------- */

typedef enum cfg_source { SOURCE_MAIN, SOURCE_DEEPSPEED, SOURCE_SET } cfg_source;
typedef struct cfg_value {
    const tm_json *node; /* NULL: not given (null counts as not given) */
    const char *file;    /* FILE of FILE:LINE:COLUMN; "--set key=value" for SOURCE_SET */
    const char *spelled; /* the path as the user wrote it */
    cfg_source source;
    bool over_auto; /* another spelling says "auto", and takes this value */
} cfg_value;

/* Memory of a loaded configuration: documents and strings, freed together. */
typedef struct cfg_owned {
    struct cfg_owned *next;
    tm_json_doc *doc; /* or NULL: bytes follow */
    char bytes[];
} cfg_owned;
typedef struct cfg_impl {
    tm_config pub;   /* first */
    uint16_t *autos; /* rows that say "auto" */
    uint32_t n_autos;
    cfg_owned *owned;
    int64_t given_warmup; /* its warmup_num_steps, to compare with a ratio; -1 */
} cfg_impl;
char *cfg_strndup(cfg_impl *c, const char *text, size_t n);             /* NULL: out of memory, recorded */
tm_status cfg_keep_doc(cfg_impl *c, tm_json_doc *doc) TM_MUST_USE;      /* frees it on failure */
tm_status cfg_alloc(cfg_impl *c, size_t bytes, void **out) TM_MUST_USE; /* zeroed, owned */

struct cfg_state {
    cfg_impl *cfg;
    const tm_config_opts *opts;
    cfg_value *value;                           /* one a row */
    cfg_value whole;                            /* the configuration as a value: its place is its name */
    tm_buf problems;                            /* a line each */
    const schema_row **lifted;                  /* [n_set] rows that --set replaces: files are not asked */
    unsigned n_hidden;                          /* of them, that do not fit the message */
    unsigned n_problems, n_input, n_mismatches; /* all; of TM_EINPUT; of those, contradictions */
    tm_status problem_status;                   /* TM_EINPUT outranks TM_EUNSUPPORTED */
    tm_status broken;                           /* out of memory while collecting */
};

/* Collects a problem, of TM_EINPUT or TM_EUNSUPPORTED: all are reported in one error. `v`, whose place is said in front:
 * the value that is wrong, or &s->whole; NULL: no place is said. */
void cfg_wrong(cfg_state *s, const cfg_value *v, const char *format, ...) TM_PRINTF(3, 4);
void cfg_unsupported(cfg_state *s, const cfg_value *v, const char *format, ...) TM_PRINTF(3, 4);
/* A problem that is one value against another: reported together with all others of its sort. */
void cfg_contradiction(cfg_state *s, const char *format, ...) TM_PRINTF(2, 3);
/* "a A (where) does not match b B (where)". */
void cfg_mismatch(cfg_state *s, const char *a, const cfg_value *va, const char *b, const cfg_value *vb);
/* A key that was given and makes no difference: warns once. */
void cfg_no_effect(const cfg_state *s, const char *path, const char *reason);
tm_status cfg_report(cfg_state *s) TM_MUST_USE; /* fails with what was collected, if anything */
void cfg_keep(cfg_state *s, tm_status rc);      /* remembers a failure to collect */
/* Type, choice and range of a value; problems are collected, keys without effect warn. */
void cfg_check_value(cfg_state *s, const schema_row *row, const cfg_value *v);
bool cfg_is_off(const tm_json *n); /* false, 0, "none", null, nothing in it: as if it was not said */
bool cfg_type_fits(const schema_row *row, const tm_json *n);
bool cfg_is_size_text(const char *text, uint64_t *bytes); /* leaves no error behind */
const char *cfg_show_node(const tm_json *n, char *buf, size_t cap);
/* Reads a tree into the values, checking keys, types and ranges. `prefix`: "" or "optimizer." */
tm_status cfg_merge(cfg_state *s, const tm_json *root, const char *prefix, const char *file,
                    cfg_source source) TM_MUST_USE;
/* "key.path=value", or "--key.path=value" as an option was given. */
tm_status cfg_apply_set(cfg_state *s, const char *given) TM_MUST_USE;
const char *cfg_set_value(const char *assignment, const char *key); /* NULL: it is not of that key */
/* Before the first cfg_merge: which rows --set will replace. */
tm_status cfg_lift(cfg_state *s) TM_MUST_USE;

/* A row's value if it was given and is neither null nor "auto"; else NULL. */
const cfg_value *cfg_given(const cfg_state *s, const char *path);
const cfg_value *cfg_raw(const cfg_state *s, const char *path); /* "auto" too */
bool cfg_is_auto(const cfg_state *s, const char *path);
const char *cfg_where(const cfg_value *v, char *buf, size_t cap);
const char *cfg_show(const cfg_value *v, char *buf, size_t cap); /* the value as JSON, cut short */
bool cfg_same(const tm_json *a, const tm_json *b);
/* With the schema's default where the key is not given. */
double cfg_number(const cfg_state *s, const char *path);
int64_t cfg_integer(const cfg_state *s, const char *path);
bool cfg_bool(const cfg_state *s, const char *path);
int cfg_choice(const cfg_state *s, const char *path); /* index into the row's choices; -1: not given, no default */
bool cfg_chosen(const cfg_state *s, const char *path, const char *choice);
tm_status cfg_string(cfg_state *s, const char *path, const char **out) TM_MUST_USE; /* NULL without default */
tm_status cfg_strings(cfg_state *s, const char *path, tm_strings *out) TM_MUST_USE; /* n 0 if not given */
uint64_t cfg_size(const cfg_state *s, const char *path);

/* ---- what others mean (config_theirs.c) ------------------------------------------------------------------------- */

tm_status config_take_theirs(cfg_state *s) TM_MUST_USE; /* after the layers, before all resolvers */
const schema_row *config_row_of_word(const schema_row *row, const tm_json *value); /* `row`, or the one that it means */
const char *config_deepspeed_of_word(const char *word); /* a DeepSpeed configuration as JSON; NULL: a path */

/* ---- resolution ---------------------------------------------------------------------------------------------- */

tm_status config_resolve_run(cfg_state *s) TM_MUST_USE;  /* config_run.c: model, data, memory, output */
tm_status config_resolve_data(cfg_state *s) TM_MUST_USE; /* config_data.c: files of data, columns, what is held out */
tm_status
config_resolve_storage(cfg_state *s) TM_MUST_USE;        /* config_storage.c: places, paths, aio, DeepSpeed's numbers */
tm_status config_resolve_fsdp(cfg_state *s) TM_MUST_USE; /* config_fsdp.c; after places and rounding */
void config_resolve_recompute(cfg_state *s);             /* config_recompute.c: after memory */
void config_warn_effects(cfg_state *s); /* config_effects.c: after all: what is given and makes no difference */
tm_status config_note_autos(cfg_state *s) TM_MUST_USE;        /* config_autos.c */
tm_status config_resolve_objective(cfg_state *s) TM_MUST_USE; /* config_objective.c */
void config_resolve_quantization(cfg_state *s);               /* config_quantization.c */
tm_status config_resolve_adapter(cfg_state *s) TM_MUST_USE;   /* config_adapter.c; after precision and quantization */
tm_status config_resolve_freezing(cfg_state *s) TM_MUST_USE;  /* config_freezing.c; after the adapter */
tm_status config_resolve_batch(cfg_state *s) TM_MUST_USE;     /* config_batch.c */
tm_status config_resolve_optimizer(cfg_state *s) TM_MUST_USE; /* config_optimizer.c */
void config_resolve_losses(cfg_state *s); /* config_losses.c: loss_type and loss_weights; after rpo_alpha */
bool config_has_loss(const tm_objective_spec *o, tm_preference_loss loss);
bool config_objective_takes(const tm_objective_spec *o, const char *key); /* "beta" has an effect on it */
const char *config_optimizer_type(const tm_config *c);                    /* as optimizer.type names it */
tm_status config_resolve_schedule(cfg_state *s) TM_MUST_USE;              /* config_schedule.c; after the optimizer */

#endif
