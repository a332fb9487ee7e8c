/* Hardware files: one JSON object, read and written by one table of keys (hardware/README.md says what they mean). */
#include "io/file/file.h"
#include "offload/machine/machine.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_BYTES = 64 << 10, LONGEST_KEY = 48 };

typedef enum field_type { TEXT, COUNT, SIZE, RATE, FRACTION, SECONDS } field_type;

typedef struct field {
    const char *section, *key; /* section "": at top level */
    field_type type;
    bool required;   /* wherever its section is given */
    double min, max; /* counts: 0 only where min is 0 */
    uint16_t offset, bytes;
} field;

/* What a file says and tm_machine does not keep. */
typedef struct hardware {
    tm_machine machine;
    uint32_t disks;
} hardware;

#define AT(member) (uint16_t) offsetof(hardware, member), (uint16_t)sizeof(((hardware *)0)->member)
static const field fields[] = {
    {"", "name", TEXT, true, 0, 0, AT(machine.name)},
    {"", "nodes", COUNT, false, 1, 65536, AT(machine.nodes)},
    {"", "ranks_per_node", COUNT, false, 1, 1024, AT(machine.ranks_per_node)},
    {"", "host_memory", SIZE, true, 64e6, 64e12, AT(machine.host_bytes)},
    {"cpu", "cores", COUNT, true, 1, 4096, AT(machine.cores)},
    {"cpu", "flops_fp32", RATE, true, 1e8, 1e15, AT(machine.cpu_flops_fp32)},
    {"cpu", "flops_bf16", RATE, false, 1e8, 1e16, AT(machine.cpu_flops_bf16)},
    {"cpu", "memory_bytes_per_second", RATE, true, 1e8, 1e14, AT(machine.cpu_bps)},
    {"disk", "count", COUNT, false, 1, 64, AT(disks)},
    {"disk", "read_bytes_per_second", RATE, true, 1e6, 1e12, AT(machine.disk.read_bps)},
    {"disk", "write_bytes_per_second", RATE, true, 1e6, 1e12, AT(machine.disk.write_bps)},
    {"disk", "duplex", FRACTION, false, 0, 1, AT(machine.disk.duplex)},
    {"disk", "latency_seconds", SECONDS, false, 0, 1, AT(machine.disk.latency)},
    {"disk", "cpu_seconds_per_byte", SECONDS, false, 0, 1e-6, AT(machine.disk.cpu_per_byte)},
    {"disk", "size", SIZE, false, 1e9, 1e15, AT(machine.disk.bytes)},
    {"disk", "terabytes_written", RATE, false, 1, 1e7, AT(machine.disk.tbw)},
    {"gpu", "count", COUNT, true, 1, 64, AT(machine.gpus)},
    {"gpu", "name", TEXT, true, 0, 0, AT(machine.gpu_name)},
    {"gpu", "memory", SIZE, true, 64e6, 64e12, AT(machine.gpu_bytes)},
    {"gpu", "flops_fp32", RATE, true, 1e6, 1e17, AT(machine.gpu_flops_fp32)},
    {"gpu", "flops_bf16", RATE, true, 1e6, 1e17, AT(machine.gpu_flops_bf16)},
    {"gpu", "memory_bytes_per_second", RATE, true, 1e6, 1e15, AT(machine.gpu_bps)},
    {"gpu", "h2d_bytes_per_second", RATE, true, 1e7, 1e13, AT(machine.h2d_bps)},
    {"gpu", "d2h_bytes_per_second", RATE, false, 1e7, 1e13, AT(machine.d2h_bps)},
    {"link", "bytes_per_second", RATE, true, 1e6, 1e14, AT(machine.link_bps)},
    {"link", "latency_seconds", SECONDS, false, 0, 1, AT(machine.link_latency)},
    {"network", "bytes_per_second", RATE, true, 1e6, 1e13, AT(machine.network_bps)},
    {"network", "latency_seconds", SECONDS, false, 0, 1, AT(machine.network_latency)},
};

/* ---- what was probably meant --------------------------------------------------------------------------------- */

static bool has_section(const char *name) {
    for (size_t i = 0; i < TM_COUNT(fields); i++)
        if (*name && !strcmp(fields[i].section, name)) return true;
    return false;
}

static void dotted(char *to, size_t cap, const char *section, const char *key) {
    snprintf(to, cap, "%s%s%s", section, *section ? "." : "", key);
}

