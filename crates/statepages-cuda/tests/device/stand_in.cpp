// A driver and a run-time compiler without a device, under both vendors' names. Streams are queues
// whose work is done late: a step at a time when somebody asks for an event, all of it when somebody
// waits. Copies read and write at that moment, so whoever reuses memory too early is found out.
//
// Allocations stand between guard bands, checked when they are freed.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#define STATEPAGES_HOST
#include "../../kernels/copy.cu"

extern "C" {
thread_local u32 host_thread, host_block_x, host_block_y, host_block_z;
}

namespace {

const int INVALID = 1, NOT_READY = 600, BROKEN = 700;
const size_t GUARD = 256;

struct Event {
    u64 recorded = 0, reached = 0;
};

struct Task {
    std::function<void()> run;
    Event* record = nullptr;
    u64 version = 0;
    Event* wait = nullptr;
    // The device has an illegal access to report from here on.
    bool breaks = false;
};

struct Stream {
    std::deque<Task> tasks;
    std::vector<Task>* capture = nullptr;
};

struct Function {
    const char* name;
    std::vector<size_t> sizes;
    void (*run)(void** a);
};

typedef std::vector<u64> Value;

#define U64(i) (*(u64*)a[i])
#define U32(i) (*(u32*)a[i])
#define WORDS(i) (*(Words*)a[i])
#define DIRECT(i) (*(Direct*)a[i])
Function FUNCTIONS[] = {
    {"statepages_copy", {8, 8, 8, 8, 8, 8},
     [](void** a) { statepages_copy(U64(0), U64(1), U64(2), U64(3), U64(4), U64(5)); }},
    {"statepages_copy_argued", {8, 8, 8, 8, 4, 4, sizeof(Words)},
     [](void** a) {
         statepages_copy_argued(U64(0), U64(1), U64(2), U64(3), U32(4), U32(5), WORDS(6));
     }},
    {"statepages_direct", {8, 8, 8, 8, sizeof(Direct)},
     [](void** a) { statepages_direct(U64(0), U64(1), U64(2), U64(3), DIRECT(4)); }},
    {"statepages_direct_argued", {8, 8, 4, 4, sizeof(Direct), sizeof(Words)},
     [](void** a) {
         statepages_direct_argued(U64(0), U64(1), U32(2), U32(3), DIRECT(4), WORDS(5));
     }},
    {"statepages_relocate_argued", {8, 8, 8, 4, sizeof(Words)},
     [](void** a) { statepages_relocate_argued(U64(0), U64(1), U64(2), U32(3), WORDS(4)); }},
    {"statepages_relocate", {8, 8, 8, 8},
     [](void** a) { statepages_relocate(U64(0), U64(1), U64(2), U64(3)); }},
    {"statepages_fill", {8, 8, 8, 8, 4, 8, 4},
     [](void** a) { statepages_fill(U64(0), U64(1), U64(2), U64(3), U32(4), U64(5), U32(6)); }},
    {"statepages_digest", {8, 8, 8, 8, 4, 8, 4},
     [](void** a) { statepages_digest(U64(0), U64(1), U64(2), U64(3), U32(4), U64(5), U32(6)); }},
    {"statepages_hold", {8, 8}, [](void** a) { statepages_hold(U64(0), U64(1)); }},
};

std::recursive_mutex lock;
std::vector<Stream*> streams;
std::map<u64, size_t> sizes;
std::map<std::string, int> fail_after;
u64 dice = 1, guard_faults = 0, live = 0;
bool broken = false;
bool corrupt = false;
u64 corrupt_at = 0;
u32 corrupt_value = 0;

u64 roll() {
    dice = dice * 6364136223846793005ull + 1442695040888963407ull;
    return dice >> 33;
}

int enter(const char* name) {
    auto found = fail_after.find(name);
    if (found == fail_after.end()) return broken ? BROKEN : 0;
    if (found->second-- > 0) return broken ? BROKEN : 0;
    fail_after.erase(found);
    return BROKEN;
}
#define ENTER(name)                                                                                \
    std::lock_guard<std::recursive_mutex> guard(lock);                                             \
    if (int status = enter(name)) return status

// Does the first task of a stream, if it need not wait.
bool step(Stream* stream) {
    if (stream->tasks.empty()) return false;
    Task& task = stream->tasks.front();
    if (task.wait && task.wait->reached < task.version) return false;
    if (task.breaks) broken = true;
    if (task.run && !broken) task.run();
    if (task.record) task.record->reached = task.version;
    stream->tasks.pop_front();
    return true;
}

void step_any() {
    for (size_t tries = 0; tries < streams.size(); tries++)
        if (step(streams[roll() % streams.size()])) return;
}

void drain(Stream* stream) {
    while (!stream->tasks.empty())
        if (!step(stream))
            for (Stream* other : streams)
                if (other != stream) step(other);
}

void drain_all() {
    for (Stream* stream : streams) drain(stream);
}

void push(Stream* stream, Task task) {
    if (stream->capture)
        stream->capture->push_back(task);
    else
        stream->tasks.push_back(task);
}

int push_run(Stream* stream, std::function<void()> run) {
    Task task;
    task.run = run;
    push(stream, task);
    return 0;
}

}  // namespace

