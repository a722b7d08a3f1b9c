/* A fake libnvidia-ml.so.1 for tests: it answers what a text file says, so the real pynvml can be run without a GPU.
 *
 * FAKE_NVML_FILE names the file; it is read anew whenever it has changed. A line is `<gpu>.<key> = <value>`; gpu -1 is the
 * driver as a whole, `*` any GPU, and the last line that fits speaks. A value may be
 *     1980            a number, or a text
 *     !15             the call returns this NVML error; !abort ends the process
 *     ~5000 1980      the call sleeps 5 s first (a GPU whose firmware does not answer)
 *     a|b|c           changes every 100 ms
 *     5+2e8           5 and 200,000,000 more each second (a counter)
 * A key that is not told is "not supported" (3). Without the file the driver is not loaded (9).
 * -DOLD leaves out what drivers of 2022 do not have.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

typedef int R;
typedef unsigned long long u64;

static char *text;
static struct timespec read_at;
static off_t read_size;

static const char *content(void) {
  const char *path = getenv("FAKE_NVML_FILE");
  struct stat now;
  if (!path || stat(path, &now)) return NULL;
  if (text && !memcmp(&now.st_mtim, &read_at, sizeof read_at) && now.st_size == read_size) return text;
  FILE *file = fopen(path, "r");
  if (!file) return NULL;
  free(text);
  text = calloc(1, now.st_size + 2);
  text[0] = '\n';
  size_t got = fread(text + 1, 1, now.st_size, file);
  text[1 + got] = 0;
  fclose(file);
  read_at = now.st_mtim, read_size = now.st_size;
  return text;
}

static const char *last_line(const char *where, const char *gpu, const char *key) {
  char want[128];
  const char *found = NULL;
  snprintf(want, sizeof want, "\n%s.%s = ", gpu, key);
  for (const char *at = where; (at = strstr(at, want)); at++) found = at + strlen(want);
  return found;
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + now.tv_nsec / 1e9;
}

/* 0 and the value, or an NVML error. */
static R told(int gpu, const char *key, double *number, char *out, size_t room) {
  const char *where = content(), *own, *all, *value;
  char name[16], line[512];
  if (!where) return 9;
  snprintf(name, sizeof name, "%d", gpu);
  own = last_line(where, name, key), all = last_line(where, "*", key);
  value = own > all ? own : all;
  if (!value) return 3;
  snprintf(line, sizeof line, "%.*s", (int)strcspn(value, "\n"), value);
  char *p = line;
  if (*p == '~') {
    long ms = strtol(p + 1, &p, 10);
    struct timespec rest = {ms / 1000, ms % 1000 * 1000000L};
    while (nanosleep(&rest, &rest)) {}
    p += strspn(p, " ");
  }
  if (strchr(p, '|') && number) {
    int n = 1;
    for (char *q = p; *q; q++) n += *q == '|';
    int want = (u64)(seconds() * 10) % n;
    while (want--) p = strchr(p, '|') + 1;
    p[strcspn(p, "|")] = 0;
  }
  if (!strcmp(p, "!abort")) abort();
  if (*p == '!') return atoi(p + 1);
  if (number) {
    char *rate;
    *number = strtod(p, &rate);
    if (*rate == '+') *number += strtod(rate + 1, NULL) * seconds();
  }
  if (out) snprintf(out, room, "%s", p);
  return 0;
}

#define GPU(handle) ((int)(long)(handle) - 1)
#define NUMBER(function, type, key) \
  R function(void *h, type *out) { double d = 0; R r = told(GPU(h), key, &d, NULL, 0); if (!r) *out = (type)d; return r; }
#define TEXT(function, key) \
  R function(void *h, char *out, unsigned room) { return told(GPU(h), key, NULL, out, room); }
#define PICKED(function, type, key) \
  R function(void *h, unsigned which, type *out) { \
    char name[32]; double d = 0; snprintf(name, sizeof name, key "%u", which); \
    R r = told(GPU(h), name, &d, NULL, 0); if (!r) *out = (type)d; return r; }

