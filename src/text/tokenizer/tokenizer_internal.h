/* What the tokenizer's files share. The life of an encode: tk_work starts as the whole text in one piece; added tokens
 * are cut out; steps rewrite or cut the pieces; the model turns each into ids. Every byte knows the bytes of the
 * original it came from, so that spans are right whatever the steps did. */
#ifndef TIDEMILL_TOKENIZER_INTERNAL_H
#define TIDEMILL_TOKENIZER_INTERNAL_H

#include "text/chars.h"
#include "text/tokenizer/tokenizer.h"

#include <string.h>

/* ---- vocabulary: names and numbers ----------------------------------------------------------------------------- */

typedef struct tk_entry {
    uint32_t offset, len;
    int32_t id;
} tk_entry;
typedef struct tk_vocab {
    tm_buf text; /* all names, one after another */
    tk_entry *entry;
    size_t n, cap;
    uint32_t *slot; /* entry index + 1; open addressing */
    size_t slots;   /* a power of two */
    uint64_t seed;
    int32_t *by_id; /* entry index, -1 */
    size_t ids, ids_cap;
} tk_vocab;
enum { TK_MAX_ID = 1 << 22 };
tm_status tk_vocab_put(tk_vocab *v, const char *name, size_t len, int32_t id) TM_MUST_USE;
int32_t tk_vocab_find(const tk_vocab *v, const char *name, size_t len); /* -1 */
const char *tk_vocab_name(const tk_vocab *v, int32_t id, size_t *len);  /* NULL: no such id */
void tk_vocab_free(tk_vocab *v);

/* ---- text under work ------------------------------------------------------------------------------------------- */

typedef struct tk_text {
    char *bytes;
    tm_token_span *from; /* of every byte: where it came from */
    size_t len, cap;
} tk_text;
tm_status tk_text_put(tk_text *t, const char *bytes, size_t n, tm_token_span from) TM_MUST_USE;
tm_status tk_text_copy(tk_text *t, const tk_text *source, size_t begin, size_t end) TM_MUST_USE;
void tk_text_free(tk_text *t);

/* id >= 0: an added token, settled, and `from` is its place; -1: text [begin, end) of the current tk_text. */
typedef struct tk_piece {
    uint32_t begin, end;
    int32_t id;
    tm_token_span from;
} tk_piece;
typedef struct tk_pieces {
    tk_piece *p;
    size_t n, cap;
} tk_pieces;
tm_status tk_pieces_put(tk_pieces *list, tk_piece p) TM_MUST_USE;

typedef struct tk_symbol {
    int32_t id;
    uint32_t begin, end; /* bytes of the piece */
    int32_t prev, next;  /* -1: none */
    bool gone;           /* merged into the one on its left */
} tk_symbol;
typedef struct tk_cut {
    uint32_t begin, end;
    bool match;
} tk_cut;
typedef struct tk_work {
    tk_text text, next_text;
    tk_pieces pieces, next_pieces;
    tk_cut *cut;
    size_t cuts, cuts_cap;
    tk_symbol *symbol;
    uint64_t *heap; /* rank << 32 | position, a binary heap */
    size_t symbol_cap, heap_cap;
} tk_work;
tm_status tk_work_begin(tk_work *w, const char *text, size_t len) TM_MUST_USE;
void tk_work_free(tk_work *w);

/* ---- steps of normalizers and pre-tokenizers -------------------------------------------------------------------- */

