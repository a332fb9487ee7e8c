/* What was probably meant: the same name in another section, what other programs call it, a slip of the pen, or a name
 * that is made of the same words. */
#include "config/config_internal.h"

#include <ctype.h>
#include <pthread.h>
#include <string.h>
#include <strings.h>

enum { LONGEST = 64 };

static unsigned char folded(char c) {
    return c == '-' ? '_' : (unsigned char)tolower((unsigned char)c);
}

/* Where each letter stands in the word that was given, a bit a place; `letters`: which there are. */
typedef struct given {
    size_t n;
    uint64_t at[256], letters;
} given;

static uint64_t letters(const char *word, size_t n) {
    uint64_t set = 0;
    for (size_t i = 0; i < n; i++) set |= (uint64_t)1 << (folded(word[i]) & 63);
    return set;
}

static bool take(given *g, const char *word) {
    *g = (given){.n = strlen(word)};
    if (g->n == 0 || g->n > LONGEST) return false;
    for (size_t i = 0; i < g->n; i++) g->at[folded(word[i])] |= (uint64_t)1 << i;
    g->letters = letters(word, g->n);
    return true;
}

/* A letter that the other word lacks is an edit at least, so that most words need not be compared. */
static size_t least_distance(const given *g, uint64_t set, size_t n) {
    size_t longer = n > g->n ? n - g->n : g->n - n;
    size_t other = (size_t)__builtin_popcountll(n > g->n ? set & ~g->letters : g->letters & ~set);
    return longer > other ? longer : other;
}

/* Optimal string alignment (a swapped pair is one edit): a column of the table at once, as differences from place to
 * place, one bit each (Hyyro 2003, "A bit-vector algorithm for computing Levenshtein and Damerau edit distances"). */
static size_t distance(const given *g, const char *word, size_t n) {
    uint64_t up = ~(uint64_t)0, down = 0, diagonal = 0, before = 0, last = (uint64_t)1 << (g->n - 1);
    size_t d = g->n;
    for (size_t i = 0; i < n; i++) {
        uint64_t same = g->at[folded(word[i])], swapped = ((~diagonal & same) << 1) & before;
        diagonal = (((same & up) + up) ^ up) | same | down | swapped;
        uint64_t more = down | ~(diagonal | up), less = diagonal & up;
        d += (more & last) != 0;
        d -= (less & last) != 0;
        more = more << 1 | 1;
        less <<= 1;
        up = less | ~(diagonal | more);
        down = diagonal & more;
        before = same;
    }
    return d;
}

