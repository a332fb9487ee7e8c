/* adapter: which of a model's tensors learn, and how, by their names.
 *
 * Two ways to leave most of a model as it is: an adapter (LoRA and its kin, in the terms of PEFT's adapter_config.json),
 * and freezing (in those of ms-swift and LLaMA-Factory). This room reads what was said, refuses by name what there is
 * not, and answers for a module or a tensor. It knows names alone: no files, no shapes, no numbers of a model.
 *
 * Modules are named as PyTorch names them ("model.layers.0.self_attn.q_proj"), tensors as the checkpoint does (a module's
 * name with ".weight" or ".bias"); PEFT's "base_model.model." may stand before either.
 *
 * Ownership: a config owns all that it points to. It is used by one thread at a time (matching has scratch memory).
 *
 *     TM_TRY(tm_adapter_create(&a));
 *     TM_TRY(tm_adapter_read(a, text, len, "lora/adapter_config.json")); // or tm_adapter_set, key by key; or both
 *     TM_TRY(tm_adapter_complete(a));
 *     TM_TRY(tm_adapter_check(a, module, n_modules)); // an adapter of this model
 *     for (size_t i = 0; i < n_modules; i++)
 *         if (tm_adapter_module(a, module[i], &spec)) adapt(module[i], &spec);
 *     tm_adapter_free(a);
 */
#ifndef TIDEMILL_ADAPTER_H
#define TIDEMILL_ADAPTER_H

#include "base/adapter_spec.h"
#include "base/base.h"

typedef struct tm_adapter_names {
    const char *const *item;
    uint32_t n;
} tm_adapter_names;

/* ---- adapters ---------------------------------------------------------------------------------------------------- */

/* Modules that a key chooses. */
typedef struct tm_adapter_choice {
    tm_adapter_names names; /* a module has that name, or one that ends in "." and that */
    const char *regex;      /* re.fullmatch; NULL: none */
    bool all_linear;        /* every matrix but the embeddings and the head */
    bool all_embedding;     /* ms-swift's word: the embeddings */
    bool all_norm;          /* ms-swift's word, of modules_to_save: the norms */
} tm_adapter_choice;
typedef struct tm_adapter_pattern {
    const char *key; /* the first for which re.match("(.*\.)?(key)$", module) is the module's */
    double value;
} tm_adapter_pattern;
typedef struct tm_adapter_patterns {
    const tm_adapter_pattern *item;
    uint32_t n;
} tm_adapter_patterns;
typedef enum tm_adapter_bias { TM_ADAPTER_BIAS_NONE, TM_ADAPTER_BIAS_ALL, TM_ADAPTER_BIAS_LORA_ONLY } tm_adapter_bias;
typedef enum tm_adapter_init {
    TM_ADAPTER_INIT_DEFAULT,  /* true */
    TM_ADAPTER_INIT_GAUSSIAN, /* normal(0, 1 / rank) */
    TM_ADAPTER_INIT_PISSA,    /* the rank largest singular values of the base, which is less by them */
    TM_ADAPTER_INIT_STORED    /* only of a folder: how it began makes no difference any more (init_word) */
} tm_adapter_init;

/* As PEFT 0.21's LoraConfig, whose defaults these are; target_modules is "all-linear" where nobody says it. */
typedef struct tm_adapter_config {
    uint32_t r;     /* 8 */
    double alpha;   /* 8 */
    double dropout; /* 0: of what goes into A */
    tm_adapter_choice target_modules;
    tm_adapter_choice exclude_modules; /* of these none, whatever target_modules says */
    tm_adapter_choice modules_to_save; /* trained whole: names that a module's name ends in, with or without a dot */
    tm_adapter_patterns rank_pattern, alpha_pattern;
    bool use_rslora; /* scale alpha / sqrt(rank) */
    bool use_dora;
    bool fan_in_fan_out;      /* of GPT-2's matrices; kept as it was said */
    bool ensure_weight_tying; /* what is tied stays tied where it is trained or adapted */
    tm_adapter_bias bias;
    const uint32_t *layers_to_transform; /* of modules that a name's end chose; n_layers 0: all layers */
    uint32_t n_layers;
    tm_adapter_names layers_pattern; /* regular expressions of what stands before a layer's number; none: anything */
    tm_adapter_init init;
    int32_t pissa_iterations; /* of the randomised decomposition; -1: the exact one */
    const char *init_word;    /* as adapter_config.json has it: "true", "gaussian", "pissa_niter_4" */
    double lr_ratio;          /* LoRA+: the rate of B, and of vectors that learn, over that of the rest; 1 */
    double embedding_lr;      /* with it: the rate of adapters of embeddings; 1e-6 */
    const char *base_model;   /* base_model_name_or_path of a folder, or NULL */
    struct adapter_own *own;
} tm_adapter_config;

TM_MUST_USE tm_status tm_adapter_create(tm_adapter_config **out);
void tm_adapter_free(tm_adapter_config *a); /* NULL is fine */

