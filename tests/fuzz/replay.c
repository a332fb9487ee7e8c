/* A fuzzer's program without libFuzzer: each file of the folder that is named, as it is, cut off at many places, and
 * with bytes changed to those that parsers trip over. A finding aborts, as it would there. */
#include "fuzz.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { MOST = 1 << 20, PLACES = 192 };

/* From an allocation of exactly that size, so that a sanitizer sees what is read past it. */
static void one(const uint8_t *bytes, size_t n) {
    uint8_t *exact = malloc(n ? n : 1);
    CHECK(exact);
    memcpy(exact, bytes, n);
    (void)LLVMFuzzerTestOneInput(exact, n);
    free(exact);
}

static void around(uint8_t *bytes, size_t n) {
    static const uint8_t odd[] = {0, 1, 0x7f, 0x80, 0xff, '"', '{', ']', '-', '\\', '/'};
    one(bytes, n);
    for (size_t i = 0; i < PLACES && i < n; i++) {
        size_t at = n <= PLACES ? i : (size_t)((uint64_t)i * n / PLACES);
        uint8_t was = bytes[at];
        one(bytes, at);
        bytes[at] = odd[i % sizeof odd];
        one(bytes, n);
        bytes[at] = (uint8_t)(was ^ 1u << i % 8);
        one(bytes, n);
        bytes[at] = was;
    }
}

int main(int argc, char **argv) {
    static uint8_t bytes[MOST];
    char path[PATH_MAX];
    unsigned files = 0;
    if (argc != 2) return fprintf(stderr, "usage: %s FOLDER-OF-SEEDS\n", argv[0]), 2;
    DIR *d = opendir(argv[1]);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", argv[1], e->d_name);
        FILE *f = fopen(path, "re");
        CHECK(f);
        size_t n = fread(bytes, 1, sizeof bytes, f);
        fclose(f);
        around(bytes, n);
        files++;
    }
    if (d) closedir(d);
    if (files == 0) return fprintf(stderr, "%s: no seeds\n", argv[1]), 1;
    printf("%u seeds\n", files);
    return 0;
}
