// A stand-in for libnvidia-ml.so.1: the functions that sbench-gpu calls, over
// devices that SBENCH_NVML_STUB describes, a list of words:
//
//   count=N      devices (8)          model=h100|a100|l4
//   mig          MIG mode is on       noecc          ECC mode is off
//   eccerrors    uncorrected errors   lost=N         device N fell off the bus
//   throttle     hardware slowdown    busy           a foreign process on device 0
//   nodriver     init fails           hang           the first question never returns
//   crash        it kills the program pcie           no NVLink between the devices
//   xid=N        device 0 reports error N once       hangsample the second sample never returns
//   noevents     errors cannot be listened to        denied     clocks cannot be locked
//   drop         the clock of device 0 falls as soon as it is sampled
//
// Locked clocks are kept in the file that SBENCH_NVML_STATE names, as a driver
// keeps them beyond the process: a line "index sm mem" for each.
//
// Built with -DOLD it is the library of an old driver: most functions are missing.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, SMALL = 7, NO_DRIVER = 9, LOST = 15 };
typedef struct device { int index; int mig; } *dev;
static struct device devices[16];

static const char *word(const char *name) {
	const char *s = getenv("SBENCH_NVML_STUB");
	size_t n = strlen(name);
	while (s && *s) {
		if (strncmp(s, name, n) == 0 && (s[n] == 0 || s[n] == ',' || s[n] == '=')) return s + n + (s[n] == '=');
		if ((s = strchr(s, ','))) s++;
	}
	return NULL;
}
static int has(const char *name) { return word(name) != NULL; }
static int number(const char *name, int otherwise) { const char *s = word(name); return s ? atoi(s) : otherwise; }
static int model(const char *name) { const char *s = word("model"); return strncmp(s ? s : "h100", name, strlen(name)) == 0; }
static int lost(dev d) { return has("lost") && d->index == number("lost", -1); }
#define ALIVE(d) if (lost(d)) return LOST

int nvmlInit_v2(void) { return has("nodriver") ? NO_DRIVER : SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "stub"; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) {
	if (has("hang")) for (;;) pause();
	if (has("crash")) abort();
	snprintf(s, n, "550.54.15");
	return SUCCESS;
}
int nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = 12040; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = number("count", 8); return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, dev *d) {
	if ((int)i >= number("count", 8)) return INVALID;
	devices[i].index = (int)i;
	*d = &devices[i];
	ALIVE(*d);
	return SUCCESS;
}
int nvmlDeviceGetUUID(dev d, char *s, unsigned n) { snprintf(s, n, "%s-%08d", d->mig ? "MIG" : "GPU", d->index); return SUCCESS; }
int nvmlDeviceGetName(dev d, char *s, unsigned n) {
	const char *name = model("l4") ? "NVIDIA L4" : model("a100") ? "NVIDIA A100-SXM4-80GB" : "NVIDIA H100 80GB HBM3";
	snprintf(s, n, "%s%s", name, d->mig ? " MIG 1g.10gb" : "");
	return SUCCESS;
}
struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(dev d, struct memory *m) {
	m->total = model("l4") ? 24152899584ULL : 85520809984ULL;
	if (d->mig) m->total = 10200547328ULL;
	m->used = 4ULL << 20;
	m->free = m->total - m->used;
	return SUCCESS;
}
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(dev d, struct pci *p) {
	memset(p, 0, sizeof *p);
	p->bus = 0x10 + (unsigned)d->index;
	return SUCCESS;
}
int nvmlDeviceGetPowerUsage(dev d, unsigned *mw) { *mw = 71500 + (unsigned)d->index; return SUCCESS; }
int nvmlDeviceGetTotalEnergyConsumption(dev d, unsigned long long *mj) { *mj = 1000000ULL * (unsigned)(d->index + 1); return SUCCESS; }
struct utilization { unsigned gpu, memory; };
static int samples;
int nvmlDeviceGetUtilizationRates(dev d, struct utilization *u) {
	if (d->index == 0) samples++;
	if (has("hangsample") && samples > 1) for (;;) pause();
	u->gpu = 97;
	u->memory = 43;
	return SUCCESS;
}

