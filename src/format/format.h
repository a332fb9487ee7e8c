/* format: models in the forms in which they are published: safetensors, Hugging Face folders, GGUF v3. Streams bytes.
 *
 *   tm_st          reads one .safetensors file
 *   tm_st_writer   writes one
 *   tm_gguf        reads a .gguf file's metadata and tensor table
 *   tm_source      "a model to read": an HF folder or a .gguf file behind one face, under HF names and HF shapes
 *   tm_hf_writer   writes the weights of an HF folder (one file, or shards and an index)
 *   tm_convert     folder -> GGUF, GGUF -> folder
 *
 * Knows names, shapes and stored types. Knows nothing of layers, tiers or training.
 *
 * Memory: the table of tensors (about 150 bytes each) and no tensor data; reads and writes go through 64 KiB of stack.
 * Nothing is mapped. Files are hostile: every number from a file is checked before it is used as a size or an offset.
 * Ownership: names and tables handed out belong to the object and live until it is closed.
 * Threads: tm_st, tm_gguf and tm_source do not change after they were opened: any number of threads may read from one.
 * A writer is used by one thread at a time.
 * Errors: what is wrong with a file is TM_EINPUT ("FILE: what; what to do"), what is right but not ours
 * TM_EUNSUPPORTED.
 *
 *     tm_source *src;
 *     TM_TRY(tm_source_open(&src, "SmolLM2-135M-Instruct.Q4_1.gguf"));       // or "path/to/hf-folder"
 *     int64_t t = tm_source_find(src, "model.layers.0.self_attn.q_proj.weight");
 *     if (t < 0) return tm_fail(TM_EINPUT, "the file has no such tensor");
 *     TM_TRY(tm_source_read_f32(src, (uint32_t)t, first, n, values));         // any range: dequantised, un-permuted
 *     tm_source_close(src);
 */
#ifndef TIDEMILL_FORMAT_H
#define TIDEMILL_FORMAT_H

#include "base/base.h"
#include "kernels/packed.h"

#include <signal.h>

/* ---- how elements are stored ---------------------------------------------------------------------------------- */

typedef enum tm_fmt {
    /* plain: one element after the other, little-endian */
    TM_FMT_F32,
    TM_FMT_BF16,
    TM_FMT_F16,
    TM_FMT_F64,
    TM_FMT_F8_E4M3,
    TM_FMT_F8_E5M2,
    TM_FMT_F8_E8M0,
    TM_FMT_I64,
    TM_FMT_I32,
    TM_FMT_I16,
    TM_FMT_I8,
    TM_FMT_U64,
    TM_FMT_U32,
    TM_FMT_U16,
    TM_FMT_U8,
    TM_FMT_BOOL,
    TM_FMT_C64, /* raw only */
    /* blocks of GGUF, along the rows */
    TM_FMT_Q8_0,
    TM_FMT_Q4_0,
    TM_FMT_Q4_1,
    TM_FMT_Q4_K,
    TM_FMT_Q6_K,
    TM_FMT_Q5_0,
    TM_FMT_Q5_1,
    TM_FMT_Q2_K,
    TM_FMT_Q3_K,
    TM_FMT_Q5_K,
    TM_FMT_IQ4_NL,
    /* known by name and size only; their values cannot be read */
    TM_FMT_Q8_1,
    TM_FMT_Q8_K,
    TM_FMT_IQ2_XXS,
    TM_FMT_IQ2_XS,
    TM_FMT_IQ3_XXS,
    TM_FMT_IQ1_S,
    TM_FMT_IQ3_S,
    TM_FMT_IQ2_S,
    TM_FMT_IQ4_XS,
    TM_FMT_IQ1_M,
    TM_FMT_TQ1_0,
    TM_FMT_TQ2_0,
    TM_FMT_MXFP4,
    /* bitsandbytes' codes, two a byte, without the scales, which lie apart: values only through a tm_source */
    TM_FMT_NF4,
    TM_FMT_FP4,
    /* integer codes in words of 32 bits: compressed-tensors', AutoAWQ's, AutoGPTQ's; likewise */
    TM_FMT_INT4,
    TM_FMT_INT8,
    TM_FMT_AWQ4,
    TM_FMT_GPTQ4,
    TM_FMT_GPTQ8,
    TM_FMT_COUNT
} tm_fmt;