/* The same word in another section, else the nearest of all; "" if nothing is near. */
static void suggest(const char *section, const char *key, char *to, size_t cap) {
    char full[2 * LONGEST_KEY], wanted[2 * LONGEST_KEY];
    size_t best = 2 + tm_min_u64(strlen(key), LONGEST_KEY) / 3;
    to[0] = 0;
    dotted(wanted, sizeof wanted, section, key);
    for (size_t i = 0; i < TM_COUNT(fields); i++) {
        const field *f = &fields[i];
        dotted(full, sizeof full, f->section, f->key);
        size_t d = tm_min_u64(tm_edit_distance(wanted, full), tm_edit_distance(key, f->key) + 1);
        if (!*section && tm_edit_distance(key, f->section) < d) { /* a section of its own */
            d = tm_edit_distance(key, f->section);
            snprintf(full, sizeof full, "%s", f->section);
        }
        if (d >= best) continue;
        best = d;
        snprintf(to, cap, "; did you mean \"%s\"?", full);
    }
}

/* ---- reading one value --------------------------------------------------------------------------------------- */

typedef struct reader {
    const char *path;
    const char *setting; /* "gpu.count=2": the value is this one's, which has no line; NULL: the file's */
    hardware *to;
    bool given[TM_COUNT(fields)];
} reader;

/* Where the value stands: "hw.json:5" or "--set-hardware gpu.count=2". */
static const char *place_of(const reader *r, const tm_json *at, char *to, size_t cap) {
    if (r->setting)
        snprintf(to, cap, "--set-hardware %s", r->setting);
    else
        snprintf(to, cap, "%s:%u", r->path, at->line);
    return to;
}

static tm_status bad(const reader *r, const tm_json *at, const field *f, const char *what) {
    char name[2 * LONGEST_KEY], place[512];
    dotted(name, sizeof name, f->section, f->key);
    return tm_fail(TM_EINPUT, "%s: \"%s\" %s", place_of(r, at, place, sizeof place), name, what);
}

static tm_status out_of_range(const reader *r, const tm_json *at, const field *f, double v) {
    static const char *const unit[] = {
        [COUNT] = "", [SIZE] = " bytes", [RATE] = "", [FRACTION] = "", [SECONDS] = " seconds"};
    char text[160];
    snprintf(text, sizeof text, "is %g: not plausible; give a value from %g to %g%s%s", v, f->min, f->max,
             unit[f->type],
             f->type == RATE && f->min >= 1e6 ? " (bytes or operations a second, decimal: 7 GB/s is 7e9)" : "");
    return bad(r, at, f, text);
}

static tm_status read_text(const reader *r, const tm_json *v, const field *f, char *to) {
    if (v->type != TM_JSON_STRING || v->len == 0 || v->len >= f->bytes || strlen(v->text) != v->len) {
        char text[80];
        snprintf(text, sizeof text, "wants a text of 1 to %u bytes", f->bytes - 1u);
        return bad(r, v, f, text);
    }
    memcpy(to, v->text, v->len + 1);
    return TM_OK;
}

static tm_status read_size(const reader *r, const tm_json *v, const field *f, uint64_t *to) {
    if (v->type == TM_JSON_STRING) {
        if (tm_parse_size(v->text, to) != TM_OK) {
            tm_error_clear();
            return bad(r, v, f, "wants a size such as \"64GiB\"");
        }
    } else if (v->type == TM_JSON_NUMBER && v->is_integer && v->integer >= 0) {
        *to = (uint64_t)v->integer;
    } else {
        return bad(r, v, f, "wants a size: \"64GiB\" or a number of bytes");
    }
    return (double)*to >= f->min && (double)*to <= f->max ? TM_OK : out_of_range(r, v, f, (double)*to);
}

static tm_status read_value(reader *r, const tm_json *v, const field *f) {
    char *to = (char *)r->to + f->offset;
    r->given[f - fields] = true;
    if (f->type == TEXT) return read_text(r, v, f, to);
    if (f->type == SIZE) return read_size(r, v, f, (uint64_t *)(void *)to);
    if (v->type != TM_JSON_NUMBER) return bad(r, v, f, "wants a number");
    if (!(v->number >= f->min && v->number <= f->max)) return out_of_range(r, v, f, v->number);
    if (f->type != COUNT) {
        *(double *)(void *)to = v->number;
        return TM_OK;
    }
    if (!v->is_integer) return bad(r, v, f, "wants a whole number");
    *(uint32_t *)(void *)to = (uint32_t)v->integer;
    return TM_OK;
}

/* ---- the file ------------------------------------------------------------------------------------------------ */

static tm_status unknown(const reader *r, const tm_json *v, const char *section) {
    char hint[160], name[160], place[512];
    suggest(section, v->key, hint, sizeof hint);
    dotted(name, sizeof name, section, v->key);
    return tm_fail(TM_EINPUT, "%s: unknown key \"%s\"%s", place_of(r, v, place, sizeof place), name,
                   *hint ? hint : "; hardware/README.md lists the keys");
}

static const field *find_field(const char *section, const char *key) {
    for (size_t i = 0; i < TM_COUNT(fields); i++)
        if (!strcmp(fields[i].section, section) && !strcmp(fields[i].key, key)) return &fields[i];
    return NULL;
}

