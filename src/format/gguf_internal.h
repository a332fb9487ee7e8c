/* GGUF inside src/format: the reader's object, the writer, architectures, and what is said about a model in keys. */
#ifndef TIDEMILL_GGUF_INTERNAL_H
#define TIDEMILL_GGUF_INTERNAL_H

#include "format/format_internal.h"

enum {
    TM_GGUF_MAX_KVS = 16384,
    TM_GGUF_MAX_TENSORS = 65536,
    TM_GGUF_MAX_KEY = 1024,
    TM_GGUF_MAX_NAME = 64,
    TM_GGUF_MAX_ITEM = 65536, /* bytes of one string in an array: a token, a merge */
    TM_GGUF_ALIGNMENT = 32
};

struct tm_gguf {
    tm_file *file;
    uint32_t version, n_kv, n_tensors;
    tm_gguf_kv *kv;
    uint32_t *kv_by_name;
    tm_gguf_tensor *tensor; /* in order of their offsets */
    uint32_t *tensor_by_name;
};

/* Bytes of a scalar; 0 for strings and arrays. */
uint32_t tm_gguf_scalar_bytes(tm_gguf_type type);

/* ---- writing: keys, then tensors, then data in the order of the tensors ---- */

typedef struct tm_gguf_writer tm_gguf_writer;
TM_MUST_USE tm_status tm_gguf_writer_create(tm_gguf_writer **out, const char *path);
void tm_gguf_writer_abandon(tm_gguf_writer *w);
/* The first failure is kept and returned by tm_gguf_writer_start. */
void tm_gguf_put_string(tm_gguf_writer *w, const char *key, const char *s, size_t n);
void tm_gguf_put_u32(tm_gguf_writer *w, const char *key, uint32_t v);
void tm_gguf_put_f32(tm_gguf_writer *w, const char *key, float v);
void tm_gguf_put_bool(tm_gguf_writer *w, const char *key, bool v);
/* An array: its head, then count items. */
void tm_gguf_put_array(tm_gguf_writer *w, const char *key, tm_gguf_type element, uint64_t count);
void tm_gguf_item_string(tm_gguf_writer *w, const char *s, size_t n);
void tm_gguf_item_bytes(tm_gguf_writer *w, const void *scalar, size_t n);
/* shape: slowest first */
TM_MUST_USE tm_status tm_gguf_writer_add(tm_gguf_writer *w, const char *name, tm_fmt fmt, uint32_t ndim,
                                         const uint64_t *shape);
TM_MUST_USE tm_status tm_gguf_writer_start(tm_gguf_writer *w);
/* The next bytes of the data, tensor after tensor; padding is put in. */
TM_MUST_USE tm_status tm_gguf_writer_data(tm_gguf_writer *w, const void *bytes, uint64_t n);
TM_MUST_USE tm_status tm_gguf_writer_commit(tm_gguf_writer *w); /* frees w in any case */

/* ---- architectures (gguf_arch.c): a row each ---- */

typedef enum tm_rows { TM_ROWS_PLAIN, TM_ROWS_Q, TM_ROWS_K } tm_rows;
typedef struct tm_gguf_name {
    const char *gguf, *hf; /* without ".weight" and ".bias"; NULL ends a table */
    tm_rows rows;
} tm_gguf_name;
typedef struct tm_gguf_class {
    const char *model_type, *class; /* in config.json; NULL: there is none */
} tm_gguf_class;
typedef struct tm_gguf_arch {
    const char *type;              /* general.architecture, and what its keys begin with */
    const char *also;              /* models that are known by other names; NULL: none */
    tm_gguf_class plain, windowed; /* windowed: what has a sliding window */
    const tm_gguf_name *global, *block;
    bool permutes;    /* rows of q and k: each pair (i, i + head_dim / 2) that RoPE turns lies side by side in GGUF */
    bool says_biases; /* config.json of the plain class says which biases there are */
} tm_gguf_arch;
/* Of a file, and of a config.json; TM_EUNSUPPORTED names those that there are. */
TM_MUST_USE tm_status tm_gguf_arch_of(const tm_gguf *g, const tm_gguf_arch **out);
TM_MUST_USE tm_status tm_gguf_arch_for(const char *model_type, const tm_gguf_arch **out, bool *windowed);
enum { TM_GGUF_ARCH_KEY = 96 };
/* "llama.block_count" into buf */
const char *tm_gguf_arch_key(const tm_gguf_arch *arch, const char *what, char buf[TM_GGUF_ARCH_KEY]);