typedef struct tm_fmt_info {
    const char *name;     /* "BF16", "Q4_1": as safetensors and ggml spell it */
    uint32_t block;       /* elements of a block, 1 if plain */
    uint32_t block_bytes; /* bytes of a block */
    int8_t ggml;          /* ggml's number of the type, -1: GGUF has none */
    bool safetensors;     /* a dtype of safetensors */
    bool readable;        /* tm_fmt_decode knows it */
} tm_fmt_info;
const tm_fmt_info *tm_fmt_get(tm_fmt fmt);
bool tm_fmt_is_coded(tm_fmt fmt); /* codes, whose scales lie apart */
/* "f32", "F32", "bf16", "q4_1", ...: any case. False if there is no such type. */
bool tm_fmt_parse(const char *name, tm_fmt *out);
/* Bytes of `elements` elements (a whole number of blocks); false on overflow or a broken block. */
bool tm_fmt_bytes(tm_fmt fmt, uint64_t elements, uint64_t *bytes);
/* Values of n elements as float32. Plain types: widened (F64 and integers: rounded to nearest even). Blocks: as ggml
 * dequantises them; n is a multiple of the block. `readable` types only. */
void tm_fmt_decode(tm_fmt fmt, const void *stored, size_t n, float *out);
/* F32, BF16, F16: to nearest even, subnormals included, NaN stays NaN. Q8_0, Q5_0, Q5_1, Q4_0, Q4_1, Q6_K, Q5_K, Q4_K:
 * ggml's reference quantisation; n is a multiple of the block, TM_EINPUT where a value is not finite or its scale no half.
 * Others: TM_EUNSUPPORTED. */
TM_MUST_USE tm_status tm_fmt_encode(tm_fmt fmt, const float *values, size_t n, void *out);

enum { TM_FMT_MAX_DIMS = 8 };

/* ---- safetensors: reading ------------------------------------------------------------------------------------- */

typedef struct tm_st_info {
    const char *name; /* NUL-terminated, UTF-8 without NUL */
    tm_fmt fmt;
    uint32_t ndim; /* 0: a scalar, one element */
    uint64_t shape[TM_FMT_MAX_DIMS];
    uint64_t elements;
    uint64_t offset; /* of the first byte in the file */
    uint64_t bytes;
} tm_st_info;

/* The header is read strictly: at most 100 MB, starts with '{', no holes, overlaps or duplicates, shape times dtype
 * equals the bytes, the file ends where the last tensor does. */
typedef struct tm_st tm_st;
TM_MUST_USE tm_status tm_st_open(tm_st **out, const char *path);
/* NAME below DIR; a name that leaves DIR is refused. */
TM_MUST_USE tm_status tm_st_open_in(tm_st **out, const char *dir, const char *name);
void tm_st_close(tm_st *st); /* NULL is fine */
const char *tm_st_path(const tm_st *st);
uint32_t tm_st_count(const tm_st *st);
const tm_st_info *tm_st_get(const tm_st *st, uint32_t i); /* in order of their offsets */
int64_t tm_st_find(const tm_st *st, const char *name);    /* -1: no such tensor */
/* `__metadata__`: value of `key`, NULL if absent. */
const char *tm_st_metadata(const tm_st *st, const char *key);
/* Ranges are checked against the tensor: TM_EINPUT outside of it. */
TM_MUST_USE tm_status tm_st_read_raw(const tm_st *st, uint32_t i, uint64_t byte_offset, uint64_t n, void *dst);
TM_MUST_USE tm_status tm_st_read_f32(const tm_st *st, uint32_t i, uint64_t first, uint64_t n, float *dst);
/* Integer and BOOL tensors; U64 above INT64_MAX is TM_EINPUT, floating types too. */
TM_MUST_USE tm_status tm_st_read_i64(const tm_st *st, uint32_t i, uint64_t first, uint64_t n, int64_t *dst);

