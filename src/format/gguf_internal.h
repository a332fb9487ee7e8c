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

/* ---- tensors: names, and what is done to the values on the way ---- */

typedef enum tm_op {
    TM_OP_PLAIN,
    TM_OP_Q, /* rows of query and key heads, permuted where the architecture says so */
    TM_OP_K,
    TM_OP_TRANSPOSE, /* a matrix [in, out] in HF is [out, in] in GGUF */
    TM_OP_ADD_ONE,   /* weights w of a norm that multiplies by 1 + w are 1 + w in GGUF */
    TM_OP_BARE       /* HF's name has neither ".weight" nor ".bias", GGUF's has ".weight" */
} tm_op;
typedef struct tm_gguf_name {
    const char *gguf, *hf; /* without ".weight" and ".bias"; NULL ends a table */
    tm_op op;              /* of ".weight"; rows are permuted in ".bias" too */
} tm_gguf_name;
/* Elements [first, first + n) of a matrix's transpose [rows, width], each of `size` bytes: `read` reads ranges of the
 * matrix [width, rows]. Touches `width` ranges, holds 1024 elements. */
typedef tm_status (*tm_read_run)(const void *ctx, uint64_t first, uint64_t n, void *dst);
typedef struct tm_transposed {
    tm_read_run read;
    const void *ctx;
    size_t size;
    uint64_t rows, width;
} tm_transposed;
TM_MUST_USE tm_status tm_read_transposed(const tm_transposed *t, uint64_t first, uint64_t n, void *dst);

/* ---- hyper-parameters ---- */

enum { TM_KEYS_MAX_LAYERS = 1024, TM_KEYS_MAX_FACTORS = 512 };
typedef enum tm_gguf_rope_kind {
    TM_GGUF_ROPE_DEFAULT,
    TM_GGUF_ROPE_LINEAR,
    TM_GGUF_ROPE_LLAMA3,
    TM_GGUF_ROPE_YARN,
    TM_GGUF_ROPE_LONGROPE,
    TM_GGUF_ROPE_PROPORTIONAL /* Gemma 4: frequencies of the whole head, the last of them 0 */
} tm_gguf_rope_kind;
typedef struct tm_gguf_rope {
    tm_gguf_rope_kind kind;
    uint32_t rotary;           /* of head_dim elements so many are rotated */
    uint32_t original;         /* positions before scaling */
    double theta, local_theta; /* local_theta: of layers with a window, where these have their own */
    double factor, low, high;
    double beta_fast, beta_slow, attention_factor; /* attention_factor 0: follows from the others */
    double mscale_all_dim, temperature;            /* Ministral's; mscale is 1 */
    float factors[2][TM_KEYS_MAX_FACTORS];         /* longrope: short, long; rotary / 2 of each */
} tm_gguf_rope;

/* What differs from layer to layer; "global" is said of layers without a window. */
typedef struct tm_gguf_layers {
    uint32_t global_head_dim, global_kv_heads; /* global_kv_heads 0: as many as in the others */
    uint32_t shared;                           /* so many last layers use earlier ones' keys and values */
    bool wide;                                 /* and their MLPs are twice as wide */
    bool keys_are_values;                      /* in global layers */
    uint32_t input, input_vocab;               /* embeddings for each layer: width, rows */
} tm_gguf_layers;

typedef struct tm_gguf_arch tm_gguf_arch;
typedef struct tm_gguf_keys {
    const tm_gguf_arch *arch;
    uint32_t vocab_size, hidden_size, intermediate_size, layers, heads, kv_heads, head_dim, context;
    uint32_t sliding_window; /* 0: none */
    bool tied, attention_bias, mlp_bias;
    double norm_eps, query_scalar, attention_scale, embedding_scale, residual_scale, logit_scale;
    double attention_cap, final_cap; /* 0: none */
    tm_gguf_rope rope;
    tm_gguf_layers by_layer;
    bool pattern[TM_KEYS_MAX_LAYERS]; /* by layer: what the architecture's pattern tells of it */
} tm_gguf_keys;