/* ---- names (gguf_names.c): "blk.0.attn_q.weight" <-> "model.layers.0.self_attn.q_proj.weight" ---- */

/* False: not a tensor of this architecture. */
bool tm_gguf_name_to_hf(const tm_gguf_arch *arch, const char *gguf, char *hf, size_t cap, tm_rows *rows);
bool tm_gguf_name_from_hf(const tm_gguf_arch *arch, const char *hf, char *gguf, size_t cap, tm_rows *rows);

/* ---- hyper-parameters of a decoder (gguf_config.c, gguf_export.c) ---- */

typedef struct tm_gguf_keys {
    const tm_gguf_arch *arch;
    uint32_t vocab_size, hidden_size, intermediate_size, layers, heads, kv_heads, head_dim, context, sliding_window;
    bool tied, attention_bias, mlp_bias;
    double rms_norm_eps, rope_theta;
    enum { TM_KEYS_ROPE_DEFAULT, TM_KEYS_ROPE_LINEAR, TM_KEYS_ROPE_LLAMA3 } rope;
    double rope_factor, rope_low, rope_high;
    uint32_t rope_original;
} tm_gguf_keys;
TM_MUST_USE tm_status tm_gguf_read_keys(const tm_gguf *g, tm_gguf_keys *out);
/* config.json in the forms of transformers 4 and 5 at once. */
TM_MUST_USE tm_status tm_gguf_config_json(const tm_gguf *g, const tm_gguf_keys *k, tm_buf *out);
TM_MUST_USE tm_status tm_gguf_generation_json(const tm_gguf *g, tm_buf *out);
/* What each of head_dim / 2 frequencies is divided by under llama3 scaling. */
void tm_llama3_factors(const tm_gguf_keys *k, float *factors);
/* The other way round, where the file has a tensor rope_freqs.weight. */
TM_MUST_USE tm_status tm_gguf_read_rope_factors(const tm_gguf *g, tm_gguf_keys *k);

/* ---- vocabulary ---- */

enum { TM_TOKEN_NORMAL = 1, TM_TOKEN_UNKNOWN, TM_TOKEN_CONTROL, TM_TOKEN_USER_DEFINED, TM_TOKEN_UNUSED, TM_TOKEN_BYTE };
/* One row a split of text before BPE that both worlds know (vocab_split.c). */
typedef struct tm_split {
    const char *pre;     /* tokenizer.ggml.pre */
    const char *aliases; /* other values with the same meaning, space-separated, "" */
    const char *regex;   /* NULL: ByteLevel's own (GPT-2's) */
    bool digits;         /* each digit on its own first */
    bool nfc;            /* normaliser */
    bool ignore_merges;
    bool add_bos; /* where tokenizer.ggml.add_bos_token is absent */
} tm_split;
const tm_split *tm_split_by_pre(const char *pre);
const tm_split *tm_split_by_regex(const char *regex); /* NULL: not known */
const tm_split *tm_split_plain(bool digits);

TM_MUST_USE tm_status tm_gguf_tokenizer_json(const tm_gguf *g, tm_buf *out, bool *found);
TM_MUST_USE tm_status tm_gguf_tokenizer_config_json(const tm_gguf *g, tm_buf *out, bool *found);
/* Token `id`'s text, appended. */
TM_MUST_USE tm_status tm_gguf_token(const tm_gguf *g, uint64_t id, tm_buf *out);
/* tokenizer.ggml.* from a folder's tokenizer files. */
TM_MUST_USE tm_status tm_gguf_put_vocabulary(tm_gguf_writer *w, const tm_source *src, uint32_t vocab_size);

#endif
