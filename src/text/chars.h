/* chars: characters as UTF-8, and the classes of Unicode that tokenizers and templates ask for. */
#ifndef TIDEMILL_TEXT_CHARS_H
#define TIDEMILL_TEXT_CHARS_H

#include "base/base.h"

#include <string.h>

typedef struct tk_range {
    uint32_t first, last;
} tk_range;
typedef struct tk_class {
    const tk_range *range;
    size_t n;
} tk_class;
extern const tk_class tk_letter, tk_number, tk_numeric_more, tk_word_more, tk_punctuation;
extern const tk_class tk_inert, tk_mark;
extern const tk_range tk_new_lower[]; /* code point, its lower case */
extern const size_t tk_new_lower_n;
extern const tk_class tk_new_L, tk_new_N, tk_new_M, tk_new_P, tk_new_S, tk_new_Lu, tk_new_Ll, tk_new_Lm, tk_new_Lo;

bool tk_in(const tk_class *c, uint32_t code);
bool tk_is_space(uint32_t code); /* White_Space */
/* What the three known splits ask of a character. */
enum { TK_OTHER = 0, TK_LETTER = 1, TK_NUMBER = 2, TK_SPACE = 4 };
int tk_kind(uint32_t code);
/* The character at *pos of valid UTF-8; moves *pos past it. */
uint32_t tk_next(const char *text, size_t *pos);
/* The character that ends at `pos` (> 0); `*begin` is where it begins. */
uint32_t tk_previous(const char *text, size_t pos, size_t *begin);
uint32_t tk_lower(uint32_t code); /* its lower case, of one character */
/* Length of the valid prefix: len if all of it is UTF-8. */
size_t tk_utf8_valid(const char *text, size_t len);
/* Appends bytes with every maximal broken part replaced by U+FFFD. */
tm_status tk_put_lossy(tm_buf *out, const char *bytes, size_t len) TM_MUST_USE;
/* GPT-2's printable stand-ins: byte to character, and back (-1: not one of them). */
uint32_t tk_byte_to_char(unsigned char byte);
int tk_char_to_byte(uint32_t code);

#endif
