/* What would NVML say of boards whose true power is known?
 *
 * A stand-in for libnvidia-ml.so.1, so that NVIDIA's own Python binding is exercised where there is
 * no board. Time is simulated: it passes when a test says so (sim_set_time_ns) and by a fixed cost
 * per NVML call. The true power of a board is a piecewise linear trace. Its sensors see the trace
 * as the real ones do: a counter that moves every so often, a power reading that is the mean over a
 * window and is refreshed as seldom, both in whole units. Errors can be put into every function.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BOARDS 8
#define FAULTS 64
#define EVENTS 32
#define PROCESSES 8

typedef uint32_t nvmlReturn_t;
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7 };
enum { INTEGRATING = 0, SAMPLING = 1 };
enum { UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3 };

typedef struct {
    int64_t from_ns;
    double mW, slope_mW_per_s, before_mJ; /* power at from_ns, its growth, energy until then */
} Piece;

typedef struct {
    int64_t period_ns, phase_ns, window_ns;
    double gain;
} Sampling;

typedef struct {
    char uuid[96], bus[32], name[96];
    Piece *pieces;
    int count, capacity;
    Sampling energy, instant, averaged;
    int mode;
    int64_t late_ns; /* the counter shows a step up to this much after its end */
    double quantum_mJ, offset_mJ, sampled_mJ;
    int64_t sampled_until;
    struct { int64_t at_ns; double mJ; int reset; } events[EVENTS];
    int event_count;
    uint32_t temperature_C, limit_mW, mig, is_part, virtualization, busy_percent, sm_MHz;
    uint32_t processes, scopes;
    struct { uint32_t pid; uint64_t bytes; } process[PROCESSES];
    double module_mW;
    uint64_t total_bytes, used_bytes, reasons;
    uint64_t held_ns[512];
} Board;

typedef struct { char function[64]; uint32_t code; int64_t from_ns, until_ns; } Fault;
typedef struct { uint32_t board, field; uint32_t code; } FieldFault;

static Board boards[BOARDS];
static int board_count = 0, initialised = 0;
static int64_t now_ns = 0, cost_ns = 0;
static Fault faults[FAULTS];
static int fault_count = 0;
static FieldFault field_faults[FAULTS];
static int field_fault_count = 0;
static uint64_t calls = 0;

/* The truth. */

static const Piece *piece_at(const Board *board, int64_t ns) {
    int low = 0, high = board->count - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (board->pieces[middle].from_ns <= ns) low = middle; else high = middle - 1;
    }
    return &board->pieces[low];
}

static double energy_until(const Board *board, int64_t ns) {
    if (board->count == 0) return 0.0;
    const Piece *piece = piece_at(board, ns);
    double s = (double)(ns - piece->from_ns) * 1e-9;
    return piece->before_mJ + piece->mW * s + piece->slope_mW_per_s * s * s / 2;
}

void sim_power_from(int index, int64_t ns, double mW, double slope_mW_per_s) {
    Board *board = &boards[index];
    double before = energy_until(board, ns);
    while (board->count > 0 && board->pieces[board->count - 1].from_ns >= ns) board->count--;
    if (board->count == board->capacity) {
        board->capacity = board->capacity ? 2 * board->capacity : 1024;
        board->pieces = realloc(board->pieces, (size_t)board->capacity * sizeof(Piece));
    }
    Piece piece = {ns, mW, slope_mW_per_s, before};
    board->pieces[board->count++] = piece;
}

/* The sensors. */

static int64_t tick_of(const Sampling *sampling, int64_t ns) {
    double ticks = floor((double)(ns - sampling->phase_ns) / (double)sampling->period_ns);
    return sampling->phase_ns + (int64_t)ticks * sampling->period_ns;
}

