#!/usr/bin/env python3
"""Writes unicode_classes.c. Needs PyPI's `tokenizers` (the reference) and `unicodedata2` (a newer Unicode than either);
run by hand when the reference moves to a newer Unicode. Every class is asked of the reference itself, code point by code
point, so the tables are what it uses."""
import sys
import unicodedata
import unicodedata2
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers as N, pre_tokenizers as P

CPS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def removed(pre):
    """Code points that a pre-tokenizer with behavior `removed` takes out."""
    out = set()
    for i in range(0, len(CPS), 4096):
        part, kept = CPS[i:i + 4096], set()
        for _, (a, b) in pre.pre_tokenize_str("".join(map(chr, part))):
            kept.update(range(a, b))
        out |= {c for k, c in enumerate(part) if k not in kept}
    return out


def word():
    t = Tokenizer(models.BPE(vocab={"Q": 0}, merges=[]))
    t.add_tokens([AddedToken("QQ", single_word=True, normalized=False)])
    found = t.encode_batch(["QQ" + chr(c) for c in CPS])
    return {c for c, e in zip(CPS, found) if 1 not in e.ids}


def inert():
    """Code points that newer Unicode reorders, decomposes or composes, and the reference leaves alone."""
    nfd, nfkd, out = N.NFD(), N.NFKD(), set()
    for c in CPS:
        x = chr(c)
        if unicodedata2.combining(x) > 1 and nfd.normalize_str("a" + x + "\u0334") == "a" + x + "\u0334":
            out.add(c)
        if unicodedata2.normalize("NFKD", x) != x and nfkd.normalize_str(x) == x:
            out.add(c)
            if unicodedata2.normalize("NFD", x) != x:
                out |= {ord(p) for p in unicodedata2.normalize("NFD", x) if not unicodedata2.combining(p)}  # nor compose
    return out


def marks():
    strip = N.StripAccents()
    return {c for c in CPS if strip.normalize_str("a" + chr(c)) == "a"}


def new_lower():
    """Pairs that the C library's older Unicode lacks."""
    lower = N.Lowercase()
    pairs = [(c, lower.normalize_str(chr(c))) for c in CPS]
    return [(c, ord(to)) for c, to in pairs if len(to) == 1 and to != chr(c) and chr(c).lower() == chr(c)]


def ranges(s):
    out = []
    for c in sorted(s):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def table(name, s, about):
    r = ["{0x%X, 0x%X}" % tuple(x) for x in ranges(s)]
    lines, line = [], "   "
    for x in r:
        if len(line) + len(x) + 2 > 119:
            lines.append(line)
            line = "   "
        line += " " + x + ","
    lines.append(line)
    return ("/* %s */\nstatic const tk_range %s_ranges[] = {\n%s\n};\nconst tk_class tk_%s = {%s_ranges, %d};\n"
            % (about, name, "\n".join(lines), name, name, len(r)))


def main():
    prop = {k: removed(P.Split(Regex(r"\p{%s}" % k), "removed"))
            for k in ("L", "N", "M", "P", "S", "Lu", "Ll", "Lm", "Lo")}
    digits = P.Digits(True)
    numeric = {c for c in CPS if len(digits.pre_tokenize_str("a" + chr(c))) == 2}
    out = ["/* Made by unicode_classes.py; do not edit. Code point ranges of Unicode 16.0, ascending. */",
           '#include "text/chars.h"', "", "/* clang-format off */",
           table("letter", prop["L"], "General category L."),
           table("number", prop["N"], "General category N."),
           table("numeric_more", numeric - prop["N"], "Numbers of Unicode 17 that the Digits pre-tokenizer knows as well."),
           table("word_more", word() - prop["L"] - marks(),
                 "What UTS #18 \\\\w (Alphabetic, M, Nd, Pc, Join_Control) has beyond letters and marks."),
           table("punctuation", removed(P.Punctuation("removed")),
                 "ASCII punctuation and symbols, and the P of the older Unicode that the Punctuation pre-tokenizer has.")]
    out.append(table("inert", inert(), "Normal forms: code points that the reference's older Unicode does not know."))
    out.append(table("mark", marks(), "What StripAccents takes out: General category M of an older Unicode."))
    out.append("/* Lower case of letters assigned after Unicode %s. */\nconst tk_range tk_new_lower[] = {\n%s\n};\n"
               "const size_t tk_new_lower_n = %d;\n" % (unicodedata.unidata_version, "\n".join(
                   "    {0x%X, 0x%X}," % p for p in new_lower()), len(new_lower())))
    for k, s in prop.items():
        old = {c for c in CPS if unicodedata.category(chr(c)).startswith(k)}
        out.append(table("new_" + k, s - old, "General category %s, assigned after Unicode %s (PCRE2 10.42 has that)."
                         % (k, unicodedata.unidata_version)))
    out.append("/* clang-format on */\n")
    sys.stdout.write("\n".join(out))


main()
