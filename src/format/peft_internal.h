/* What the files about PEFT's folders share. Not for others. */
#ifndef TIDEMILL_PEFT_INTERNAL_H
#define TIDEMILL_PEFT_INTERNAL_H

#include "format/format_internal.h"
#include "format/peft.h"

#define PEFT_PREFIX "base_model.model."
#define PEFT_WEIGHTS "adapter_model.safetensors"
#define PEFT_CONFIG "adapter_config.json"

/* A module that has an adapter: places of its tensors in the folder, -1: it has none. */
typedef struct peft_module {
    const char *name;
    tm_adapter_spec spec;
    int64_t a, b, magnitude;
    bool embedding;
} peft_module;

struct tm_adapter_folder {
    char *path;
    tm_adapter_config *config;
    tm_st *file;
    uint32_t n, n_modules;
    tm_adapter_tensor *tensor; /* in byte order of names, which they own, as of modules */
    uint32_t *in_file;         /* index in the file */
    peft_module *module;       /* in byte order of names */
    tm_adapter_folder *first;  /* PiSSA's first A and B, if they are there */
};

/* A module's place in a base. */
typedef struct peft_place {
    uint32_t tensor;  /* of the base: its weight */
    bool turned;      /* [in, out]: GPT-2's matrices, and embeddings */
    uint64_t in, out; /* what A and B say */
} peft_place;
/* The base's tensor of that name, which may begin otherwise there ("language_model.model." for "model."); -1: none. */
int64_t peft_find_tensor(const tm_source *base, const char *name);
/* A module's weight; *head: it is the output, which of a tied base is the embedding's tensor (stored as a head is). */
int64_t peft_weight_of(const tm_source *base, const char *module, bool *head);
/* Does GGUF's table of this architecture say that the base's matrix is a transpose? */
bool peft_is_turned(const tm_source *base, const char *tensor);
/* Names of the modules that have tensors, and of a tied base's head; the list's strings lie in `text`. */
TM_MUST_USE tm_status peft_module_names(const tm_source *base, tm_buf *text, const char ***out, size_t *n);
/* Finds the module's weight, and that A, B and magnitudes fit it. */
TM_MUST_USE tm_status peft_place_of(const tm_adapter_folder *f, const peft_module *m, const tm_source *base,
                                    peft_place *out);
/* The output's and the embedding's tensor of the base, and whether it says that they are one. */
typedef struct peft_ends {
    int64_t embedding, head; /* -1: it has none */
    bool tied;
} peft_ends;
TM_MUST_USE tm_status peft_ends_of(const tm_source *base, peft_ends *out);
/* What the head would be called beside this embedding, as a new string; NULL without memory. */
char *peft_head_name(const char *embedding);
bool peft_is_pissa(const tm_adapter_folder *f, const peft_module *m); /* embeddings never are */
/* PiSSA's first A [rank, in] and B [out, rank], of the folder or from the base. */
TM_MUST_USE tm_status peft_first(const tm_adapter_folder *f, const peft_module *m, const tm_source *base,
                                 const peft_place *at, float *a, float *b);

/* An adapter as plain LoRA: of PiSSA twice the rank, [A; first A] and [B, -first B]. A [rank, in], B [out, rank]. */
typedef struct peft_plain {
    uint32_t rank;
    float *a, *b;
} peft_plain;
uint32_t peft_plain_rank(const tm_adapter_folder *f, const peft_module *m);
TM_MUST_USE tm_status peft_plain_load(peft_plain *p, const tm_adapter_folder *f, const peft_module *m,
                                      const tm_source *base);
void peft_plain_free(peft_plain *p);

/* Written as llama.cpp's adapter, or as a folder of plain LoRA into DIR, which exists. `base` may be NULL for a folder
 * of what is plain already. */
struct tm_export_opts;
void peft_progress(const tm_adapter_folder *f, uint32_t k, const struct tm_export_opts *opts); /* module k is there */
TM_MUST_USE tm_status peft_export_gguf(const tm_adapter_folder *f, const tm_source *base, const char *out,
                                       const struct tm_export_opts *opts);
TM_MUST_USE tm_status peft_export_folder(const tm_adapter_folder *f, const tm_source *base, const char *dir,
                                         const struct tm_export_opts *opts);

#endif
