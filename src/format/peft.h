/* peft: adapters in the form of PEFT's folders, read and written; merged into a base; as plain LoRA; as llama.cpp's GGUF.
 *
 *   tm_adapter_folder   reads adapter_config.json and adapter_model.safetensors
 *   tm_adapter_writer   writes them
 *   tm_source_merge     a base and an adapter behind tm_source's face
 *   tm_export           what `tidemill export` does
 *
 * What a configuration says is src/adapter's (adapter.h); here are tensors and files. Tensors are named without the
 * "base_model.model." that they have in the file. Memory: the table of tensors, and of one module its A, B and
 * magnitudes at a time. Errors, ownership and threads are those of format.h.
 *
 *     TM_TRY(tm_adapter_folder_open(&f, "lora"));
 *     TM_TRY(tm_adapter_folder_base(f, NULL, &path));              // where it says that its base is
 *     TM_TRY(tm_source_open(&base, path.data));
 *     TM_TRY(tm_source_merge(&merged, base, f));                   // W + scale B A, from here on like any model
 */
#ifndef TIDEMILL_PEFT_H
#define TIDEMILL_PEFT_H

#include "adapter/adapter.h"
#include "format/format.h"

/* ---- reading a folder -------------------------------------------------------------------------------------------- */

typedef enum tm_adapter_role {
    TM_ADAPTER_LORA_A,      /* X.lora_A.weight [rank, in] */
    TM_ADAPTER_LORA_B,      /* X.lora_B.weight [out, rank] */
    TM_ADAPTER_EMBEDDING_A, /* X.lora_embedding_A [rank, vocabulary] */
    TM_ADAPTER_EMBEDDING_B, /* X.lora_embedding_B [width, rank] */
    TM_ADAPTER_MAGNITUDE,   /* X.lora_magnitude_vector [out], of an embedding [width] */
    TM_ADAPTER_WHOLE        /* X.weight or X.bias in place of the base's: trained whole (modules_to_save, bias), or what
                               PEFT stores beside adapters of embeddings (X.base_layer.weight, a frozen one) */
} tm_adapter_role;

typedef struct tm_adapter_tensor {
    const char *name;   /* "model.layers.0.self_attn.q_proj.lora_A.weight"; WHOLE: as in the base */
    const char *module; /* "model.layers.0.self_attn.q_proj" */
    tm_adapter_role role;
    bool frozen; /* WHOLE: was base_layer's */
    tm_fmt fmt;
    uint32_t ndim;
    uint64_t shape[TM_FMT_MAX_DIMS];
    uint64_t elements;
} tm_adapter_tensor;

typedef struct tm_adapter_folder tm_adapter_folder;
/* The configuration is complete; every A has its B (and magnitude), of the rank that the configuration says. Tensors
 * that are none of an adapter's are refused, by name. */
TM_MUST_USE tm_status tm_adapter_folder_open(tm_adapter_folder **out, const char *dir);
void tm_adapter_folder_close(tm_adapter_folder *f); /* NULL is fine */
/* Has it an adapter_config.json? */
bool tm_is_adapter_folder(const char *path);
const char *tm_adapter_folder_path(const tm_adapter_folder *f);
/* Also for questions that need scratch memory (adapter.h): by one thread at a time. */
const tm_adapter_config *tm_adapter_folder_config(const tm_adapter_folder *f);
uint32_t tm_adapter_folder_tensors(const tm_adapter_folder *f);
const tm_adapter_tensor *tm_adapter_folder_get(const tm_adapter_folder *f, uint32_t i); /* in byte order of names */
int64_t tm_adapter_folder_find(const tm_adapter_folder *f, const char *name);           /* -1: no such tensor */
TM_MUST_USE tm_status tm_adapter_folder_read_f32(const tm_adapter_folder *f, uint32_t i, uint64_t first, uint64_t n,
                                                 float *dst);
/* Appends the path of the base: `named` where it is not NULL, else base_model_name_or_path, beside the folder or from
 * here. TM_EINPUT where nothing is there. */
TM_MUST_USE tm_status tm_adapter_folder_base(const tm_adapter_folder *f, const char *named, tm_buf *out);
/* Is it an adapter of this model? Modules and shapes; TM_EINPUT names what differs. */
TM_MUST_USE tm_status tm_adapter_folder_check(const tm_adapter_folder *f, const tm_source *base);