/* A hyper-parameter: its key in GGUF, its key in config.json, its place in tm_gguf_keys. */
typedef struct tm_key {
    const char *gguf; /* after "ARCH."; NULL: GGUF does not say it */
    const char *json; /* NULL: config.json does not say it; both NULL end a list */
    enum {
        TM_KEY_SIZE,  /* uint32_t, 1 to 2^31 - 1 */
        TM_KEY_REAL,  /* double, positive */
        TM_KEY_BIAS,  /* bool: whether there are such biases, which the tensors tell */
        TM_KEY_QUERY, /* double q: config.json says q, GGUF q^-1/2 where it is not what llama.cpp takes for granted */
        TM_KEY_CONSTANT
    } kind;
    enum {
        TM_NEED_BOTH, /* must be there */
        TM_NEED_FILE, /* must be in GGUF */
        TM_NEED_NOT,
        TM_NEED_OPTIONAL, /* and may be 0, in config.json null: there is none */
        TM_NEED_ZERO,     /* so, but GGUF says 0 */
        TM_NEED_COUNT     /* so, but both say 0 */
    } need;
    size_t at;
    double absent; /* where it is absent, or its multiple of what is at `from` */
    size_t from;
    const char *constant; /* JSON, of a CONSTANT */
    bool must;            /* GGUF cannot say another one: refused */
} tm_key;

/* ---- architectures (gguf_arch.c): a row each ---- */

enum {
    TM_ARCH_WINDOWED = 1, /* of the rows with this type, the one for files that have a sliding window */
    TM_ARCH_PERMUTES =
        2, /* rows of q and k: each pair (i, i + head_dim / 2) that RoPE turns lies side by side in GGUF */
    TM_ARCH_NO_ROPE = 4,
    TM_ARCH_PARTIAL = 8,     /* RoPE may turn a part of each head */
    TM_ARCH_LOCAL_ROPE = 16, /* layers with a window have their own base, and no scaling */
    TM_ARCH_LONGROPE = 32,
    TM_ARCH_TIED = 64,              /* where config.json does not say, the output is the embedding */
    TM_ARCH_DERIVES_HEAD_DIM = 128, /* config.json has head_dim only where it is not hidden / heads */
    TM_ARCH_TRANSPOSES = 256,
    TM_ARCH_TEMPERATURE = 512,   /* always YaRN; queries grow with the position (llama_4_scaling_beta) */
    TM_ARCH_PROPORTIONAL = 1024, /* always that scaling */
    TM_ARCH_UNSCALED = 2048 /* of the rows with this type, the one for files without RoPE scaling; not for writing */
};
/* Something that holds of some layers. GGUF: a key, written where it is not as llama.cpp takes for granted, a period or
 * a bool for each layer; with period p it holds of layer i unless p divides i + 1 (p = 0: of every layer). */
typedef struct tm_pattern {
    const char *gguf; /* NULL: none */
    uint32_t period;  /* which llama.cpp takes for granted */
    bool rope;        /* tells where RoPE is (no_rope_layers), else where a window is (layer_types) */
    bool always;      /* written, as true or false for each layer */
} tm_pattern;
/* In place of what all layers have in common: sizes of heads, the width of the MLP. */
typedef struct tm_gguf_hooks {
    tm_status (*read_file)(const tm_gguf *g, tm_gguf_keys *k);
    tm_status (*read_config)(const tm_json *config, tm_gguf_keys *k);
    void (*put)(tm_gguf_writer *w, const tm_gguf_keys *k);
} tm_gguf_hooks;
extern const tm_gguf_hooks tm_gguf_gemma4;
struct tm_gguf_arch {
    const char *type;               /* general.architecture, and what its keys begin with */
    const char *also;               /* models that are known by other names; NULL: none */
    const char *model_type, *class; /* in config.json */
    const char *hf_layers;          /* "model.layers." */
    const char *hf_root;            /* what some checkpoints leave out of names, "transformer."; NULL: none */
    const tm_gguf_name *global, *block[4];
    const tm_key *keys[2];
    uint32_t flags;
    uint32_t head_dim; /* where config.json does not say; 0: hidden / heads */
    tm_pattern pattern;
    const tm_gguf_hooks *hooks; /* NULL: all layers have the same sizes */
};
/* Of a file, and of a config.json; TM_EUNSUPPORTED names those that there are. */
TM_MUST_USE tm_status tm_gguf_arch_of(const tm_gguf *g, const tm_gguf_arch **out);
TM_MUST_USE tm_status tm_gguf_arch_for(const char *model_type, const tm_gguf_arch **out);
enum { TM_GGUF_ARCH_KEY = 96 };
/* "llama.block_count" into buf */
const char *tm_gguf_arch_key(const tm_gguf_arch *arch, const char *what, char buf[TM_GGUF_ARCH_KEY]);

/* ---- names (gguf_names.c): "blk.0.attn_q.weight" <-> "model.layers.0.self_attn.q_proj.weight" ---- */

/* False: not a tensor of this architecture. */
bool tm_gguf_name_to_hf(const tm_gguf_arch *arch, const char *gguf, char *hf, size_t cap, tm_op *op);
bool tm_gguf_name_from_hf(const tm_gguf_arch *arch, const char *hf, char *gguf, size_t cap, tm_op *op);