/* ---- safetensors: writing ------------------------------------------------------------------------------------- *
 * Add all tensors, then write their bytes in any order, each byte once, then commit. `__metadata__` is {"format":"pt"};
 * the header is padded with spaces to 8 bytes. The file appears under its name at commit, or not at all.
 *
 *     tm_st_writer *w;  uint32_t t;
 *     TM_TRY(tm_st_writer_create(&w, "out.safetensors"));
 *     TM_TRY(tm_st_writer_add(w, "logits", TM_FMT_F32, 3, (uint64_t[]){B, S, V}, &t));
 *     TM_TRY(tm_st_writer_write(w, t, 0, logits, bytes));      // on failure: tm_st_writer_abandon(w)
 *     TM_TRY(tm_st_writer_commit(w));                          // frees w in any case
 */
typedef struct tm_st_writer tm_st_writer;
TM_MUST_USE tm_status tm_st_writer_create(tm_st_writer **out, const char *path);
TM_MUST_USE tm_status tm_st_writer_metadata(tm_st_writer *w, const char *key, const char *value);
/* Plain safetensors types. TM_EINPUT for a name that is there already. */
TM_MUST_USE tm_status tm_st_writer_add(tm_st_writer *w, const char *name, tm_fmt fmt, uint32_t ndim,
                                       const uint64_t *shape, uint32_t *index);
TM_MUST_USE tm_status tm_st_writer_write(tm_st_writer *w, uint32_t i, uint64_t byte_offset, const void *bytes,
                                         uint64_t n);
/* Narrowed to the tensor's type (F32, BF16, F16). */
TM_MUST_USE tm_status tm_st_writer_write_f32(tm_st_writer *w, uint32_t i, uint64_t first, uint64_t n, const float *v);
/* Frees w in any case. TM_EBUG if a tensor is not complete. */
TM_MUST_USE tm_status tm_st_writer_commit(tm_st_writer *w);
void tm_st_writer_abandon(tm_st_writer *w); /* NULL is fine */

/* ---- GGUF: reading -------------------------------------------------------------------------------------------- *
 * Version 3 (and 2, which has the same layout), little-endian. Values of keys stay in the file and are read when asked
 * for, so that memory is the key names and the tensor table. */

typedef enum tm_gguf_type {
    TM_GGUF_U8,
    TM_GGUF_I8,
    TM_GGUF_U16,
    TM_GGUF_I16,
    TM_GGUF_U32,
    TM_GGUF_I32,
    TM_GGUF_F32,
    TM_GGUF_BOOL,
    TM_GGUF_STRING,
    TM_GGUF_ARRAY,
    TM_GGUF_U64,
    TM_GGUF_I64,
    TM_GGUF_F64
} tm_gguf_type;
typedef struct tm_gguf_kv {
    const char *key;
    tm_gguf_type type;
    tm_gguf_type element; /* of an array */
    uint64_t count;       /* elements of an array, bytes of a string, else 1 */
    uint64_t offset;      /* of the first element's, the string's or the value's first byte in the file */
} tm_gguf_kv;
typedef struct tm_gguf_tensor {
    const char *name;
    tm_fmt fmt;
    uint32_t ndim;
    uint64_t shape[4]; /* slowest first, as HF counts: the reverse of the file's */
    uint64_t elements;
    uint64_t offset; /* in the file */
    uint64_t bytes;
} tm_gguf_tensor;

typedef struct tm_gguf tm_gguf;
TM_MUST_USE tm_status tm_gguf_open(tm_gguf **out, const char *path);
void tm_gguf_close(tm_gguf *g); /* NULL is fine */
const char *tm_gguf_path(const tm_gguf *g);
uint32_t tm_gguf_kvs(const tm_gguf *g);
const tm_gguf_kv *tm_gguf_kv_get(const tm_gguf *g, uint32_t i);
const tm_gguf_kv *tm_gguf_kv_find(const tm_gguf *g, const char *key); /* NULL if absent */
uint32_t tm_gguf_tensors(const tm_gguf *g);
const tm_gguf_tensor *tm_gguf_tensor_get(const tm_gguf *g, uint32_t i); /* in order of their offsets */
int64_t tm_gguf_tensor_find(const tm_gguf *g, const char *name);
/* Scalars. *found tells whether the key is there; TM_EINPUT where it has another kind of value. `found` may be NULL:
 * then an absent key is TM_EINPUT. */