/* Nothing, or the first key of `section` that must be there and is not. */
static const field *missing_field(const reader *r, const char *section) {
    for (size_t i = 0; i < TM_COUNT(fields); i++)
        if (fields[i].required && !r->given[i] && !strcmp(fields[i].section, section)) return &fields[i];
    return NULL;
}

static tm_status read_section(reader *r, const tm_json *object, const char *section) {
    for (const tm_json *v = object->child; v; v = v->next) {
        const field *f = find_field(section, v->key);
        if (f) {
            TM_TRY(read_value(r, v, f));
        } else if (!*section && has_section(v->key)) {
            if (v->type != TM_JSON_OBJECT)
                return tm_fail(TM_EINPUT, "%s:%u: \"%s\" wants an object", r->path, v->line, v->key);
            TM_TRY(read_section(r, v, v->key)); /* one level: a section has no sections */
        } else {
            return unknown(r, v, section);
        }
    }
    const field *missing = missing_field(r, section);
    return missing ? bad(r, object, missing, "is missing") : TM_OK;
}

/* ---- settings ------------------------------------------------------------------------------------------------ */

/* What is no JSON is a text: 64GiB. */
static tm_status read_setting(reader *r, const field *f, const char *value) {
    tm_json_doc *doc = NULL;
    const tm_json text = {.type = TM_JSON_STRING, .text = value, .len = strlen(value)};
    tm_status rc = tm_json_parse(&doc, value, text.len, "--set-hardware", TM_JSON_RELAXED, 0);
    if (rc == TM_EINPUT) tm_error_clear();
    if (rc != TM_OK && rc != TM_EINPUT) return rc;
    rc = read_value(r, rc == TM_OK ? tm_json_root(doc) : &text, f);
    tm_json_free(doc);
    return rc;
}

static tm_status apply_setting(reader *r, const char *setting) {
    char section[LONGEST_KEY] = "", key[LONGEST_KEY];
    const char *equals = strchr(setting, '='), *dot = strchr(setting, '.');
    if (dot && equals && dot > equals) dot = NULL;
    const char *from = dot ? dot + 1 : setting;
    size_t before = dot ? (size_t)(dot - setting) : 0, length = equals ? (size_t)(equals - from) : 0;
    if (length == 0 || length >= sizeof key || before >= sizeof section)
        return tm_fail(TM_EINPUT, "--set-hardware %s: write --set-hardware KEY=VALUE, as in gpu.count=2", setting);
    snprintf(section, sizeof section, "%.*s", (int)before, setting);
    snprintf(key, sizeof key, "%.*s", (int)length, from);
    r->setting = setting;
    const field *f = find_field(section, key);
    return f ? read_setting(r, f, equals + 1) : unknown(r, &(tm_json){.key = key}, section);
}

/* The machine's name tells what differs from the file. */
static void name_setting(tm_machine *m, const char *setting) {
    size_t n = strlen(m->name), cap = sizeof m->name;
    if (strncmp(setting, "name=", 5) != 0 && n < cap) snprintf(m->name + n, cap - n, ", %s", setting);
}

/* A section that a setting begins needs the keys that it would need in the file. */
static tm_status apply_settings(reader *r, const char *const *setting, size_t n) {
    for (size_t i = 0; i < n; i++) TM_TRY(apply_setting(r, setting[i]));
    for (size_t i = 0; i < TM_COUNT(fields); i++) {
        const field *missing = r->given[i] ? missing_field(r, fields[i].section) : NULL;
        if (missing) return bad(r, NULL, missing, "is missing");
    }
    for (size_t i = 0; i < n; i++) name_setting(&r->to->machine, setting[i]);
    r->setting = NULL;
    return TM_OK;
}

/* ---- the whole ----------------------------------------------------------------------------------------------- */

/* What follows from what was given. */
static tm_status check_complete(const reader *r, const tm_json *root) {
    tm_machine *m = &r->to->machine;
    tm_disk *d = &m->disk;
    if (!tm_json_get(root, "cpu"))
        return tm_fail(TM_EINPUT, "%s:%u: \"cpu\" is missing: {\"cores\": 16, \"flops_fp32\": 1.2e12, ...}", r->path,
                       root->line);
    if (m->nodes == 0) m->nodes = 1;
    if (m->ranks_per_node == 0) m->ranks_per_node = m->gpus ? m->gpus : 1;
    if (m->cpu_flops_bf16 == 0) m->cpu_flops_bf16 = m->cpu_flops_fp32;
    if (m->d2h_bps == 0) m->d2h_bps = m->h2d_bps;
    if (m->ranks_per_node > 1 && m->link_bps == 0)
        return tm_fail(TM_EINPUT, "%s: %u ranks a node, but no \"link\": {\"bytes_per_second\": ...} between them",
                       r->path, m->ranks_per_node);
    if (m->nodes > 1 && m->network_bps == 0)
        return tm_fail(TM_EINPUT, "%s: %u nodes, but no \"network\": {\"bytes_per_second\": ...} between them", r->path,
                       m->nodes);
    if (r->to->disks > 1) {
        d->read_bps *= r->to->disks;
        d->write_bps *= r->to->disks;
        d->bytes *= r->to->disks;
        d->tbw *= r->to->disks;
    }
    return TM_OK;
}