/* ---- writing a folder -------------------------------------------------------------------------------------------- */

/* DIR exists. Nothing is to be seen before commit; adapter_config.json comes last. Tensors are named as above and put as
 * fp32; they are written as `dtype` (F32, BF16, F16) under PEFT's names: with its prefix, biases of adapted modules as
 * those of their base_layer. */
typedef struct tm_adapter_writer tm_adapter_writer;
TM_MUST_USE tm_status tm_adapter_writer_create(tm_adapter_writer **out, const char *dir,
                                               const tm_adapter_config *config, const tm_adapter_json_opts *json,
                                               tm_fmt dtype);
/* Before the first put; *index counts from 0. */
TM_MUST_USE tm_status tm_adapter_writer_add(tm_adapter_writer *w, const char *name, uint32_t ndim,
                                            const uint64_t *shape, uint32_t *index);
/* Elements [first, first + n), in any order, each once. */
TM_MUST_USE tm_status tm_adapter_writer_put_f32(tm_adapter_writer *w, uint32_t t, uint64_t first, uint64_t n,
                                                const float *values);
TM_MUST_USE tm_status tm_adapter_writer_commit(tm_adapter_writer *w); /* frees w in any case */
void tm_adapter_writer_abandon(tm_adapter_writer *w);                 /* NULL is fine */

/* The folder in a PiSSA adapter's in which its first A and B lie, as a plain adapter (PEFT's own convention). Without it
 * they are made again from the base, which randomised ones (pissa_niter_N) cannot be exactly. */
#define TM_PISSA_FIRST "pissa_init"

/* Makes them: of every matrix of the base that `config` (init pissa) adapts, written to DIR, which exists, as fp32. Embeddings
 * have none: they begin as LoRA's do. A function of base, config and, for randomised decompositions, the seed. Reads each
 * matrix some ten to a hundred times, by rows. `opts`: progress (bytes of the base), ctx and stop; may be NULL. */
TM_MUST_USE tm_status tm_pissa_begin(const tm_adapter_config *config, const tm_source *base, const char *dir,
                                     uint64_t seed, const tm_convert_opts *opts);

/* The same values, a module at a time in memory and without a folder; those of `folder` where it is not NULL and has them
 * (else, of a randomised decomposition, others, with a warning). All of it outlives the object, which one thread uses. */
typedef struct tm_pissa tm_pissa;
TM_MUST_USE tm_status tm_pissa_open(tm_pissa **out, const tm_adapter_config *config, const tm_source *base,
                                    const tm_adapter_folder *folder, uint64_t seed);
void tm_pissa_close(tm_pissa *p); /* NULL is fine */
/* Elements [first, first + n) of the module's first A, or B. A module's ranges are best read one after the other. */
TM_MUST_USE tm_status tm_pissa_read(tm_pissa *p, const char *module, bool b, uint64_t first, uint64_t n, float *dst);

/* ---- base and adapter as one model -------------------------------------------------------------------------------- */

/* `base` and `f` outlive it; adapted tensors have no pieces (tm_source_piece_of). Reading gives W + scale B A (DoRA: its rows times m / their norms; PiSSA: less the first
 * scale B A), in fp32 from the base's values, quantised or not. A tied output becomes one of its own where only one of
 * the two is changed, which is logged. */
TM_MUST_USE tm_status tm_source_merge(tm_source **out, const tm_source *base, const tm_adapter_folder *f);

/* ---- the commands ------------------------------------------------------------------------------------------------- */

typedef struct tm_export_request {
    const char *in;          /* a model (folder, .gguf) or an adapter's folder */
    const tm_source *source; /* a model that is open; then there is no `in` */
    const char *out;         /* GGUF if its name ends in .gguf, else a folder */
    const char *base;        /* of an adapter; NULL: where its configuration says */
    bool merge; /* an adapter into its base; else it stays one: PiSSA becomes plain LoRA of twice the rank, GGUF is
                         llama.cpp's form */
    bool dtype_of_config; /* of a model's folder, where none is named; else it is f32. An adapter's is its own */
    tm_convert_opts convert;
} tm_export_request;
TM_MUST_USE tm_status tm_export(const tm_export_request *r);

#endif