#ifndef OLD
static struct device instance = {0, 1};
int nvmlSystemGetNVMLVersion(char *s, unsigned n) { snprintf(s, n, "12.550.54.15"); return SUCCESS; }
int nvmlDeviceGetSerial(dev d, char *s, unsigned n) { (void)d; (void)s; (void)n; return NOT_SUPPORTED; }
int nvmlDeviceGetVbiosVersion(dev d, char *s, unsigned n) { (void)d; snprintf(s, n, "96.00.74.00.01"); return SUCCESS; }
int nvmlDeviceGetArchitecture(dev d, unsigned *a) { (void)d; *a = model("l4") ? 8 : model("a100") ? 7 : 9; return SUCCESS; }
int nvmlDeviceGetCudaComputeCapability(dev d, int *major, int *minor) {
	(void)d;
	*major = model("h100") ? 9 : 8;
	*minor = model("l4") ? 9 : 0;
	return SUCCESS;
}
int nvmlDeviceGetMigMode(dev d, unsigned *now, unsigned *next) {
	(void)d;
	if (model("l4")) return NOT_SUPPORTED;
	*now = *next = has("mig");
	return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(dev d, unsigned *n) { (void)d; *n = 7; return SUCCESS; }
int nvmlDeviceGetMigDeviceHandleByIndex(dev d, unsigned i, dev *m) { (void)d; if (i != 2) return NOT_FOUND; *m = &instance; return SUCCESS; }
int nvmlDeviceGetGpuInstanceId(dev d, unsigned *n) { (void)d; *n = 9; return SUCCESS; }
int nvmlDeviceGetComputeInstanceId(dev d, unsigned *n) { (void)d; *n = 0; return SUCCESS; }
int nvmlDeviceGetEccMode(dev d, int *now, int *next) { (void)d; *now = *next = !has("noecc"); return SUCCESS; }
int nvmlDeviceGetTotalEccErrors(dev d, int kind, int counter, unsigned long long *n) {
	if (has("noecc")) return NOT_SUPPORTED;
	*n = kind == 1 && counter == 0 && has("eccerrors") && d->index == 0 ? 3 : 0;
	return SUCCESS;
}
int nvmlDeviceGetRetiredPages(dev d, int cause, unsigned *n, unsigned long long *pages) { (void)d; (void)cause; (void)n; (void)pages; return NOT_SUPPORTED; }
int nvmlDeviceGetRemappedRows(dev d, unsigned *c, unsigned *u, unsigned *pending, unsigned *failed) { (void)d; *c = 1; *u = *pending = *failed = 0; return SUCCESS; }
/* state finds what a device is locked at; 0 where it is not. */
static void state(int index, unsigned *sm, unsigned *mem) {
	const char *path = getenv("SBENCH_NVML_STATE");
	FILE *f = path ? fopen(path, "r") : NULL;
	int i;
	unsigned a, b;
	*sm = *mem = 0;
	while (f && fscanf(f, "%d %u %u", &i, &a, &b) == 3)
		if (i == index) { *sm = a; *mem = b; }
	if (f) fclose(f);
}
static int keep(int index, unsigned sm, unsigned mem) {
	const char *path = getenv("SBENCH_NVML_STATE");
	FILE *f = path ? fopen(path, "a") : NULL;
	if (f) { fprintf(f, "%d %u %u\n", index, sm, mem); fclose(f); }
	return SUCCESS;
}
int nvmlDeviceGetClockInfo(dev d, int kind, unsigned *mhz) {
	unsigned sm, mem;
	state(d->index, &sm, &mem);
	*mhz = kind == 1 ? (sm ? sm : 1980) : (mem ? mem : 2619);
	if (kind == 1 && has("drop") && d->index == 0 && samples > 0) *mhz = 1200;
	return SUCCESS;
}
int nvmlDeviceGetMaxClockInfo(dev d, int kind, unsigned *mhz) { (void)d; *mhz = kind == 1 ? 1980 : 2619; return SUCCESS; }
int nvmlDeviceGetApplicationsClock(dev d, int kind, unsigned *mhz) { (void)d; *mhz = kind == 1 ? 1410 : 2619; return SUCCESS; }
int nvmlDeviceGetPowerManagementLimit(dev d, unsigned *mw) { (void)d; *mw = 700000; return SUCCESS; }
int nvmlDeviceGetEnforcedPowerLimit(dev d, unsigned *mw) { (void)d; *mw = 650000; return SUCCESS; }
int nvmlDeviceGetTemperature(dev d, int sensor, unsigned *c) { (void)d; (void)sensor; *c = 31; return SUCCESS; }
int nvmlDeviceGetPersistenceMode(dev d, int *mode) { (void)d; *mode = 1; return SUCCESS; }
int nvmlDeviceGetComputeMode(dev d, int *mode) { (void)d; *mode = 3; return SUCCESS; }
int nvmlDeviceGetCurrentClocksThrottleReasons(dev d, unsigned long long *bits) { (void)d; *bits = has("throttle") ? 0x8 | 0x40 | 0x1000 : 0x1; return SUCCESS; }
int nvmlDeviceGetCurrPcieLinkGeneration(dev d, unsigned *n) { (void)d; *n = 5; return SUCCESS; }
int nvmlDeviceGetCurrPcieLinkWidth(dev d, unsigned *n) { (void)d; *n = 16; return SUCCESS; }
int nvmlDeviceGetNvLinkState(dev d, unsigned link, int *active) { (void)d; if (has("pcie") || link >= 18) return INVALID; *active = 1; return SUCCESS; }
int nvmlDeviceGetNvLinkVersion(dev d, unsigned link, unsigned *v) { (void)d; (void)link; *v = 4; return SUCCESS; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(dev d, unsigned link, struct pci *p) { (void)d; memset(p, 0, sizeof *p); p->bus = 0x80 + link % 4; return SUCCESS; }
int nvmlDeviceGetP2PStatus(dev a, dev b, int index, int *status) { (void)a; (void)b; *status = index == 2 && !has("pcie") ? 0 : 5; return SUCCESS; }
int nvmlDeviceGetTopologyCommonAncestor(dev a, dev b, int *level) { *level = a->index / 4 == b->index / 4 ? 40 : 50; return SUCCESS; }
struct process { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; };
int nvmlDeviceGetComputeRunningProcesses_v3(dev d, unsigned *n, struct process *list) {
	unsigned want = has("busy") && d->index == 0;
	if (*n < want) { *n = want; return SMALL; }
	*n = want;
	if (want) { list[0].pid = 4242; list[0].memory = ~0ULL; }
	return SUCCESS;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(dev d, unsigned *n, struct process *list) { (void)d; (void)list; *n = 0; return SUCCESS; }
struct field { unsigned id, scope; long long time, latency; unsigned type; int code; union { unsigned long long u; double d; } value; };
int nvmlDeviceGetFieldValues(dev d, int n, struct field *f) {
	(void)d;
	for (int i = 0; i < n; i++) {
		f[i].code = f[i].id == 186 ? SUCCESS : NOT_SUPPORTED;
		f[i].value.u = 412000;
	}
	return SUCCESS;
}
static int permitted(void) { return (getuid() == 0 || getenv("SBENCH_NVML_STATE")) && !has("denied"); }
int nvmlDeviceSetGpuLockedClocks(dev d, unsigned lo, unsigned hi) { (void)hi; return permitted() ? keep(d->index, lo, 0) : NO_PERMISSION; }
int nvmlDeviceResetGpuLockedClocks(dev d) { return permitted() ? keep(d->index, 0, 0) : NO_PERMISSION; }
int nvmlDeviceResetMemoryLockedClocks(dev d) { (void)d; return NOT_SUPPORTED; }
struct event { dev device; unsigned long long type, data; unsigned gpu_instance, compute_instance; };
int nvmlEventSetCreate(void **set) { static int one; *set = &one; return has("noevents") ? NOT_SUPPORTED : SUCCESS; }
int nvmlEventSetFree(void *set) { (void)set; return SUCCESS; }
int nvmlDeviceRegisterEvents(dev d, unsigned long long types, void *set) { (void)d; (void)set; return types == 8 ? SUCCESS : NOT_SUPPORTED; }
int nvmlEventSetWait_v2(void *set, struct event *e, unsigned ms) {
	static int told;
	(void)set;
	(void)ms;
	if (!has("xid") || told++) return 10; /* timeout */
	memset(e, 0, sizeof *e);
	e->device = &devices[0];
	e->type = 8;
	e->data = (unsigned long long)number("xid", 0);
	return SUCCESS;
}
#endif