typedef enum tk_behavior { TK_ISOLATED, TK_REMOVED, TK_MERGED_PREVIOUS, TK_MERGED_NEXT, TK_CONTIGUOUS } tk_behavior;
typedef struct tk_regex tk_regex;
typedef struct tk_step tk_step;
typedef tm_status (*tk_rewrite_fn)(const tk_step *s, const tk_text *in, size_t begin, size_t end, tk_text *out);
typedef tm_status (*tk_cut_fn)(const tk_step *s, tk_work *w, size_t begin, size_t end);
typedef size_t (*tk_scan_fn)(const char *text, size_t pos, size_t len);
struct tk_step {
    tk_rewrite_fn rewrite; /* changes the text of each piece, or */
    tk_cut_fn cut;         /* fills w->cut with matches and what lies between, or */
    tk_scan_fn scan;       /* returns the end of the piece that begins at pos */
    tk_behavior behavior;
    bool invert;
    char *find, *put; /* strings of Replace, Prepend, ... */
    size_t find_len, put_len;
    tk_regex *regex;
    int option;
};
typedef struct tk_steps {
    tk_step *step;
    size_t n, cap;
} tk_steps;
tm_status tk_steps_run(const tk_steps *steps, tk_work *w) TM_MUST_USE;
tm_status tk_steps_add(tk_steps *steps, tk_step s) TM_MUST_USE; /* takes over find, put and regex, also when it fails */
void tk_steps_free(tk_steps *steps);
void tk_step_free(tk_step *s);
tm_status tk_cut_put(tk_work *w, size_t begin, size_t end, bool match) TM_MUST_USE;
/* "pattern": {"String": ...} or {"Regex": ...} into s->find or s->regex. */
tm_status tk_step_pattern(tk_step *s, const tm_json *pattern, const char *name) TM_MUST_USE;
tm_status tk_cut_pattern(const tk_step *s, tk_work *w, size_t begin, size_t end) TM_MUST_USE;
tm_status tk_rewrite_replace(const tk_step *s, const tk_text *in, size_t begin, size_t end, tk_text *out) TM_MUST_USE;
tm_status tk_rewrite_bytes(const tk_step *s, const tk_text *in, size_t begin, size_t end, tk_text *out) TM_MUST_USE;
bool tk_string_copy(char **out, size_t *len, const char *text, size_t n) TM_MUST_USE;

tm_status tk_normalizer_parse(tk_steps *steps, const tm_json *node, const char *name) TM_MUST_USE;
tm_status tk_pretokenizer_parse(tk_steps *steps, const tm_json *node, const char *name) TM_MUST_USE;
/* Unicode normal forms; option: see normalizer_unicode.c. */
enum { TK_NFC, TK_NFD, TK_NFKC, TK_NFKD };
tm_status tk_rewrite_form(const tk_step *s, const tk_text *in, size_t begin, size_t end, tk_text *out) TM_MUST_USE;
/* The scanner of a known split regex, NULL. */
tk_scan_fn tk_known_split(const char *regex, size_t len);
tk_scan_fn tk_gpt2_split(void);

tm_status tk_regex_open(tk_regex **out, const char *pattern, size_t len, const char *name) TM_MUST_USE;
void tk_regex_close(tk_regex *r);
/* A loop over matches in text[at, end), which is looked at as a text of its own from `begin` on; and the last one. */
typedef struct tk_regex_walk {
    const char *text;
    size_t begin, at, end;
    size_t match_begin, match_end;
    void *scratch; /* of one regex: NULL before, tk_regex_scratch_free after */
} tk_regex_walk;
/* The next match that is not empty; *found false: none. */
tm_status tk_regex_find(const tk_regex *r, tk_regex_walk *w, bool *found) TM_MUST_USE;
void tk_regex_scratch_free(void *scratch);

/* ---- added tokens ----------------------------------------------------------------------------------------------- */

typedef struct tk_added {
    int32_t id;
    bool special, lstrip, rstrip, single_word, normalized;
    char *shown; /* what decoding gives: the normalized content; NULL: the content */
    size_t shown_len;
} tk_added;
typedef struct tk_trie_node {
    uint32_t child, sibling; /* 0: none */
    int32_t added;           /* index of the added token that ends here, -1 */
    unsigned char byte;
} tk_trie_node;
typedef struct tk_trie {
    tk_trie_node *node; /* node 0 is the root */
    size_t n, cap;
    uint32_t first[256]; /* the root's children */
} tk_trie;
typedef struct tk_added_vocab {
    tk_added *token;
    size_t n, cap;
    tk_vocab index; /* content to index of token */
    int32_t *by_id; /* index, -1 */
    size_t ids;
    tk_trie raw, normal; /* of tokens that are looked for before and after normalization */
} tk_added_vocab;
tm_status tk_added_put(tk_added_vocab *a, const char *content, size_t len, tk_added token) TM_MUST_USE;
tm_status tk_added_finish(tk_added_vocab *a, const tk_steps *normalizer) TM_MUST_USE;
void tk_added_free(tk_added_vocab *a);
tm_status tk_added_extract(const tk_added_vocab *a, const tk_trie *trie, tk_work *w) TM_MUST_USE;
/* Longest match of a trie at text[pos]; -1. */
int32_t tk_trie_match(const tk_trie *t, const char *text, size_t pos, size_t len, size_t *match_len);

