/* UTF-8 as RFC 3629 defines it: no overlong forms, no surrogates, nothing above U+10FFFF. */
#include "base/base_internal.h"

static bool is_tail(unsigned char c) {
    return (c & 0xC0) == 0x80;
}

size_t base_utf8_decode(const char *text, size_t n, uint32_t *code_point) {
    const unsigned char *p = (const unsigned char *)text;
    if (n == 0) return 0;
    if (p[0] < 0x80) {
        *code_point = p[0];
        return 1;
    }
    if (p[0] < 0xC2 || p[0] > 0xF4) return 0;
    if (p[0] < 0xE0) {
        if (n < 2 || !is_tail(p[1])) return 0;
        *code_point = (uint32_t)(p[0] & 0x1F) << 6 | (p[1] & 0x3F);
        return 2;
    }
    if (p[0] < 0xF0) {
        if (n < 3 || !is_tail(p[1]) || !is_tail(p[2])) return 0;
        uint32_t c = (uint32_t)(p[0] & 0x0F) << 12 | (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3F);
        *code_point = c;
        return c < 0x800 || (c >= 0xD800 && c < 0xE000) ? 0 : 3;
    }
    if (n < 4 || !is_tail(p[1]) || !is_tail(p[2]) || !is_tail(p[3])) return 0;
    uint32_t c = (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3F) << 12 | (uint32_t)(p[2] & 0x3F) << 6;
    c |= p[3] & 0x3F;
    *code_point = c;
    return c < 0x10000 || c > 0x10FFFF ? 0 : 4;
}

size_t tm_utf8_encode(char out[4], uint32_t c) {
    if (c < 0x80) return out[0] = (char)c, 1;
    if (c < 0x800) return out[0] = (char)(0xC0 | c >> 6), out[1] = (char)(0x80 | (c & 0x3F)), 2;
    if (c < 0x10000) {
        out[0] = (char)(0xE0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3F));
        out[2] = (char)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3F));
    out[2] = (char)(0x80 | (c >> 6 & 0x3F));
    out[3] = (char)(0x80 | (c & 0x3F));
    return 4;
}