/* What every key is compared with, taken from the table once. */
enum { MOST_ROWS = 1024 };
typedef struct word {
    const char *leaf; /* the last name of the row's path */
    size_t n, section;
    uint64_t letters;
} word;
static word words[MOST_ROWS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill(void) {
    TM_ASSERT(schema_row_count <= MOST_ROWS);
    for (size_t i = 0; i < schema_row_count; i++) {
        const char *path = schema_rows[i].path, *dot = strrchr(path, '.'), *leaf = dot ? dot + 1 : path;
        size_t n = strlen(leaf);
        words[i] = (word){leaf, n, dot ? (size_t)(dot - path) : 0, letters(leaf, n)};
    }
}

static bool in_section(size_t row, const char *section, size_t n) {
    return words[row].section == n && !strncmp(schema_rows[row].path, section, n);
}

/* The row in `section` (NULL: anywhere) whose last name is nearest; at most 1 + 1/`part` of the key's length away. */
static const schema_row *nearest(const char *section, const char *key, size_t part) {
    given g;
    if (!take(&g, key)) return NULL;
    size_t best = 2 + g.n / part, n = section ? strlen(section) : 0;
    const schema_row *found = NULL;
    for (size_t i = 0; i < schema_row_count; i++) {
        const schema_row *row = &schema_rows[i];
        if (row->kind == K_REFUSED || row->kind == K_LATER || (section && !in_section(i, section, n))) continue;
        size_t d = least_distance(&g, words[i].letters, words[i].n);
        if (d < best) d = distance(&g, words[i].leaf, words[i].n);
        if (d < best) best = d, found = row;
    }
    return found;
}

static const schema_row *same_name(const char *section, const char *key) {
    size_t len = strlen(key), n = strlen(section);
    for (size_t i = 0; i < schema_row_count; i++)
        if (words[i].n == len && !memcmp(words[i].leaf, key, len) && !in_section(i, section, n)) return &schema_rows[i];
    return NULL;
}

static bool has_word(const char *name, const char *one, size_t n) {
    for (const char *w = name; *w; w += strcspn(w, "_-"), w += *w != 0)
        if (strcspn(w, "_-") == n && !strncmp(w, one, n)) return true;
    return false;
}

static unsigned count_words(const char *name) {
    unsigned n = 1;
    for (; *name; name++) n += *name == '_' || *name == '-';
    return n;
}

/* Every word of `key` is one of the row's; of those rows the one with the fewest others. */
static const schema_row *of_same_words(const char *key) {
    const schema_row *found = NULL;
    unsigned fewest = 4; /* more others mean little */
    if (count_words(key) < 2) return NULL;
    for (size_t i = 0; i < schema_row_count; i++) {
        const schema_row *row = &schema_rows[i];
        bool all = row->kind != K_REFUSED && row->kind != K_LATER && row->kind != K_IGNORED;
        for (const char *w = key; all && *w; w += strcspn(w, "_-"), w += *w != 0)
            all = has_word(words[i].leaf, w, strcspn(w, "_-"));
        unsigned others = all ? count_words(words[i].leaf) - count_words(key) : fewest;
        if (others < fewest) fewest = others, found = row;
    }
    return found;
}

/* ---- by what others call it ---------------------------------------------------------------------------------- */

static const struct other_names {
    const char *row, *keys; /* keys: separated by blanks */
} others[] = {
    {"per_device_train_batch_size", "batch_size train_batch micro_batch bs batchsize batch train_batch_size_per_gpu"},
    {"gradient_accumulation_steps", "grad_accum accumulate_grad_batches grad_accumulation_steps accumulation_steps ga"},
    {"num_train_epochs", "epoch epochs max_epochs n_epochs num_train_epoch"},
    {"max_steps", "steps iters num_steps max_iters max_train_steps num_iterations total_steps train_steps"},
    {"learning_rate", "lr max_lr base_lr"},
    {"weight_decay", "wd decay"},
    {"adam_beta1", "beta1"},
    {"adam_beta2", "beta2"},
    {"adam_epsilon", "eps"},
    {"max_grad_norm", "clip_grad grad_clip gradient_clip_val clip_norm grad_clip_norm max_norm"},
    {"lr_scheduler_type", "scheduler_type lr_schedule schedule lr_decay_style"},
    {"warmup_steps", "warmup num_warmup_steps lr_warmup_steps warmup_iters"},
    {"optim", "optimizer_type optimizer_name"},
    {"model", "model_path model_id pretrained_model_name_or_path model_dir checkpoint_path base"},
    {"tokenizer", "tokenizer_path"},
    {"precision", "dtype mixed_precision compute_dtype"},
    {"bf16", "use_bf16"},
    {"fp16", "use_fp16 half_precision"},
    {"data.train", "train_data train_path data_path dataset_path train_dataset train_files"},
    {"data.eval", "eval_file eval_data eval_path valid_file valid_data validation_data test_file dev_file"},
    {"data.seq_len", "max_len sequence_length context_length max_tokens model_max_length n_ctx seq_length maxlen"},
    {"data.columns", "column_mapping field_mapping dataset_columns"},
    {"data.overlong", "truncation"},
    {"output_dir", "output save_dir output_path out_dir out save_path adapter_path"},
    {"save_steps", "checkpoint_steps checkpoint_interval checkpointing_steps save_every save_interval"},
    {"eval_steps", "val_steps validation_steps eval_every eval_interval steps_per_eval val_check_interval"},
    {"logging_steps", "log_steps log_every log_interval steps_per_report log_freq"},
    {"seed", "random_seed random_state"},
    {"adapter", "peft lora peft_type peft_config lora_config"},
    {"adapter.r", "rank lora_dim"},
    {"adapter.path", "resume_adapter_file lora_weights lora_path peft_model"},
    {"adapter.layers_to_transform", "lora_layers num_layers"},
    {"tuner_type", "fine_tune_type method peft_method training_type sft_type"},
    {"objective.type", "task algorithm objective_type trainer_type"},
    {"objective.loss_type", "loss dpo_loss"},
    {"objective.reference", "reference_model"},
    {"quantization", "quantization_config bnb_config"},
    {"quant_bits", "bits load_4bit use_4bit"},
    {"gradient_checkpointing", "grad_checkpoint use_gradient_checkpointing activation_checkpoint recompute"},
    {"strategy",
     "parallel_method parallel_strategy distributed_strategy distributed_backend distributed_type parallelism zero3"},
    {"memory.host_budget", "ram max_memory memory_budget memory_limit cpu_memory host_memory"},
    {"memory.device", "gpu cuda device_map"},
    {"memory.device_budget", "gpu_memory vram gpu_memory_utilization"},
    {"zero_optimization.offload_optimizer.nvme_path", "offload_dir offload_path offload_folder swap_dir"},
};

/* What is said in another way than by a key. */
static const struct hint {
    const char *keys, *says;
} hints[] = {
    {"num_gpus n_gpus gpus nproc_per_node nproc num_processes num_machines num_nodes nnodes world_size",
     "a launcher starts the ranks: mpirun -n N tidemill train ..."},
    {"resume resume_from resume_training", "resuming is said on the command line: --resume auto|never|DIR"},
    {"prompt_template prompt_style conversation_template chat_format", "the model's own chat template is used"},
    {"hf_token hub_token token", "nothing is downloaded; models of the hub are looked up in your cache"},
    {"flash_attention_2 use_flash_attention_2 use_flash_attention", "attention is always tiled; leave it out"},
    {"mask_prompt", "answers alone are learned; \"data.train_on_inputs\" learns all"},
};

/* `keys`: separated by blanks. */
static bool is_among(const char *keys, const char *key) {
    size_t n = strlen(key);
    for (const char *at = keys; *at; at += strcspn(at, " "), at += *at == ' ')
        if (strcspn(at, " ") == n && !strncasecmp(at, key, n)) return true;
    return false;
}

const char *tm_config_hint(const char *key) {
    for (size_t i = 0; i < TM_COUNT(hints); i++)
        if (is_among(hints[i].keys, key)) return hints[i].says;
    return NULL;
}

static const char *by_other_name(const char *key) {
    for (size_t i = 0; i < TM_COUNT(others); i++)
        if (is_among(others[i].keys, key)) return others[i].row;
    return NULL;
}

static const char *leaf_of(const schema_row *row) {
    return words[row - schema_rows].leaf;
}

tm_status config_suggest_key(tm_buf *out, const char *section, const char *key) {
    (void)pthread_once(&once, fill);
    const char *other = by_other_name(key);
    const schema_row *row = *section || !other ? same_name(section, key) : NULL;
    if (row) {
        size_t under = (size_t)(leaf_of(row) - row->path);
        if (!under) return tm_buf_printf(out, "; it belongs at top level");
        return tm_buf_printf(out, "; it belongs under \"%.*s\"", (int)under - 1, row->path);
    }
    if (other) return tm_buf_printf(out, "; did you mean \"%s\"?", other);
    if (tm_config_hint(key)) return tm_buf_printf(out, "; %s", tm_config_hint(key));
    row = nearest(section, key, 4); /* a slip of the pen */
    if (row) return tm_buf_printf(out, "; did you mean \"%s\"?", leaf_of(row));
    row = of_same_words(key);
    if (!row && strlen(key) > 4) row = nearest(NULL, key, 6);
    if (row) return tm_buf_printf(out, "; did you mean \"%s\"?", row->path);
    return TM_OK;
}

const char *tm_config_suggest(const char *name) {
    const char *other = by_other_name(name);
    (void)pthread_once(&once, fill);
    if (other) return other;
    const schema_row *row = same_name("", name);
    if (!row) row = nearest("", name, 4);
    if (!row) row = of_same_words(name);
    if (!row && strlen(name) > 4) row = nearest(NULL, name, 6);
    return row ? row->path : NULL;
}

/* What others call a value. */
static const struct {
    const char *row, *value, *ours;
} other_values[] = {
    {"strategy", "horovod", "ddp"},       {"strategy", "dp", "ddp"},
    {"strategy", "data_parallel", "ddp"}, {"strategy", "megatron", "zero1"},
    {"strategy", "deepspeed", "zero3"},   {"strategy", "zero", "zero1"},
    {"strategy", "mics", "hsdp"},         {"strategy", "full_shard", "fsdp"},
    {"strategy", "sharded_ddp", "zero2"}, {"strategy", "hybrid_shard", "hsdp"},
    {"precision", "mixed", "bf16"},       {"precision", "half", "fp16"},
    {"precision", "float", "fp32"},       {"precision", "full", "fp32"},
    {"save_strategy", "never", "no"},     {"eval_strategy", "never", "no"},
    {"save_strategy", "epochs", "epoch"},
};

tm_status config_suggest_value(tm_buf *out, const schema_row *row, const char *value) {
    given g;
    for (size_t i = 0; i < TM_COUNT(other_values); i++)
        if (!strcmp(other_values[i].row, row->path) && !strcasecmp(other_values[i].value, value))
            return tm_buf_printf(out, "; did you mean \"%s\"?", other_values[i].ours);
    if (!take(&g, value)) return TM_OK;
    size_t best = 2 + g.n / 3, n = 0;
    const char *found = NULL;
    for (const char *c = row->choices; c && *c; c += strcspn(c, "|"), c += *c == '|') {
        size_t len = strcspn(c, "=|"), d = distance(&g, c, len);
        if (d < best) best = d, found = c, n = len;
    }
    if (!found) return TM_OK;
    return tm_buf_printf(out, "; did you mean \"%.*s\"?", (int)n, found);
}