TM_MUST_USE tm_status tm_gguf_uint(const tm_gguf *g, const char *key, uint64_t *out, bool *found);
TM_MUST_USE tm_status tm_gguf_float(const tm_gguf *g, const char *key, double *out, bool *found);
TM_MUST_USE tm_status tm_gguf_bool(const tm_gguf *g, const char *key, bool *out, bool *found);
/* Appended to `out`; at most `max` bytes. */
TM_MUST_USE tm_status tm_gguf_string(const tm_gguf *g, const char *key, size_t max, tm_buf *out, bool *found);
/* An array, element by element, without holding it. `text` lives until the next call. */
typedef struct tm_gguf_array {
    const tm_gguf *gguf;
    const tm_gguf_kv *kv;
    uint64_t index;  /* of the next element */
    uint64_t pos;    /* of the next unread byte in the file */
    size_t have, at; /* bytes buffered, used */
    tm_buf text;
    char buffer[16384];
} tm_gguf_array;
void tm_gguf_array_open(tm_gguf_array *a, const tm_gguf *g, const tm_gguf_kv *kv);
TM_MUST_USE tm_status tm_gguf_array_string(tm_gguf_array *a, const char **text, size_t *len);
TM_MUST_USE tm_status tm_gguf_array_number(tm_gguf_array *a, double *out);
void tm_gguf_array_close(tm_gguf_array *a);
TM_MUST_USE tm_status tm_gguf_read_raw(const tm_gguf *g, uint32_t tensor, uint64_t byte_offset, uint64_t n, void *dst);
/* Any range of elements in the file's order (q and k rows still permuted). */
TM_MUST_USE tm_status tm_gguf_read_f32(const tm_gguf *g, uint32_t tensor, uint64_t first, uint64_t n, float *dst);

/* ---- a model to read -------------------------------------------------------------------------------------------- *
 * PATH is an HF folder (config.json; model.safetensors, or model.safetensors.index.json and its shards) or a .gguf
 * file, or where no weights are asked for a config.json by itself. In a folder of quantised weights (bitsandbytes' nf4 and fp4, compressed-tensors' pack-quantized, AutoGPTQ's,
 * AutoAWQ's) a tensor has its own name and shape, NF4, INT4, GPTQ4 .. is its type, its values are those that the codes stand for, in fp32, and what lies beside it
 * (scales, zeros, maps, states) is not in the table. Folders that config.json's quantization_config says are quantised otherwise are refused by name. Pickled weights (.bin, .pt, .pth) are refused by name. For GGUF the names, shapes, row order,
 * config.json and tokenizer files are those that the HF folder of the model has: whoever reads sees no difference. */

typedef struct tm_source_tensor {
    const char *name; /* "model.layers.0.self_attn.q_proj.weight" */
    tm_fmt fmt;       /* as stored */
    uint32_t ndim;
    uint64_t shape[TM_FMT_MAX_DIMS]; /* row-major: the last index runs fastest */
    uint64_t elements;
    const char *file;       /* where it lies, for messages */
    uint64_t offset, bytes; /* in that file; of a coded type: the codes */
} tm_source_tensor;

/* ---- models by their names on a hub (hub.c) ---- */

bool tm_hub_is_name(const char *name); /* OWNER/NAME, as models are called there */
/* Where OWNER/NAME lies in the caches of huggingface_hub (HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME, HOME) or ModelScope
 * (MODELSCOPE_CACHE, HOME), in `buf` [4096]; `name` itself where it is a path that is there, no such name, or in neither.
 * Never the network. */
const char *tm_hub_find(const char *name, char *buf);