extern "C" {

// ---- the tests' side ----

// The call of that name after the next `after` ones fails.
void stand_in_fail(const char* name, int after) {
    std::lock_guard<std::recursive_mutex> guard(lock);
    fail_after[name] = after;
}
// The next table on its way to the device, by a copy or among a kernel's arguments, has `value` at byte `at`.
void stand_in_corrupt(u64 at, u32 value) {
    std::lock_guard<std::recursive_mutex> guard(lock);
    corrupt = true;
    corrupt_at = at;
    corrupt_value = value;
}
void stand_in_seed(u64 seed) {
    std::lock_guard<std::recursive_mutex> guard(lock);
    dice = seed;
}
u64 stand_in_guard_faults() { return guard_faults; }
u64 stand_in_live() { return live; }

// ---- the driver ----

int cuInit(u32) {
    ENTER("cuInit");
    return 0;
}
int cuDeviceGet(int* device, int ordinal) {
    ENTER("cuDeviceGet");
    *device = ordinal;
    return ordinal == 0 ? 0 : 101;
}
int cuDeviceGetName(char* name, int size, int) {
    ENTER("cuDeviceGetName");
    snprintf(name, size, "stand-in");
    return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
    ENTER("cuDeviceGetAttribute");
    *value = attribute == 75 ? 9 : 0;
    return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
    ENTER("cuDevicePrimaryCtxRetain");
    *context = &lock;
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuCtxSetCurrent(void* context) { return context == &lock ? 0 : INVALID; }
int hipSetDevice(int device) { return device == 0 ? 0 : INVALID; }
int cuGetErrorName(int status, const char** name) {
    *name = status == BROKEN ? "STAND_IN_BROKEN" : nullptr;
    return *name ? 0 : INVALID;
}
const char* hipGetErrorName(int status) { return status == BROKEN ? "STAND_IN_BROKEN" : "other"; }
int cuMemGetInfo_v2(size_t* free, size_t* total) {
    *free = *total = 1ull << 30;
    return 0;
}
int cuMemAlloc_v2(u64* address, size_t size) {
    ENTER("cuMemAlloc_v2");
    if (size == 0) return INVALID;
    unsigned char* start = (unsigned char*)aligned_alloc(256, (size + 2 * GUARD + 255) / 256 * 256);
    memset(start, 0xa5, GUARD);
    memset(start + GUARD, 0xcd, size);
    memset(start + GUARD + size, 0xa5, GUARD);
    *address = (u64)(start + GUARD);
    sizes[*address] = size;
    live++;
    return 0;
}
int cuMemFree_v2(u64 address) {
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (!sizes.count(address)) return INVALID;
    drain_all();
    unsigned char* start = (unsigned char*)address - GUARD;
    size_t size = sizes[address];
    for (size_t i = 0; i < GUARD; i++)
        guard_faults += (start[i] != 0xa5) + (start[GUARD + size + i] != 0xa5);
    sizes.erase(address);
    free(start);
    live--;
    return 0;
}
int cuMemHostAlloc(void** start, size_t size, u32) {
    ENTER("cuMemHostAlloc");
    *start = malloc(size);
    live++;
    return 0;
}
int cuMemFreeHost(void* start) {
    std::lock_guard<std::recursive_mutex> guard(lock);
    free(start);
    live--;
    return 0;
}
int cuStreamCreate(void** stream, u32) {
    ENTER("cuStreamCreate");
    streams.push_back(new Stream);
    *stream = streams.back();
    live++;
    return 0;
}
int cuStreamDestroy_v2(void* handle) {
    std::lock_guard<std::recursive_mutex> guard(lock);
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] == handle) {
            drain(streams[i]);
            delete streams[i];
            streams.erase(streams.begin() + i);
            live--;
            return 0;
        }
    return INVALID;
}
int cuStreamSynchronize(void* stream) {
    ENTER("cuStreamSynchronize");
    drain((Stream*)stream);
    return broken ? BROKEN : 0;
}
int cuStreamWaitEvent(void* stream, void* event, u32) {
    ENTER("cuStreamWaitEvent");
    Task task;
    task.wait = (Event*)event;
    task.version = task.wait->recorded;
    push((Stream*)stream, task);
    return 0;
}
int cuEventCreate(void** event, u32) {
    ENTER("cuEventCreate");
    *event = new Event;
    live++;
    return 0;
}
int cuEventDestroy_v2(void* event) {
    std::lock_guard<std::recursive_mutex> guard(lock);
    drain_all();
    delete (Event*)event;
    live--;
    return 0;
}
int cuEventRecord(void* event, void* stream) {
    ENTER("cuEventRecord");
    Task task;
    task.record = (Event*)event;
    task.version = ++task.record->recorded;
    push((Stream*)stream, task);
    return 0;
}
int cuEventQuery(void* handle) {
    ENTER("cuEventQuery");
    Event* event = (Event*)handle;
    if (event->reached < event->recorded) step_any();
    if (broken) return BROKEN;
    return event->reached < event->recorded ? NOT_READY : 0;
}
int cuEventElapsedTime(float* milliseconds, void*, void*) {
    ENTER("cuEventElapsedTime");
    *milliseconds = 1;
    return 0;
}
int cuMemcpyHtoDAsync_v2(u64 to, const void* from, size_t size, void* stream) {
    ENTER("cuMemcpyHtoDAsync_v2");
    bool spoil = corrupt;
    u64 at = corrupt_at;
    u32 value = corrupt_value;
    corrupt = false;
    return push_run((Stream*)stream, [=] {
        memcpy((void*)to, from, size);
        if (spoil) memcpy((char*)to + at, &value, 4);
    });
}
int cuMemcpyDtoHAsync_v2(void* to, u64 from, size_t size, void* stream) {
    ENTER("cuMemcpyDtoHAsync_v2");
    return push_run((Stream*)stream, [=] { memcpy(to, (void*)from, size); });
}
int cuMemcpyDtoDAsync_v2(u64 to, u64 from, size_t size, void* stream) {
    ENTER("cuMemcpyDtoDAsync_v2");
    return push_run((Stream*)stream, [=] { memcpy((void*)to, (void*)from, size); });
}
int cuModuleLoadData(void** module, const void*) {
    ENTER("cuModuleLoadData");
    *module = FUNCTIONS;
    live++;
    return 0;
}
int cuModuleUnload(void*) {
    std::lock_guard<std::recursive_mutex> guard(lock);
    drain_all();
    live--;
    return 0;
}
int cuModuleGetFunction(void** function, void*, const char* name) {
    ENTER("cuModuleGetFunction");
    for (Function& candidate : FUNCTIONS)
        if (!strcmp(candidate.name, name)) {
            *function = &candidate;
            return 0;
        }
    return 500;
}
int cuLaunchKernel(void* handle, u32 gx, u32 gy, u32 gz, u32 bx, u32 by, u32 bz, u32 shared,
                   void* stream, void** arguments, void** extra) {
    ENTER("cuLaunchKernel");
    Function* function = (Function*)handle;
    if (!gx || !gy || gy > 65535 || !gz || gz > 65535 || bx > THREADS || by != 1 || bz != 1 || shared || extra)
        return INVALID;
    std::vector<Value> values;
    for (size_t i = 0; i < function->sizes.size(); i++) {
        size_t size = function->sizes[i];
        Value value((size + 7) / 8);
        memcpy(value.data(), arguments[i], size);
        if (corrupt && size == sizeof(Words)) {
            memcpy((char*)value.data() + corrupt_at, &corrupt_value, 4);
            corrupt = false;
        }
        values.push_back(value);
    }
    return push_run((Stream*)stream, [=] {
        std::vector<Value> own = values;
        std::vector<void*> pointers;
        for (Value& value : own) pointers.push_back(value.data());
        // Blocks in no useful order: nothing may rest on one.
        u64 blocks = (u64)gx * gy * gz, start = roll() % blocks;
        for (u64 n = 0; n < blocks; n++) {
            u64 block = (start + n) % blocks;
            host_block_x = block % gx;
            host_block_y = block / gx % gy;
            host_block_z = block / gx / gy;
            for (host_thread = 0; host_thread < bx; host_thread++) function->run(pointers.data());
        }
    });
}
int cuStreamBeginCapture_v2(void* stream, u32) {
    ENTER("cuStreamBeginCapture_v2");
    ((Stream*)stream)->capture = new std::vector<Task>;
    return 0;
}
int cuStreamEndCapture(void* handle, void** graph) {
    ENTER("cuStreamEndCapture");
    Stream* stream = (Stream*)handle;
    *graph = stream->capture;
    stream->capture = nullptr;
    live++;
    return 0;
}
int cuGraphInstantiateWithFlags(void** executable, void* graph, u64) {
    ENTER("cuGraphInstantiateWithFlags");
    *executable = new std::vector<Task>(*(std::vector<Task>*)graph);
    live++;
    return 0;
}
int cuGraphLaunch(void* executable, void* stream) {
    ENTER("cuGraphLaunch");
    for (Task& task : *(std::vector<Task>*)executable) push((Stream*)stream, task);
    return 0;
}
int cuGraphDestroy(void* graph) {
    std::lock_guard<std::recursive_mutex> guard(lock);
    delete (std::vector<Task>*)graph;
    live--;
    return 0;
}
int cuGraphExecDestroy(void* executable) { return cuGraphDestroy(executable); }