tm_status tm_machine_load(const char *path, tm_machine *out) {
    return tm_machine_load_with(path, NULL, 0, out);
}

tm_status tm_machine_load_with(const char *path, const char *const *setting, size_t n, tm_machine *out) {
    tm_machine nominal;
    tm_json_doc *doc = NULL;
    tm_status rc;
    tm_machine_nominal(&nominal);
    hardware h = {.machine.disk = {.duplex = nominal.disk.duplex,
                                   .latency = nominal.disk.latency,
                                   .cpu_per_byte = nominal.disk.cpu_per_byte}};
    reader r = {.path = path, .to = &h};
    TM_GO(tm_json_load(&doc, path, MOST_BYTES, TM_JSON_RELAXED));
    const tm_json *root = tm_json_root(doc);
    if (root->type != TM_JSON_OBJECT) TM_GO(tm_fail(TM_EINPUT, "%s:1: a hardware file is one JSON object", path));
    TM_GO(read_section(&r, root, ""));
    TM_GO(apply_settings(&r, setting, n));
    TM_GO(check_complete(&r, root));
    *out = h.machine;
done:
    tm_json_free(doc);
    return rc;
}

/* ---- writing ------------------------------------------------------------------------------------------------- */

/* As it would be read back, of what a table's entry holds; a text has none. */
static double value_of(const hardware *h, const field *f) {
    const char *at = (const char *)h + f->offset;
    if (f->type == SIZE) return (double)*(const uint64_t *)(const void *)at;
    if (f->type == COUNT) return *(const uint32_t *)(const void *)at;
    return f->type == TEXT ? NAN : *(const double *)(const void *)at;
}

static bool plausible(const field *f, double v) {
    return v >= f->min && v <= f->max;
}

static bool describes_section(const tm_machine *m, const char *section) {
    if (!strcmp(section, "disk")) return m->disk.read_bps > 0;
    if (!strcmp(section, "gpu")) return m->gpus > 0;
    if (!strcmp(section, "link")) return m->link_bps > 0;
    return strcmp(section, "network") != 0 || m->network_bps > 0;
}

/* Four digits are more than any of them is worth. */
static double rounded(double v) {
    double unit = v > 0 ? pow(10, floor(log10(v)) - 3) : 1;
    return unit >= 1 ? round(v / unit) * unit : round(v * round(1 / unit)) / round(1 / unit);
}

static tm_status write_field(tm_json_writer *w, const hardware *h, const field *f) {
    double v = value_of(h, f);
    if (f->type == TEXT) {
        tm_jw_field_str(w, f->key, (const char *)h + f->offset);
    } else if (!plausible(f, v)) {
        if (f->required)
            return tm_fail(TM_EINPUT, "\"%s%s%s\" would be %g, which is not plausible", f->section,
                           *f->section ? "." : "", f->key, v);
    } else if (f->type == COUNT || f->type == SIZE) {
        tm_jw_field_uint(w, f->key, (uint64_t)v);
    } else {
        tm_jw_field_double(w, f->key, f->type == RATE ? rounded(v) : v);
    }
    return TM_OK;
}

static tm_status write_all(tm_json_writer *w, const hardware *h) {
    const char *section = "";
    tm_jw_object(w);
    for (size_t i = 0; i < TM_COUNT(fields); i++) {
        const field *f = &fields[i];
        if (!describes_section(&h->machine, f->section)) continue;
        if (strcmp(f->section, section) != 0) {
            if (*section) tm_jw_object_end(w);
            tm_jw_field_object(w, f->section);
            section = f->section;
        }
        TM_TRY(write_field(w, h, f));
    }
    if (*section) tm_jw_object_end(w);
    tm_jw_object_end(w);
    return tm_jw_end(w);
}

tm_status tm_machine_save(const char *path, const tm_machine *m) {
    const hardware h = {.machine = *m};
    tm_json_writer w;
    tm_buf text = {0};
    tm_jw_init(&w, &text, 2);
    tm_status rc = write_all(&w, &h);
    if (rc == TM_OK) rc = tm_buf_append(&text, "\n", 1);
    if (rc == TM_OK) rc = tm_file_write(path, text.data, text.len);
    tm_buf_free(&text);
    return rc;
}
