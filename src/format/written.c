/* What --dtype may name: a row a type, and what is done with it where. */
#include "format/export_internal.h"

#include <stdio.h>
#include <strings.h>

/* File types: llama_ftype of llama.cpp's llama.h. */
static const tm_written table[] = {
    {.name = "f32", .fmt = TM_FMT_F32, .in_gguf = true, .file_type = 0, .in_folder = true},
    {.name = "bf16", .fmt = TM_FMT_BF16, .in_gguf = true, .file_type = 32, .in_folder = true},
    {.name = "f16", .fmt = TM_FMT_F16, .in_gguf = true, .file_type = 1, .in_folder = true},
    {.name = "q8_0", .fmt = TM_FMT_Q8_0, .in_gguf = true, .file_type = 7},
    {.name = "q6_k", .fmt = TM_FMT_Q6_K, .in_gguf = true, .file_type = 18},
    {.name = "q5_k", .also = "q5_k_m", .fmt = TM_FMT_Q5_K, .in_gguf = true, .file_type = 17, .more_bits = true},
    {.name = "q5_1", .fmt = TM_FMT_Q5_1, .in_gguf = true, .file_type = 9},
    {.name = "q5_0", .fmt = TM_FMT_Q5_0, .in_gguf = true, .file_type = 8},
    {.name = "q4_k", .also = "q4_k_m", .fmt = TM_FMT_Q4_K, .in_gguf = true, .file_type = 15, .more_bits = true},
    {.name = "q4_1", .fmt = TM_FMT_Q4_1, .in_gguf = true, .file_type = 3},
    {.name = "q4_0", .fmt = TM_FMT_Q4_0, .in_gguf = true, .file_type = 2},
    {.name = "nf4", .fmt = TM_FMT_NF4, .in_folder = true, .form = TM_FORM_NF4},
    {.name = "int8", .fmt = TM_FMT_I32, .in_folder = true, .form = TM_FORM_PACKED, .bits = 8},
    {.name = "int4", .fmt = TM_FMT_I32, .in_folder = true, .form = TM_FORM_PACKED, .bits = 4},
    {.name = "gptq", .fmt = TM_FMT_I32, .in_folder = true, .form = TM_FORM_PACKED, .bits = 4, .method = TM_PACK_GPTQ},
    {.name = "awq", .fmt = TM_FMT_I32, .in_folder = true, .form = TM_FORM_PACKED, .bits = 4, .method = TM_PACK_AWQ},
};

bool tm_written_is_plain(const tm_written *w) {
    return w->form == TM_FORM_PLAIN && tm_fmt_get(w->fmt)->block == 1;
}

const tm_written *tm_written_by_fmt(tm_fmt fmt) {
    for (size_t i = 0; i < TM_COUNT(table); i++)
        if (table[i].fmt == fmt) return &table[i];
    return NULL;
}

const char *tm_dtype_names(bool gguf, char *buf, size_t cap) {
    size_t n = 0;
    buf[0] = 0;
    for (size_t i = 0; i < TM_COUNT(table) && n < cap; i++)
        if (gguf ? table[i].in_gguf : table[i].in_folder)
            n += (size_t)snprintf(buf + n, cap - n, "%s%s", n ? ", " : "", table[i].name);
    return buf;
}

tm_status tm_written_named(const char *name, const tm_written **out) {
    char folder[128], gguf[128];
    *out = NULL;
    for (size_t i = 0; name && i < TM_COUNT(table) && !*out; i++)
        if (strcasecmp(name, table[i].name) == 0 || (table[i].also && strcasecmp(name, table[i].also) == 0))
            *out = &table[i];
    if (!name || *out) return TM_OK;
    return tm_fail(TM_EINPUT, "dtype '%.60s' is not one of %s; of a folder %s", name,
                   tm_dtype_names(true, gguf, sizeof gguf), tm_dtype_names(false, folder, sizeof folder));
}
