/* How a tokenizer splits text before BPE: GGUF names the split, tokenizer.json spells it out. */
#include "format/gguf_internal.h"

#include <string.h>

static const char LLAMA3[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
                             " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
/* tiktoken's own spelling: what its possessive parts match no other part can, and \\s* takes all but the last line's end. */
static const char CL100K[] = "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}|"
                             " ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+";
static const char QWEN2[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                            " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* Words of upper and of lower case: tiktoken's o200k, and Mistral's Tekken. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define SHORT "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define REST "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
static const char O200K[] = "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" SHORT "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER
                            "*" SHORT "|\\p{N}{1,3}" REST;
static const char TEKKEN[] =
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*|\\p{N}" REST;

/* Of rows with one regex the first is the one whose name is written where neither fits. */
static const tm_split table[] = {
    {.pre = "gpt-2", .aliases = "default phi-2 roberta-bpe jina-es jina-de gigachat olmo exaone4 granite-docling"},
    {.pre = "smollm", .aliases = "starcoder refact command-r codeshell exaone", .digits = true},
    {.pre = "llama-bpe",
     .aliases = "llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2",
     .regex = LLAMA3,
     .ignore_merges = true,
     .add_bos = true},
    {.pre = "dbrx",
     .aliases = "smaug-bpe glm4 chatglm-bpe",
     .regex = LLAMA3,
     .also = CL100K}, /* Phi-4, OLMo 2, GLM-4 */
    {.pre = "qwen2", .aliases = "deepseek-r1-qwen megrez", .regex = QWEN2, .nfc = true},
    {.pre = "gpt-4o", .aliases = "llama4", .regex = O200K}, /* Phi-4-mini */
    {.pre = "tekken", .aliases = "", .regex = TEKKEN, .ignore_merges = true, .add_bos = true},
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
        if ((table[i].regex && strcmp(table[i].regex, regex) == 0) ||
            (table[i].also && strcmp(table[i].also, regex) == 0))
            return &table[i];
    return NULL;
}

const tm_split *tm_split_plain(bool digits) {
    return &table[digits ? 1 : 0];
}

const tm_split *tm_split_nearest(const tm_split *split, bool nfc, bool ignore_merges) {
    for (size_t i = 0; i < TM_COUNT(table); i++)
        if (table[i].regex == split->regex && table[i].digits == split->digits && table[i].nfc == nfc &&
            table[i].ignore_merges == ignore_merges)
            return &table[i];
    return split;
}