/* ---- the model -------------------------------------------------------------------------------------------------- */

typedef struct tk_merge {
    int32_t left, right, id;
} tk_merge; /* its index is its rank */
enum { TK_DIRECT = 0x400 };
typedef struct tk_bpe {
    tk_vocab vocab;
    tm_buf pending; /* merges as text, until the vocabulary is complete */
    tk_merge *merge;
    size_t merges;
    uint32_t *slot; /* merge index + 1 */
    size_t slots;
    uint64_t multiplier;
    int32_t direct[TK_DIRECT]; /* ids of the first characters, -1 */
    int32_t byte[256];         /* ids of <0x00> .. <0xFF>, -1 */
    int32_t unk;
    char *unk_token, *prefix, *suffix; /* NULL: none */
    size_t pending_n;
    bool byte_fallback, fuse_unk, ignore_merges;
} tk_bpe;
tm_status tk_bpe_merge_put(tk_bpe *m, const char *left, size_t left_len, const char *right,
                           size_t right_len) TM_MUST_USE;
tm_status tk_bpe_finish(tk_bpe *m, const char *name) TM_MUST_USE;
void tk_bpe_free(tk_bpe *m);
tm_status tk_bpe_encode(const tk_bpe *m, tk_work *w, size_t begin, size_t end, tm_ids *out, tm_buf *spans) TM_MUST_USE;

/* ---- decoders --------------------------------------------------------------------------------------------------- */

typedef struct tk_tokens { /* the strings of a decode: text[end[i-1], end[i]) */
    tm_buf text;
    size_t *end;
    size_t n, cap;
} tk_tokens;
tm_status tk_tokens_put(tk_tokens *t, const char *bytes, size_t n) TM_MUST_USE;
void tk_tokens_free(tk_tokens *t);
typedef struct tk_decode_step tk_decode_step;
struct tk_decode_step {
    tm_status (*run)(const tk_decode_step *s, const tk_tokens *in, tk_tokens *out);
    tk_step pattern; /* Replace */
    char *text;      /* Strip's character, Metaspace's replacement, BPEDecoder's suffix */
    size_t text_len, start, stop;
    bool drop_first;
};
typedef struct tk_decoder {
    tk_decode_step *step;
    size_t n, cap;
    bool given;
} tk_decoder;
tm_status tk_decoder_parse(tk_decoder *d, const tm_json *node, const char *name) TM_MUST_USE;
void tk_decoder_free(tk_decoder *d);
/* Appends the bytes of a token that others stand before and after. */
tm_status tk_decode_inside(const tk_decoder *d, const char *name, size_t n, tm_buf *out) TM_MUST_USE;

struct tm_tokenizer {
    char *name;
    tk_bpe bpe;
    tk_added_vocab added;
    tk_steps normalizer, pretokenizer;
    tk_decoder decoder;
    tm_ids before, after; /* what the post-processor puts around a text */
};
tm_status tk_load(tm_tokenizer *t, tm_read_fn read, void *ctx) TM_MUST_USE;
tm_status tk_postprocessor_parse(tm_tokenizer *t, const tm_json *node) TM_MUST_USE;
/* The members of a Sequence, or the node itself; for NULL and JSON null: no member. Nested sequences are flattened. */
tm_status tk_flatten(const tm_json *node, const char *members, const char *name,
                     tm_status (*one)(void *ctx, const tm_json *node, const char *name), void *ctx) TM_MUST_USE;

#endif