/* ---- hyper-parameters in and out (gguf_keys.c, gguf_rope.c, gguf_config.c) ---- */

TM_MUST_USE tm_status tm_gguf_read_keys(const tm_gguf *g, tm_gguf_keys *out);
TM_MUST_USE tm_status tm_gguf_read_config(const tm_json *config, tm_gguf_keys *out);
void tm_gguf_put_keys(tm_gguf_writer *w, const tm_gguf_keys *k);
/* config.json in the forms of transformers 4 and 5 at once. */
TM_MUST_USE tm_status tm_gguf_config_json(const tm_gguf *g, const tm_gguf_keys *k, tm_buf *out);
TM_MUST_USE tm_status tm_gguf_generation_json(const tm_gguf *g, tm_buf *out);
/* The smallest period that the pattern has; false: none. */
bool tm_gguf_period(const tm_gguf_keys *k, uint32_t *period);

TM_MUST_USE tm_status tm_gguf_read_rope(const tm_gguf *g, tm_gguf_keys *k);
TM_MUST_USE tm_status tm_gguf_read_rope_config(const tm_json *config, tm_gguf_keys *k);
void tm_gguf_put_rope(tm_gguf_writer *w, const tm_gguf_keys *k);
/* The values of rope_parameters (5) and rope_scaling (4). */
void tm_gguf_rope_json(tm_json_writer *j, const tm_gguf_keys *k);
void tm_gguf_rope_json_v4(tm_json_writer *j, const tm_gguf_keys *k);
/* The shortest decimal of a float32 that is not taken for an integer. */
void tm_gguf_jw_float(tm_json_writer *j, double v);
/* Numbers of config.json: positive; absent or null: the fallback, or (size 0) TM_EINPUT. */
TM_MUST_USE tm_status tm_config_size(const tm_json *c, const char *key, uint32_t fallback, uint32_t *out);
TM_MUST_USE tm_status tm_config_real(const tm_json *c, const char *key, double fallback, double *out);
/* Tensors that hold what scaling needs, not weights: name, elements, values. */
typedef struct tm_gguf_rope_tensor {
    const char *name;
    uint32_t n;
    float values[TM_KEYS_MAX_FACTORS];
} tm_gguf_rope_tensor;
uint32_t tm_gguf_rope_tensors(const tm_gguf_keys *k, tm_gguf_rope_tensor out[2]);
bool tm_gguf_is_rope_tensor(const char *name);
/* The other way round (rope_factors.c): llama3's parameters from rope_freqs.weight, longrope's factors. */
TM_MUST_USE tm_status tm_gguf_read_rope_factors(const tm_gguf *g, tm_gguf_keys *k);
/* What cos and sin are multiplied by under longrope. */
double tm_longrope_attention_factor(const tm_gguf_keys *k);

/* ---- vocabulary ---- */

enum { TM_TOKEN_NORMAL = 1, TM_TOKEN_UNKNOWN, TM_TOKEN_CONTROL, TM_TOKEN_USER_DEFINED, TM_TOKEN_UNUSED, TM_TOKEN_BYTE };
/* One row a split of text before BPE that both worlds know (vocab_split.c). */
typedef struct tm_split {
    const char *pre;     /* tokenizer.ggml.pre */
    const char *aliases; /* other values with the same meaning, space-separated, "" */
    const char *regex;   /* NULL: ByteLevel's own (GPT-2's) */
    const char *also;    /* another regex that matches the same; NULL: none */
    bool digits;         /* each digit on its own first */
    bool nfc;            /* normaliser */
    bool ignore_merges;
    bool add_bos; /* where tokenizer.ggml.add_bos_token is absent */
} tm_split;
const tm_split *tm_split_by_pre(const char *pre);
const tm_split *tm_split_by_regex(const char *regex); /* NULL: not known */
const tm_split *tm_split_plain(bool digits);
/* Of the rows that split as this one the one with this normaliser and use of merges; without one, `split`. */
const tm_split *tm_split_nearest(const tm_split *split, bool nfc, bool ignore_merges);

TM_MUST_USE tm_status tm_gguf_tokenizer_json(const tm_gguf *g, tm_buf *out, bool *found);
TM_MUST_USE tm_status tm_gguf_tokenizer_config_json(const tm_gguf *g, tm_buf *out, bool *found);
/* Token `id`'s text, appended. */
TM_MUST_USE tm_status tm_gguf_token(const tm_gguf *g, uint64_t id, tm_buf *out);
/* tokenizer.ggml.* from a folder's tokenizer files. */
TM_MUST_USE tm_status tm_gguf_put_vocabulary(tm_gguf_writer *w, const tm_source *src, uint32_t vocab_size);

#endif