/* All of an adapter_config.json; `name`: its path, for messages, which have FILE:LINE:COLUMN. A key that PEFT may have one
 * day is refused unless it is off (null, false, empty). */
TM_MUST_USE tm_status tm_adapter_read(tm_adapter_config *a, const char *text, size_t len, const char *name);
/* One key, over what was said of it before: a key of adapter_config.json, or `type` (lora, rslora, dora, qlora), `alpha`,
 * `targets`, `lorap_lr_ratio` (loraplus_lr_ratio), `lorap_emb_lr` (loraplus_lr_embedding). null is as if it was not said. A message names the key, not the
 * place. What a folder has in its tensors (r, use_dora) can be said again, but not otherwise. */
TM_MUST_USE tm_status tm_adapter_set(tm_adapter_config *a, const char *key, const tm_json *value);
bool tm_adapter_is_key(const char *key);
/* After the last key: what contradicts, and regular expressions. Then `a` can be asked. */
TM_MUST_USE tm_status tm_adapter_complete(tm_adapter_config *a);

/* `module`: one that has a matrix. False: it has no adapter; *out is not written. */
bool tm_adapter_module(const tm_adapter_config *a, const char *module, tm_adapter_spec *out);
/* Does a tensor of the checkpoint learn beside its adapter: by modules_to_save, or as a bias? */
bool tm_adapter_learns(const tm_adapter_config *a, const char *tensor);
/* No tensor of any base does: without its adapter such a model is the base. */
bool tm_adapter_keeps_base(const tm_adapter_config *a);
/* Is it an adapter of this model? `module`: names of all its modules that have tensors. TM_EINPUT where the targets, or
 * what shall be saved, are not there (of a folder: where nothing is), with the names that there are; TM_EUNSUPPORTED where
 * a regular expression is too costly. Names that passed here can be asked for without failing. */
TM_MUST_USE tm_status tm_adapter_check(const tm_adapter_config *a, const char *const *module, size_t n);

/* The name without PEFT's "base_model.model.". */
const char *tm_adapter_bare_name(const char *name);

typedef struct tm_adapter_json_opts {
    const char *base_model;    /* base_model_name_or_path; NULL: a's own */
    const char *const *module; /* of the model, so that "all-linear" and the like are written as the names that they */
    size_t n_modules;          /* stand for; NULL: they are written as they are */
    bool plain;                /* init_lora_weights: true, whatever it was: the base is as it is */
    bool twice_the_rank;       /* PiSSA as plain LoRA: A and B that were there first are subtracted */
} tm_adapter_json_opts;
/* The value of one key, as it would be said; a failure stays in the writer. The key is one that makes a difference. */
void tm_adapter_write_value(const tm_adapter_config *a, const char *key, tm_json_writer *w);
/* Appends the adapter_config.json that PEFT 0.21 writes. */
TM_MUST_USE tm_status tm_adapter_write_json(const tm_adapter_config *a, const tm_adapter_json_opts *opts, tm_buf *out);

/* ---- freezing ---------------------------------------------------------------------------------------------------- */

/* All parameters learn; then freezing is applied, and what is named as trainable learns all the same (ms-swift). */
typedef struct tm_freeze_opts {
    tm_adapter_names freeze_parameters;    /* prefixes of tensor names */
    const char *freeze_parameters_regex;   /* re.search; NULL: none */
    double freeze_parameters_ratio;        /* the first so much of the parameters, in PyTorch's order, whole tensors */
    int32_t freeze_trainable_layers;       /* LLaMA-Factory: only the last n blocks learn, the first -n if it is
                                                   negative; 0: not so */
    tm_adapter_names trainable_parameters; /* prefixes */
    const char *trainable_parameters_regex;
} tm_freeze_opts;
typedef struct tm_freeze tm_freeze;
/* What the options point to outlives it. */
TM_MUST_USE tm_status tm_freeze_create(tm_freeze **out, const tm_freeze_opts *opts);
void tm_freeze_free(tm_freeze *f); /* NULL is fine */

typedef struct tm_freeze_tensor {
    const char *name;
    uint64_t elements;
} tm_freeze_tensor;
typedef struct tm_freeze_place {
    uint64_t through; /* elements of the tensors up to this one, in PyTorch's order */
    uint64_t total;   /* of all */
    uint32_t layers;  /* blocks of the model */
} tm_freeze_place;
bool tm_freeze_learns(const tm_freeze *f, const char *tensor, const tm_freeze_place *place);
/* learns[i] of n tensors: embeddings, those of the blocks in any order, last norm, head. PyTorch's order is found here. TM_EINPUT where nothing
 * learns, or a prefix or an expression is of no tensor, with the names that there are. */
TM_MUST_USE tm_status tm_freeze_apply(const tm_freeze *f, const tm_freeze_tensor *tensor, size_t n, uint32_t layers,
                                      bool *learns);

#endif