// ---- the run-time compiler ----

int nvrtcVersion(int* major, int* minor) {
    *major = 0;
    *minor = 1;
    return 0;
}
int nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*,
                       const char* const*) {
    ENTER("nvrtcCreateProgram");
    *program = new int(0);
    live++;
    return 0;
}
int nvrtcCompileProgram(void*, int, const char* const*) {
    ENTER("nvrtcCompileProgram");
    return 0;
}
int nvrtcGetProgramLogSize(void*, size_t* size) {
    *size = 11;
    return 0;
}
int nvrtcGetProgramLog(void*, char* log) {
    memcpy(log, "no such day", 11);
    log[10] = 0;
    return 0;
}
int nvrtcGetCUBINSize(void*, size_t* size) {
    *size = 8;
    return 0;
}
int nvrtcGetCUBIN(void*, char* code) {
    memcpy(code, "stand-in", 8);
    return 0;
}
int nvrtcDestroyProgram(void** program) {
    std::lock_guard<std::recursive_mutex> guard(lock);
    delete (int*)*program;
    live--;
    return 0;
}

// ---- the other vendor's names ----

#define ALIAS(hip, cuda) __typeof__(cuda) hip __attribute__((alias(#cuda)));
ALIAS(hipInit, cuInit)
ALIAS(hipDeviceGet, cuDeviceGet)
ALIAS(hipDeviceGetName, cuDeviceGetName)
ALIAS(hipMemGetInfo, cuMemGetInfo_v2)
ALIAS(hipMalloc, cuMemAlloc_v2)
ALIAS(hipFree, cuMemFree_v2)
ALIAS(hipHostMalloc, cuMemHostAlloc)
ALIAS(hipHostFree, cuMemFreeHost)
ALIAS(hipStreamCreateWithFlags, cuStreamCreate)
ALIAS(hipStreamDestroy, cuStreamDestroy_v2)
ALIAS(hipStreamSynchronize, cuStreamSynchronize)
ALIAS(hipStreamWaitEvent, cuStreamWaitEvent)
ALIAS(hipEventCreateWithFlags, cuEventCreate)
ALIAS(hipEventDestroy, cuEventDestroy_v2)
ALIAS(hipEventRecord, cuEventRecord)
ALIAS(hipEventQuery, cuEventQuery)
ALIAS(hipEventElapsedTime, cuEventElapsedTime)
ALIAS(hipMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2)
ALIAS(hipMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2)
ALIAS(hipMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2)
ALIAS(hipModuleLoadData, cuModuleLoadData)
ALIAS(hipModuleUnload, cuModuleUnload)
ALIAS(hipModuleGetFunction, cuModuleGetFunction)
ALIAS(hipModuleLaunchKernel, cuLaunchKernel)
ALIAS(hipStreamBeginCapture, cuStreamBeginCapture_v2)
ALIAS(hipStreamEndCapture, cuStreamEndCapture)
ALIAS(hipGraphInstantiateWithFlags, cuGraphInstantiateWithFlags)
ALIAS(hipGraphLaunch, cuGraphLaunch)
ALIAS(hipGraphDestroy, cuGraphDestroy)
ALIAS(hipGraphExecDestroy, cuGraphExecDestroy)
ALIAS(hiprtcVersion, nvrtcVersion)
ALIAS(hiprtcCreateProgram, nvrtcCreateProgram)
ALIAS(hiprtcCompileProgram, nvrtcCompileProgram)
ALIAS(hiprtcGetProgramLogSize, nvrtcGetProgramLogSize)
ALIAS(hiprtcGetProgramLog, nvrtcGetProgramLog)
ALIAS(hiprtcGetCodeSize, nvrtcGetCUBINSize)
ALIAS(hiprtcGetCode, nvrtcGetCUBIN)
ALIAS(hiprtcDestroyProgram, nvrtcDestroyProgram)

}  // extern "C"