typedef struct tm_source tm_source;
TM_MUST_USE tm_status tm_source_open(tm_source **out, const char *path);
/* Without weights: config and side files only (a folder needs no more than its config.json); no tensors. */
TM_MUST_USE tm_status tm_source_open_bare(tm_source **out, const char *path);
/* The tokenizer's files, its template and generation_config.json are those of folder `dir`, none of the model's own. */
TM_MUST_USE tm_status tm_source_set_tokenizer(tm_source *src, const char *dir);
void tm_source_close(tm_source *src); /* NULL is fine */
const char *tm_source_path(const tm_source *src);
bool tm_source_is_gguf(const tm_source *src);
/* config.json, for GGUF synthesised in the forms of transformers 4 and 5 at once (dtype: float32). NUL-terminated. */
const char *tm_source_config(const tm_source *src, size_t *len);
uint32_t tm_source_tensors(const tm_source *src);
const tm_source_tensor *tm_source_tensor_get(const tm_source *src, uint32_t i); /* in byte order of their names */
int64_t tm_source_find(const tm_source *src, const char *name);                 /* -1: no such tensor */
bool tm_source_is_coded(const tm_source *src); /* it has some tensor whose type tm_fmt_is_coded */
/* n elements from element `first` on, any range. */
TM_MUST_USE tm_status tm_source_read_f32(const tm_source *src, uint32_t i, uint64_t first, uint64_t n, float *dst);
/* n bytes of an HF folder's tensor, of any type. */
TM_MUST_USE tm_status tm_source_read_raw(const tm_source *src, uint32_t i, uint64_t byte_offset, uint64_t n, void *dst);
/* The same as stored; F32, BF16 and F16 only. */
TM_MUST_USE tm_status tm_source_read_native(const tm_source *src, uint32_t i, uint64_t first, uint64_t n, void *dst);

/* Tensors in place: whoever reads the bytes by its own means (offload: into frames, over and over) asks where they lie,
 * and has them decoded. A piece is the least run of elements that can be decoded from some bytes alone: whole blocks;
 * whole heads where GGUF has permuted their rows; all of a matrix that the file has transposed; codes, scales and scales
 * of scales of whole 4-bit blocks; codes, scales and zeros of whole rows. */
typedef struct tm_raw_range {
    const char *path; /* lives as long as the source */
    uint64_t offset, bytes;
} tm_raw_range;
enum { TM_PIECE_RANGES = 4 };
typedef struct tm_source_piece {
    uint64_t first, elements;
    uint64_t run; /* elements that are decoded at the least cost together; 0: any */
    uint32_t n;
    tm_raw_range range[TM_PIECE_RANGES];
    bool in_order; /* one range: its bytes are the elements, in order, in the tensor's fmt */
} tm_source_piece;
/* The piece that has n elements from `first` on. TM_EINPUT: they are not there; TM_EUNSUPPORTED: not `readable`. */
TM_MUST_USE tm_status tm_source_piece_of(const tm_source *src, uint32_t t, uint64_t first, uint64_t n,
                                         tm_source_piece *out);
/* raw[i]: the bytes of the piece's range i, at any address. n elements of the tensor from `first` on, within the piece:
 * the values of tm_source_read_f32 as `to`, F32, BF16 or F16 (to nearest even; a copy where they are stored so). Any
 * thread; parts of one piece may be decoded by several. */
TM_MUST_USE tm_status tm_source_decode(const tm_source *src, uint32_t t, const tm_source_piece *p,
                                       const void *const *raw, uint64_t first, uint64_t n, tm_fmt to, void *out);
/* Whether the tensor is a matrix whose rows products take as the file has them (kernels/packed.h): what of `out` a piece of
 * whole rows has in common with it is filled: all but data, and of 4 bits codes and scales. */
bool tm_source_packing(const tm_source *src, uint32_t t, tm_packed *out);
/* The tensor's pages will not be needed again: a small cgroup is not charged for them. */
void tm_source_forget(const tm_source *src, uint32_t i);
/* A side file's bytes, appended to `out`: "tokenizer.json", "generation_config.json", "chat_template.jinja",
 * "tokenizer_config.json" (at most 64 MiB). *found is false, and TM_OK returned, where the model has none.
 * chat_template.jinja falls back to the chat_template of tokenizer_config.json. */
TM_MUST_USE tm_status tm_source_file(const tm_source *src, const char *name, tm_buf *out, bool *found);

/* ---- writing an HF folder ---------------------------------------------------------------------------------------- */

typedef struct tm_hf_tensor {
    const char *name;
    uint32_t ndim;
    uint64_t shape[TM_FMT_MAX_DIMS];
    bool as_stored; /* of fmt, and put raw; else of the folder's dtype, and put as fp32 */
    tm_fmt fmt;
} tm_hf_tensor;

/* Weights of one dtype (F32, BF16, F16) in DIR, which exists: model.safetensors, or if they exceed max_shard_bytes (0:
 * 50 GB) model-0000k-of-0000N.safetensors and the index. Nothing is to be seen before commit, which replaces what was
 * there. */
