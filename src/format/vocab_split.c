/* How a tokenizer splits text before BPE: GGUF names the split, tokenizer.json spells it out. */
#include "format/gguf_internal.h"

#include <string.h>

static const char LLAMA3[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
                             " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char QWEN2[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                            " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static const tm_split table[] = {
    {.pre = "gpt-2", .aliases = "default phi-2 roberta-bpe jina-es jina-de gigachat", .regex = NULL},
    {.pre = "smollm", .aliases = "starcoder refact command-r codeshell exaone", .regex = NULL, .digits = true},
    {.pre = "llama-bpe", .aliases = "llama3 llama-v3 falcon3", .regex = LLAMA3, .ignore_merges = true, .add_bos = true},
    {.pre = "qwen2", .aliases = "deepseek-r1-qwen", .regex = QWEN2, .nfc = true},
};

static bool word_in(const char *words, const char *word) {
    size_t n = strlen(word);
    for (const char *at = strstr(words, word); n && at; at = strstr(at + 1, word))
        if ((at == words || at[-1] == ' ') && (at[n] == ' ' || at[n] == 0)) return true;
    return false;
}

const tm_split *tm_split_by_pre(const char *pre) {
    for (size_t i = 0; i < TM_COUNT(table); i++)
        if (strcmp(table[i].pre, pre) == 0 || word_in(table[i].aliases, pre)) return &table[i];
    return NULL;
}

const tm_split *tm_split_by_regex(const char *regex) {
    for (size_t i = 0; i < TM_COUNT(table); i++)
        if (table[i].regex && strcmp(table[i].regex, regex) == 0) return &table[i];
    return NULL;
}

const tm_split *tm_split_plain(bool digits) {
    return &table[digits ? 1 : 0];
}