/* The last step of the counter that is shown; each is late by its own part of `late_ns`. */
static int64_t shown_tick(const Board *board, int64_t ns) {
    int64_t tick = tick_of(&board->energy, ns);
    uint64_t mixed = (uint64_t)tick * 0x9E3779B97F4A7C15ULL;
    double part = (double)((mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9ULL >> 11) / 9007199254740992.0;
    return (double)(ns - tick) < part * (double)board->late_ns ? tick - board->energy.period_ns : tick;
}

static double mean_mW(const Board *board, int64_t from_ns, int64_t to_ns) {
    double s = (double)(to_ns - from_ns) * 1e-9;
    return (energy_until(board, to_ns) - energy_until(board, from_ns)) / s;
}

static double shown_mW(const Board *board, const Sampling *sampling) {
    int64_t tick = tick_of(sampling, now_ns);
    return floor(mean_mW(board, tick - sampling->window_ns, tick) * sampling->gain + 0.5);
}

static double counted_mJ(Board *board, int64_t tick) {
    if (board->mode == INTEGRATING) return energy_until(board, tick);
    while (board->sampled_until < tick) { /* each look stands for a whole period */
        int64_t next = board->sampled_until + board->energy.period_ns;
        double s = (double)board->energy.period_ns * 1e-9;
        board->sampled_mJ += mean_mW(board, next - board->energy.window_ns, next) * s;
        board->sampled_until = next;
    }
    return board->sampled_mJ;
}

static uint64_t shown_mJ(Board *board) {
    int64_t tick = shown_tick(board, now_ns);
    double counted = counted_mJ(board, tick) * board->energy.gain + board->offset_mJ;
    for (int i = 0; i < board->event_count; i++) {
        if (board->events[i].at_ns > tick) continue;
        if (board->events[i].reset) /* the driver starts to count again, at nothing */
            counted = (counted_mJ(board, tick) - energy_until(board, board->events[i].at_ns)) *
                      board->energy.gain;
        counted += board->events[i].mJ;
    }
    return (uint64_t)(floor(counted / board->quantum_mJ) * board->quantum_mJ);
}

/* What a test says. */

void sim_reset(int count) {
    for (int i = 0; i < BOARDS; i++) free(boards[i].pieces);
    memset(boards, 0, sizeof boards);
    board_count = count;
    fault_count = field_fault_count = initialised = 0;
    now_ns = 10000000000LL;
    cost_ns = 20000;
    calls = 0;
    for (int i = 0; i < count; i++) {
        Board *board = &boards[i];
        Sampling hundred = {100000000, 0, 100000000, 1.0};
        board->energy = board->instant = board->averaged = hundred;
        board->instant.window_ns = 25000000;
        board->averaged.window_ns = 1000000000;
        board->quantum_mJ = 1.0;
        board->offset_mJ = 5e9;
        board->sampled_until = now_ns;
        board->temperature_C = 40;
        board->limit_mW = 700000;
        board->processes = 1;
        for (uint32_t k = 0; k < PROCESSES; k++) {
            board->process[k].pid = 100000 + k;
            board->process[k].bytes = 1ULL << 29;
        }
        board->scopes = 1;
        board->total_bytes = 80ULL << 30;
        board->used_bytes = 1ULL << 30;
        board->sm_MHz = 1980;
        snprintf(board->uuid, sizeof board->uuid, "GPU-%08x-0000-1111-2222-333344445555", i);
        snprintf(board->bus, sizeof board->bus, "00000000:%02X:00.0", 0x1B + 0x10 * i);
        snprintf(board->name, sizeof board->name, "Simulated board %d", i);
    }
}

void sim_set_time_ns(int64_t ns) { if (ns > now_ns) now_ns = ns; }
int64_t sim_time_ns(void) { return now_ns; }
uint64_t sim_calls(void) { return calls; }
void sim_cost_ns(int64_t ns) { cost_ns = ns; }

static void sampling(Sampling *s, int64_t period, int64_t phase, int64_t window, double gain) {
    s->period_ns = period;
    s->phase_ns = phase;
    s->window_ns = window;
    s->gain = gain;
}

void sim_counter(int i, int64_t period, int64_t phase, int64_t window, double gain, int mode,
                 double quantum_mJ) {
    sampling(&boards[i].energy, period, phase, window, gain);
    boards[i].mode = mode;
    boards[i].quantum_mJ = quantum_mJ;
    boards[i].sampled_until = tick_of(&boards[i].energy, now_ns);
}

void sim_late(int i, int64_t ns) { boards[i].late_ns = ns; }

void sim_instant(int i, int64_t period, int64_t phase, int64_t window, double gain) {
    sampling(&boards[i].instant, period, phase, window, gain);
}

void sim_averaged(int i, int64_t period, int64_t phase, int64_t window, double gain) {
    sampling(&boards[i].averaged, period, phase, window, gain);
}

void sim_counter_event(int i, int64_t at_ns, double mJ, int reset) {
    Board *board = &boards[i];
    board->events[board->event_count].at_ns = at_ns;
    board->events[board->event_count].mJ = mJ;
    board->events[board->event_count++].reset = reset;
}

void sim_fault(const char *function, uint32_t code, int64_t from_ns, int64_t until_ns) {
    Fault *fault = &faults[fault_count++];
    snprintf(fault->function, sizeof fault->function, "%s", function);
    fault->code = code;
    fault->from_ns = from_ns;
    fault->until_ns = until_ns;
}

void sim_field_fault(uint32_t board, uint32_t field, uint32_t code) {
    FieldFault fault = {board, field, code};
    field_faults[field_fault_count++] = fault;
}

void sim_name(int i, const char *name) { snprintf(boards[i].name, sizeof boards[i].name, "%s", name); }
void sim_uuid(int i, const char *uuid) { snprintf(boards[i].uuid, sizeof boards[i].uuid, "%s", uuid); }
void sim_temperature(int i, uint32_t C) { boards[i].temperature_C = C; }
void sim_limit(int i, uint32_t mW) { boards[i].limit_mW = mW; }
void sim_mig(int i, uint32_t mode, uint32_t is_part) { boards[i].mig = mode; boards[i].is_part = is_part; }
void sim_virtualization(int i, uint32_t mode) { boards[i].virtualization = mode; }
void sim_busy(int i, uint32_t percent) { boards[i].busy_percent = percent; }
void sim_processes(int i, uint32_t count) { boards[i].processes = count; }
void sim_process(int i, uint32_t place, uint32_t pid, uint64_t bytes) {
    boards[i].process[place].pid = pid;
    boards[i].process[place].bytes = bytes;
}
void sim_clock(int i, uint32_t MHz) { boards[i].sm_MHz = MHz; }
void sim_memory(int i, uint64_t used) { boards[i].used_bytes = used; }
void sim_held(int i, uint32_t field, uint64_t ns) { boards[i].held_ns[field] = ns; }
void sim_module(int i, uint32_t scopes, double mW) { boards[i].scopes = scopes; boards[i].module_mW = mW; }

/* NVML. */

static nvmlReturn_t entered(const char *function) {
    calls++;
    now_ns += cost_ns;
    for (int i = 0; i < fault_count; i++)
        if (strcmp(faults[i].function, function) == 0 && faults[i].from_ns <= now_ns &&
            now_ns < faults[i].until_ns)
            return faults[i].code;
    return OK;
}

#define ENTER do { nvmlReturn_t code = entered(__func__); if (code) return code; \
    if (!initialised) return UNINITIALIZED; } while (0)

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    nvmlReturn_t code = entered(__func__);
    if (code) return code;
    if (board_count == 0) sim_reset(1);
    initialised = 1;
    return OK;
}