/* ------------------------------------------------------------ the driver */
R nvmlInitWithFlags(unsigned flags) { double d; (void)flags; R r = told(-1, "init", &d, NULL, 0); return r == 3 ? 0 : r; }
R nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
R nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(R r) {
  return r == 15 ? "GPU is lost" : r == 16 ? "GPU requires restart" : r == 18 ? "Driver/library version mismatch" : "an error";
}
R nvmlSystemGetDriverVersion(char *out, unsigned room) { return told(-1, "driver", NULL, out, room); }
R nvmlSystemGetNVMLVersion(char *out, unsigned room) { return told(-1, "nvml", NULL, out, room); }
R nvmlDeviceGetCount_v2(unsigned *out) { double d = 0; R r = told(-1, "count", &d, NULL, 0); *out = (unsigned)d; return r; }
static R handle(int i, void **out) {
  double d;
  R r = told(i, "handle", &d, NULL, 0);
  *out = (void *)(long)(i + 1);
  return r == 3 ? 0 : r;
}
R nvmlDeviceGetHandleByIndex_v2(unsigned i, void **out) { return handle((int)i, out); }
R nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **out) {
  char own[64];
  for (int i = 0; i < 64; i++)
    if (!told(i, "bdf", NULL, own, sizeof own) && strlen(bus) >= 12 && !strcasecmp(own, bus + strlen(bus) - 12)) return handle(i, out);
  return 6;
}
R nvmlDeviceGetIndex(void *h, unsigned *out) { *out = (unsigned)GPU(h); return 0; }

/* ------------------------------------------------------------ one GPU */
TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetSerial, "serial")
NUMBER(nvmlDeviceGetMinorNumber, unsigned, "minor")
NUMBER(nvmlDeviceGetArchitecture, unsigned, "arch")
NUMBER(nvmlDeviceGetPersistenceMode, unsigned, "persistence")
PICKED(nvmlDeviceGetTemperature, unsigned, "temp")
PICKED(nvmlDeviceGetTemperatureThreshold, unsigned, "threshold")
PICKED(nvmlDeviceGetClockInfo, unsigned, "clock")
PICKED(nvmlDeviceGetMaxClockInfo, unsigned, "max")
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, u64, "reasons")
NUMBER(nvmlDeviceGetPowerUsage, unsigned, "power_mw")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, "limit_mw")
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, "default_limit_mw")
NUMBER(nvmlDeviceGetTotalEnergyConsumption, u64, "energy_mj")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, "gen")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, "width")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "max_gen")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "max_width")
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned, "replay")
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, "retired_pending")
PICKED(nvmlDeviceGetNvLinkState, unsigned, "nvlink")
R nvmlDeviceGetNvLinkErrorCounter(void *h, unsigned link, unsigned counter, u64 *out) {
  char name[32]; double d = 0;
  snprintf(name, sizeof name, "nvlink%u_error%u", link, counter);
  R r = told(GPU(h), name, &d, NULL, 0);
  *out = (u64)d;
  return r;
}
R nvmlDeviceGetUtilizationRates(void *h, unsigned *out) {
  double gpu = 0, memory = 0;
  R r = told(GPU(h), "util", &gpu, NULL, 0);
  if (!r) told(GPU(h), "mem_util", &memory, NULL, 0), out[0] = (unsigned)gpu, out[1] = (unsigned)memory;
  return r;
}
R nvmlDeviceGetTotalEccErrors(void *h, unsigned type, unsigned counter, u64 *out) {
  char name[32]; double d = 0;
  snprintf(name, sizeof name, "ecc%u_%u", type, counter);
  R r = told(GPU(h), name, &d, NULL, 0);
  *out = (u64)d;
  return r;
}
R nvmlDeviceGetMemoryErrorCounter(void *h, unsigned type, unsigned counter, unsigned place, u64 *out) {
  char name[32]; double d = 0;
  snprintf(name, sizeof name, "ecc%u_%u_%u", type, counter, place);
  R r = told(GPU(h), name, &d, NULL, 0);
  *out = (u64)d;
  return r;
}
R nvmlDeviceGetRemappedRows(void *h, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
  const char *names[] = {"remap_corr", "remap_unc", "remap_pending", "remap_failed"};
  unsigned *outs[] = {corrected, uncorrected, pending, failed};
  for (int i = 0; i < 4; i++) {
    double d = 0;
    R r = told(GPU(h), names[i], &d, NULL, 0);
    if (r) return r;
    *outs[i] = (unsigned)d;
  }
  return 0;
}
R nvmlDeviceGetMigMode(void *h, unsigned *now, unsigned *next) {
  double d = 0;
  R r = told(GPU(h), "mig", &d, NULL, 0);
  *now = *next = (unsigned)d;
  return r;
}
struct process { unsigned pid; u64 memory; unsigned instance, compute; };
R nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *count, struct process *out) {
  char line[256] = "", *p = line;
  R r = told(GPU(h), "pids", NULL, line, sizeof line);
  unsigned n = 0, room = *count;
  if (r) return r;
  while (*p) {
    unsigned pid = strtoul(p, &p, 10);
    if (pid && out && n < room) out[n].pid = pid, out[n].memory = 1 << 30, out[n].instance = out[n].compute = ~0u;
    n += pid != 0;
    p += strspn(p, " ,");
  }
  *count = n;
  return n > room || (n && !out) ? 7 : 0;
}
struct field { unsigned id, scope; long long at, took; unsigned type; R ret; union { double d; unsigned u; u64 ull; int i; } v; };
/* `fi<id> = <number>`; scoped `fi<id>_<scope>`; the value's type is `fi<id>_type` (0 double, 1 unsigned, 3 u64, 5 int). */
R nvmlDeviceGetFieldValues(void *h, int n, struct field *a) {
  double all = 0;
  R r = told(GPU(h), "fields", &all, NULL, 0);
  if (r && r != 3) return r;
  for (int i = 0; i < n; i++) {
    char name[32]; double d = 0, type = 3;
    snprintf(name, sizeof name, a[i].scope ? "fi%u_%u" : "fi%u", a[i].id, a[i].scope);
    a[i].ret = told(GPU(h), name, &d, NULL, 0);
    snprintf(name, sizeof name, "fi%u_type", a[i].id);
    if (told(GPU(h), name, &type, NULL, 0)) type = 3;
    a[i].type = (unsigned)type, a[i].v.ull = 0;
    if (a[i].ret) continue;
    if (a[i].type == 0) a[i].v.d = d;
    else if (a[i].type == 1) a[i].v.u = (unsigned)d;
    else if (a[i].type == 5) a[i].v.i = (int)d;
    else a[i].v.ull = (u64)d;
  }
  return 0;
}