typedef struct tm_hf_writer tm_hf_writer;
TM_MUST_USE tm_status tm_hf_writer_create(tm_hf_writer **out, const char *dir, const tm_hf_tensor *tensors, uint32_t n,
                                          tm_fmt dtype, uint64_t max_shard_bytes);
/* Elements [first, first+n) of tensor `t` (index in the list). Any order, each once. */
TM_MUST_USE tm_status tm_hf_writer_put_f32(tm_hf_writer *w, uint32_t t, uint64_t first, uint64_t n,
                                           const float *values);
TM_MUST_USE tm_status tm_hf_writer_put_raw(tm_hf_writer *w, uint32_t t, uint64_t byte_offset, const void *bytes,
                                           uint64_t n);
TM_MUST_USE tm_status tm_hf_writer_commit(tm_hf_writer *w); /* frees w in any case */
void tm_hf_writer_abandon(tm_hf_writer *w);                 /* NULL is fine */

/* ---- four bits --------------------------------------------------------------------------------------------------- */

typedef struct tm_quantise_tensor {
    const char *name;
    uint32_t ndim;
    uint64_t shape[TM_FMT_MAX_DIMS], elements;
    bool four_bits; /* else it stays as `rest`. Two dimensions */
} tm_quantise_tensor;
typedef struct tm_quantise_opts {
    tm_fmt fmt;        /* NF4 or FP4 */
    bool double_quant; /* scales in 8 bits */
    uint32_t block;    /* elements of a scale: a power of two, 32 and more */
    tm_fmt rest;       /* F32, BF16, F16 */
    const tm_quantise_tensor *tensor;
    uint32_t n;
    tm_status (*read)(void *ctx, uint32_t tensor, uint64_t first, uint64_t n, float *values);
    void *ctx;
    void (*progress)(void *ctx, uint64_t done, uint64_t total); /* elements; NULL */
    void *progress_ctx;
} tm_quantise_opts;
/* A folder as bitsandbytes writes its 4-bit checkpoints: weights, and SRC's config.json with a quantization_config; which
 * transformers, PEFT and tm_source read. Codes and scales are bitsandbytes' own. Reads each value once; memory: the scales
 * of one tensor. */
TM_MUST_USE tm_status tm_quantise(const tm_source *src, const char *dir, const tm_quantise_opts *o);
TM_MUST_USE tm_status tm_quantise_json(const tm_quantise_opts *o, tm_buf *out); /* that quantization_config, appended */
/* Of a tensor in four bits in such a folder, with its scales, maps and state. */
uint64_t tm_quantised_bytes(uint64_t elements, uint32_t block, bool double_quant);

/* config.json (as in the source, but with torch_dtype and dtype set to `dtype`), generation_config.json, and the
 * tokenizer's files into DIR, each written beside and renamed. Of a folder all other files go along as well, but for
 * weights, what a run left there, hidden ones (but .gitattributes) and links out of it; up to 64 MiB each, and never in the place of a file
 * that is in DIR. A line in the log says what is left out. */
TM_MUST_USE tm_status tm_source_write_side_files(const tm_source *src, const char *dir, tm_fmt dtype);
bool tm_source_is_side_file(const char *name); /* it may replace one of this name */

/* ---- a model that no file holds --------------------------------------------------------------------------------- */

/* Fills n values of tensor `t` (its number in the list) from element `first` on; one call at a time. */
typedef tm_status (*tm_make_values)(void *ctx, uint32_t t, uint64_t first, uint64_t n, float *out);
typedef struct tm_made_tensors {
    const tm_hf_tensor *tensor; /* names and shapes; copied */
    uint32_t n;
    tm_make_values values;
    void *ctx; /* lives as long as the source */
} tm_made_tensors;
/* Gives a source that was opened bare these tensors. They read as float32 and have no pieces. After an error the source
 * can only be closed. */
TM_MUST_USE tm_status tm_source_make(tm_source *bare, const tm_made_tensors *made);

/* ---- conversion ------------------------------------------------------------------------------------------------- */