nvmlReturn_t nvmlShutdown(void) { ENTER; initialised = 0; return OK; }

const char *nvmlErrorString(nvmlReturn_t code) { (void)code; return "simulated"; }

nvmlReturn_t nvmlSystemGetDriverVersion(char *text, unsigned int length) {
    ENTER;
    snprintf(text, length, "580.1");
    return OK;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) { ENTER; *count = (unsigned)board_count; return OK; }

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, Board **handle) {
    ENTER;
    if ((int)index >= board_count) return INVALID;
    *handle = &boards[index];
    return OK;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, Board **handle) {
    ENTER;
    for (int i = 0; i < board_count; i++)
        if (strcmp(boards[i].uuid, uuid) == 0) { *handle = &boards[i]; return OK; }
    return NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, Board **handle) {
    ENTER;
    for (int i = 0; i < board_count; i++) {
        size_t n = 0;
        while (bus[n] && (bus[n] | 32) == (boards[i].bus[n] | 32)) n++;
        if (!bus[n] && !boards[i].bus[n]) { *handle = &boards[i]; return OK; }
    }
    return NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetUUID(Board *board, char *text, unsigned int length) {
    ENTER;
    snprintf(text, length, "%s", board->uuid);
    return OK;
}

nvmlReturn_t nvmlDeviceGetName(Board *board, char *text, unsigned int length) {
    ENTER;
    snprintf(text, length, "%s", board->name);
    return OK;
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(Board *board, unsigned long long *mJ) {
    ENTER;
    *mJ = shown_mJ(board);
    return OK;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(Board *board, unsigned int *mW) {
    ENTER;
    *mW = (unsigned)shown_mW(board, &board->averaged);
    return OK;
}

nvmlReturn_t nvmlDeviceGetTemperature(Board *board, unsigned int sensor, unsigned int *C) {
    (void)sensor;
    ENTER;
    *C = board->temperature_C;
    return OK;
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(Board *board, unsigned int *mW) {
    ENTER;
    *mW = board->limit_mW;
    return OK;
}

nvmlReturn_t nvmlDeviceGetMigMode(Board *board, unsigned int *current, unsigned int *pending) {
    ENTER;
    if (board->is_part) return INVALID;
    *current = *pending = board->mig;
    return OK;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(Board *board, unsigned int *is_part) {
    ENTER;
    *is_part = board->is_part;
    return OK;
}

nvmlReturn_t nvmlDeviceGetVirtualizationMode(Board *board, uint64_t *mode) {
    ENTER;
    *mode = board->virtualization;
    return OK;
}

typedef struct { unsigned int gpu, memory; } Rates;
typedef struct { uint64_t total, free, used; } Memory;

nvmlReturn_t nvmlDeviceGetUtilizationRates(Board *board, Rates *rates) {
    ENTER;
    rates->gpu = board->busy_percent;
    rates->memory = 0;
    return OK;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(Board *board, Memory *memory) {
    ENTER;
    memory->total = board->total_bytes;
    memory->used = board->used_bytes;
    memory->free = board->total_bytes - board->used_bytes;
    return OK;
}

nvmlReturn_t nvmlDeviceGetClockInfo(Board *board, unsigned int clock, unsigned int *MHz) {
    (void)clock;
    ENTER;
    *MHz = board->sm_MHz;
    return OK;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(Board *board, uint64_t *reasons) {
    ENTER;
    *reasons = board->reasons;
    return OK;
}

typedef struct { uint32_t pid; uint64_t bytes; uint32_t instance, part; } Process;

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(Board *board, unsigned int *count, Process *found) {
    ENTER;
    unsigned int room = *count;
    *count = board->processes;
    if (board->processes == 0) return OK;
    if (found == NULL || room < board->processes) return TOO_SMALL;
    for (unsigned int i = 0; i < board->processes; i++) {
        Process process = {board->process[i].pid, board->process[i].bytes, 0xFFFFFFFF, 0xFFFFFFFF};
        found[i] = process;
    }
    return OK;
}

typedef struct {
    uint32_t field, scope;
    int64_t timestamp_us, latency_us;
    uint32_t type, code;
    union { double d; uint32_t ui; uint64_t ull; } value;
} FieldValue;

static nvmlReturn_t fill(Board *board, FieldValue *asked) {
    asked->value.ull = 0;
    asked->timestamp_us = now_ns / 1000;
    for (int i = 0; i < field_fault_count; i++)
        if (&boards[field_faults[i].board] == board && field_faults[i].field == asked->field)
            return field_faults[i].code;
    if (asked->field == 185 || asked->field == 186) {
        if (asked->scope > 1 || !(board->scopes & (1u << asked->scope))) return NOT_SUPPORTED;
        const Sampling *sampling = asked->field == 186 ? &board->instant : &board->averaged;
        double module = asked->scope == 1 ? board->module_mW : 0.0;
        asked->type = UNSIGNED_INT;
        asked->value.ui = (uint32_t)(shown_mW(board, sampling) + module);
        return OK;
    }
    if (asked->field == 74 || asked->field == 75 || (asked->field >= 269 && asked->field <= 271)) {
        asked->type = UNSIGNED_LONG_LONG;
        asked->value.ull = board->held_ns[asked->field];
        return OK;
    }
    return NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetFieldValues(Board *board, int count, FieldValue *values) {
    ENTER;
    for (int i = 0; i < count; i++) values[i].code = fill(board, &values[i]);
    return OK;
}