#ifndef OLD
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, u64, "reasons")
struct margin { unsigned version; int degrees; };
R nvmlDeviceGetMarginTemperature(void *h, struct margin *out) {
  double d = 0;
  R r = told(GPU(h), "margin", &d, NULL, 0);
  out->degrees = (int)d;
  return r;
}
struct fabric { unsigned version; unsigned char cluster[16]; R status; unsigned clique, state, mask; };
R nvmlDeviceGetGpuFabricInfoV(void *h, struct fabric *out) {
  double state = 0, status = 0, mask = 0;
  R r = told(GPU(h), "fabric", &state, NULL, 0);
  if (r) return r;
  told(GPU(h), "fabric_status", &status, NULL, 0), told(GPU(h), "fabric_mask", &mask, NULL, 0);
  out->state = (unsigned)state, out->status = (R)status, out->mask = (unsigned)mask;
  return 0;
}
struct support { unsigned version, yes; };
R nvmlGpmQueryDeviceSupport(void *h, struct support *out) {
  double d = 0;
  R r = told(GPU(h), "gpm", &d, NULL, 0);
  out->yes = r ? 0 : (unsigned)d;
  return 0;
}
R nvmlGpmSampleAlloc(void **out) { *out = malloc(16); return 0; }
R nvmlGpmSampleFree(void *sample) { free(sample); return 0; }
R nvmlGpmSampleGet(void *h, void *sample) { *(long *)sample = (long)h; return 0; }
struct metric { unsigned id; R ret; double value; struct { char *a, *b, *c; } info; };
struct metrics { unsigned version, n; void *first, *second; struct metric list[512]; };
R nvmlGpmMetricsGet(struct metrics *m) {
  for (unsigned i = 0; i < m->n; i++) {
    char name[32]; double d = 0;
    snprintf(name, sizeof name, "gpm%u", m->list[i].id);
    m->list[i].ret = told(GPU(*(long *)m->second), name, &d, NULL, 0);
    m->list[i].value = d;
  }
  return 0;
}
#endif