/* Types that a model is written in, as --dtype takes them, into `buf`: "f32, bf16, f16, q8_0, ...". In a folder nf4 is
 * bitsandbytes' form, int8 (a scale a row), int4, gptq and awq (one for each 128, 64 or 32 elements) are compressed-tensors'
 * pack-quantized: of the matrices of the blocks; what else there is has config.json's dtype. In GGUF q4_k (also
 * called q4_k_m), q5_k (q5_k_m) and the other blocks are llama.cpp's files of that name: norms and biases are F32, the
 * output Q6_K, some matrices of an M mixture too, and rows that are no whole blocks have another type in its place. */
const char *tm_dtype_names(bool gguf, char *buf, size_t cap);

/* What became of a tensor. */
typedef struct tm_wrote_tensor {
    const char *name, *type; /* as in what is written: "blk.0.attn_q.weight", "Q4_K" */
    uint64_t elements, bytes;
    double power;        /* sum of the squares of its values */
    double error;        /* of its values as they are read back: root mean square, over that of the values */
    double output_error; /* the same of its products with what it multiplied in calibration; 0: not known */
} tm_wrote_tensor;
typedef void (*tm_wrote)(void *ctx, const tm_wrote_tensor *t);

/* Codes that a text has a say in: what writes asks whoever can run a model (src/quantise) for them. */
typedef enum tm_pack_method { TM_PACK_NEAREST, TM_PACK_GPTQ, TM_PACK_AWQ } tm_pack_method;
typedef struct tm_codes tm_codes; /* a folder of packed weights while it is written */
typedef struct tm_calibrating {
    const tm_source *src;                     /* what is exported */
    tm_pack_method method;                    /* NEAREST: a GGUF, which wants to know which columns matter */
    tm_codes *to;                             /* NULL: a GGUF */
    const char *scratch;                      /* path of a file that may be there until it is done */
    tm_status (*at)(void *ctx, double share); /* asked now and then; TM_ESIGNAL: stop */
    void *ctx;
} tm_calibrating;
typedef struct tm_calibrated {
    /* Puts all matrices of the blocks into `to`, and vectors that changed with them. */
    tm_status (*run)(void *ctx, const tm_calibrating *c);
    /* After that, of a matrix: how much each of its columns matters, [width] in [out, in]; NULL: not known. */
    const float *(*importance)(void *ctx, uint32_t tensor);
    void *ctx;
} tm_calibrated;
bool tm_codes_wants(const tm_codes *p, uint32_t tensor); /* it is put, by the functions below; all others are copied */
uint64_t tm_codes_group(const tm_codes *p);              /* elements that share a scale */
tm_fmt tm_codes_scale_fmt(const tm_codes *p);
/* Rows of a matrix, in any order, each once: codes -8 .. 7 [rows][width], scales [rows][width / group]. */
TM_MUST_USE tm_status tm_codes_put(tm_codes *p, uint32_t tensor, uint64_t row, uint64_t rows, const int8_t *codes,
                                   const float *scale);
/* After its rows: sums of squares of its values and of what they lost, and the error of its products. */
TM_MUST_USE tm_status tm_codes_done(tm_codes *p, uint32_t tensor, double power, double lost, double output_error);
/* All values of another tensor, in place of the source's. */
TM_MUST_USE tm_status tm_codes_put_plain(tm_codes *p, uint32_t tensor, float *values);

typedef struct tm_convert_opts {
    const char *dtype;        /* of tm_dtype_names; NULL: to a folder f32, to GGUF the source's */
    uint64_t max_shard_bytes; /* 0: 50 GB */
    /* Called after each tensor; may be NULL. */
    void (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);
    tm_wrote wrote; /* the same; may be NULL */
    void *ctx;
    const tm_calibrated *calibrated; /* NULL: codes depend on the weights alone */
    /* Looked at between pieces; not zero: TM_ESIGNAL, and nothing is left. May be NULL. */
    const volatile sig_atomic_t *stop;
} tm_convert_opts;
/* IN: folder or .gguf. OUT: GGUF if its name ends in .gguf, else a folder, which is written beside and renamed. A
 * folder OUT that exists and is not empty is refused. GGUF is written for the architectures of gguf_arch.c. */
TM_MUST_USE tm_status tm_convert(const char *in, const char *out, const tm_convert_opts *opts);

#endif
