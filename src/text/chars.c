/* Characters: classes, UTF-8, and GPT-2's stand-ins for bytes. */
#include "text/chars.h"

#include <utf8proc.h>

bool tk_in(const tk_class *c, uint32_t code) {
    size_t low = 0, high = c->n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (code < c->range[mid].first)
            high = mid;
        else if (code > c->range[mid].last)
            low = mid + 1;
        else
            return true;
    }
    return false;
}

bool tk_is_space(uint32_t code) {
    if (code < 0x80) return code == ' ' || (code >= '\t' && code <= '\r');
    return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
           code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

uint32_t tk_lower(uint32_t code) {
    return (uint32_t)utf8proc_tolower((int32_t)code);
}

int tk_kind(uint32_t code) {
    if (code < 0x80) {
        if ((code | 0x20) >= 'a' && (code | 0x20) <= 'z') return TK_LETTER;
        if (code >= '0' && code <= '9') return TK_NUMBER;
        return tk_is_space(code) ? TK_SPACE : TK_OTHER;
    }
    /* Han and Hangul, by far the longest ranges of letters, without a search. */
    if ((code >= 0x4E00 && code <= 0x9FFF) || (code >= 0xAC00 && code <= 0xD7A3)) return TK_LETTER;
    if (tk_in(&tk_letter, code)) return TK_LETTER;
    if (tk_in(&tk_number, code)) return TK_NUMBER;
    return tk_is_space(code) ? TK_SPACE : TK_OTHER;
}

uint32_t tk_next(const char *text, size_t *pos) {
    const unsigned char *p = (const unsigned char *)text + *pos;
    if (p[0] < 0x80) return *pos += 1, p[0];
    if (p[0] < 0xE0) return *pos += 2, (uint32_t)(p[0] & 0x1F) << 6 | (p[1] & 0x3F);
    uint32_t low = (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3F);
    if (p[0] < 0xF0) return *pos += 3, (uint32_t)(p[0] & 0x0F) << 12 | low;
    return *pos += 4, (uint32_t)(p[0] & 0x07) << 18 | low << 6 | (p[3] & 0x3F);
}

uint32_t tk_previous(const char *text, size_t pos, size_t *begin) {
    do pos--;
    while (pos > 0 && ((unsigned char)text[pos] & 0xC0) == 0x80);
    *begin = pos;
    return tk_next(text, &pos);
}

/* Length of the character at p; 0 if it is broken, and then *bad is the length of its maximal subpart (Unicode 16.0,
 * table 3-8: what is replaced by one U+FFFD). */
static size_t char_length(const unsigned char *p, size_t n, size_t *bad) {
    *bad = 1;
    if (p[0] < 0x80) return 1;
    if (p[0] < 0xC2 || p[0] > 0xF4) return 0;
    size_t want = p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    unsigned char low = p[0] == 0xE0 ? 0xA0 : p[0] == 0xF0 ? 0x90 : 0x80;
    unsigned char high = p[0] == 0xED ? 0x9F : p[0] == 0xF4 ? 0x8F : 0xBF;
    for (size_t i = 1; i < want; i++) {
        if (i >= n || p[i] < low || p[i] > high) return 0;
        low = 0x80, high = 0xBF;
        *bad = i + 1;
    }
    return want;
}

size_t tk_utf8_valid(const char *text, size_t len) {
    size_t i = 0, bad = 0;
    while (i < len) {
        uint64_t eight;
        if (i + 8 <= len && (memcpy(&eight, text + i, 8), (eight & 0x8080808080808080u) == 0)) {
            i += 8;
            continue;
        }
        size_t n = char_length((const unsigned char *)text + i, len - i, &bad);
        if (n == 0) return i;
        i += n;
    }
    return len;
}

tm_status tk_put_lossy(tm_buf *out, const char *bytes, size_t len) {
    size_t i = 0;
    while (i < len) {
        size_t good = tk_utf8_valid(bytes + i, len - i), bad = 0;
        TM_TRY(tm_buf_append(out, bytes + i, good));
        i += good;
        if (i == len) break;
        (void)char_length((const unsigned char *)bytes + i, len - i, &bad);
        i += bad;
        TM_TRY(tm_buf_append(out, "\xEF\xBF\xBD", 3));
    }
    return TM_OK;
}

/* GPT-2 shows printable Latin-1 bytes as themselves and gives the other 68, in order, U+0100 and on. */
static bool shows_itself(uint32_t b) {
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
}

uint32_t tk_byte_to_char(unsigned char b) {
    if (shows_itself(b)) return b;
    if (b <= 0x20) return 0x100u + b;
    return b <= 0xA0 ? 0x121u + (b - 0x7Fu) : 0x143u; /* 0x7F..0xA0, then 0xAD */
}

int tk_char_to_byte(uint32_t code) {
    if (code <= 0xFF) return shows_itself(code) ? (int)code : -1;
    if (code <= 0x120) return (int)(code - 0x100);
    if (code <= 0x142) return (int)(code - 0x121 + 0x7F);
    return code == 0x143 ? 0xAD : -1;
}
