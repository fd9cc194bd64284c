// Copies between slots and pages, and the pattern and digest by which they are verified.
//
// One source for NVRTC, hiprtc, bare clang for AMD, and a host compiler. No header is included: none
// of the device compilers ships one. No kernel has a barrier or shares memory between threads, so
// each may be run as host code, one thread after the other.
//
// Addresses are integers. They become pointers in one place, with an address space, so that no
// device compiler falls back to generic loads.
//
// Operations come in a table in device memory, or, where they are few, with a kernel's arguments.
//
// The host has checked every index; STATEPAGES_CHECKED builds check them once more and report the
// first that is wrong.

typedef unsigned int u32;
typedef unsigned long long u64;

// Threads of a block, and 16-byte vectors that each of them keeps in flight. A tile holds
// THREADS * VECTORS vectors at most. The host compiles with the shape by which it cut the tiles.
#ifndef THREADS
#error "THREADS is set by the host"
#endif
#ifndef VECTORS
#error "VECTORS is set by the host"
#endif
// Blocks that one multiprocessor is to hold; bounds the registers of a thread.
#ifndef RESIDENT
#error "RESIDENT is set by the host"
#endif

#if defined(__CUDACC__)
#define KERNEL(name) extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) name
#define INSIDE static __device__ __forceinline__
#define INSIDE_MEMBER __device__ __forceinline__
#define CONSTANT_ARGUMENT const __grid_constant__
#define THREAD (threadIdx.x)
#define BLOCK_X (blockIdx.x)
#define BLOCK_Y (blockIdx.y)
#define BLOCK_Z (blockIdx.z)
#elif defined(__AMDGCN__)
#define KERNEL(name)                                                                               \
    extern "C" __attribute__((global, amdgpu_flat_work_group_size(1, THREADS))) void name
#define INSIDE static __attribute__((device, always_inline)) inline
#define INSIDE_MEMBER __attribute__((device, always_inline)) inline
#define THREAD (__builtin_amdgcn_workitem_id_x())
#define BLOCK_X (__builtin_amdgcn_workgroup_id_x())
#define BLOCK_Y (__builtin_amdgcn_workgroup_id_y())
#define BLOCK_Z (__builtin_amdgcn_workgroup_id_z())
#elif defined(STATEPAGES_HOST)
#define KERNEL(name) extern "C" void name
#define INSIDE static inline
#define INSIDE_MEMBER inline
// Set by the loop that plays the device.
extern "C" {
extern thread_local u32 host_thread, host_block_x, host_block_y, host_block_z;
}
#define THREAD (host_thread)
#define BLOCK_X (host_block_x)
#define BLOCK_Y (host_block_y)
#define BLOCK_Z (host_block_z)
#elif defined(__HIP__)
// The host half of a single-source compilation, which nobody runs.
#define KERNEL(name) extern "C" __attribute__((global)) void name
#define INSIDE static __attribute__((device, always_inline)) inline
#define INSIDE_MEMBER __attribute__((device, always_inline)) inline
#define THREAD 0u
#define BLOCK_X 0u
#define BLOCK_Y 0u
#define BLOCK_Z 0u
#else
#error "unknown compiler"
#endif
// What marks a large argument that is only read.
#ifndef CONSTANT_ARGUMENT
#define CONSTANT_ARGUMENT const
#endif

// ---- memory ----

struct Vec {
    u32 x, y, z, w;
};

#if defined(__CUDACC__)
INSIDE Vec load(u64 address) {
    Vec v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address));
    return v;
}
INSIDE void store(u64 address, Vec v) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}
INSIDE u32 load_u32(u64 address) {
    u32 value;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(address));
    return value;
}
INSIDE void add_u64(u64 address, u64 value) {
    asm volatile("red.global.add.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}
#elif defined(__AMDGCN__)
typedef u32 Lanes __attribute__((ext_vector_type(4)));
#define GLOBAL(type) __attribute__((address_space(1))) type
INSIDE Vec load(u64 address) {
    Lanes v = *(const GLOBAL(Lanes)*)address;
    return Vec{v.x, v.y, v.z, v.w};
}
INSIDE void store(u64 address, Vec v) {
    Lanes lanes = {v.x, v.y, v.z, v.w};
    *(GLOBAL(Lanes)*)address = lanes;
}
INSIDE u32 load_u32(u64 address) { return *(const GLOBAL(u32)*)address; }
INSIDE void add_u64(u64 address, u64 value) {
    // Other devices and the host look only after the kernel has ended.
    __hip_atomic_fetch_add((GLOBAL(u64)*)address, value, __ATOMIC_RELAXED,
                           __HIP_MEMORY_SCOPE_AGENT);
}
#else
INSIDE Vec load(u64 address) { return *(const Vec*)address; }
INSIDE void store(u64 address, Vec v) { *(Vec*)address = v; }
INSIDE u32 load_u32(u64 address) { return *(const u32*)address; }
INSIDE void add_u64(u64 address, u64 value) { *(u64*)address += value; }
#endif

INSIDE u64 pair(u32 low, u32 high) { return (u64)high << 32 | low; }

// ---- the image copy ----
//
// Tables and operations are arrays of these records, little-endian; `tables.rs` writes them.
//
//   tile, 208 B:   u32 ends[4]; piece pieces[4]
//   piece, 48 B:   u64 page, page_stride, slot, slot_stride; u32 unit, ring, first, unused
//   ring, 32 B:    u32 row_vectors, rows, ring, stride; u64 outer, inner
//   op, 16 B:      u32 slot, boundary, first_unit, kind
//
// Vector i of a tile belongs to the first piece with i < ends[piece]; pieces a tile does not have
// end where its last one does. Addresses of a piece are those of vector 0 of the tile, so they may
// lie before the buffer; with the vector's offset added they do not.

#define TILE_BYTES 208u
#define PIECE_BYTES 48u
#define RING_BYTES 32u
#define OP_BYTES 16u
#define NO_RING 0xffffffffu
#define OP_IDLE 0u
#define OP_STORE 1u
#define OP_RESTORE 2u

// Words of a table that goes with a kernel's arguments: what all devices take, which is 4 KiB with
// everything else. `encode.rs` has the same number.
#define ARGUMENT_WORDS 816u

struct Words {
    u32 word[ARGUMENT_WORDS];
};

struct Op {
    u32 slot, boundary, first_unit, kind;
};

// Where a batch's operations and unit ids are: in device memory, by address...
struct Uploaded {
    u64 ops, units;
    INSIDE_MEMBER Op op(u32 row) const {
        Vec v = load(ops + (u64)row * OP_BYTES);
        return Op{v.x, v.y, v.z, v.w};
    }
    INSIDE_MEMBER u32 unit(u32 at) const { return load_u32(units + 4ull * at); }
};

// ... or among the arguments, by word.
struct Argued {
    const Words& words;
    u32 ops, units;
    INSIDE_MEMBER Op op(u32 row) const {
        u32 at = ops + row * (OP_BYTES / 4);
        return Op{words.word[at], words.word[at + 1], words.word[at + 2], words.word[at + 3]};
    }
    INSIDE_MEMBER u32 unit(u32 at) const { return words.word[units + at]; }
};

struct Piece {
    // Of vector 0 of the tile, in this operation's unit and slot.
    u64 page, slot;
    u32 ring, first;
};

#ifdef STATEPAGES_CHECKED
// Limits, 16 B: u32 slots, pages, units of an image, unused. A wrong index is counted at `fault`.
INSIDE int within(u64 limits, u64 fault, u32 slot, u32 page, u32 unit) {
    Vec l = load(limits);
    if (slot < l.x && page < l.y && unit < l.z) return 1;
    add_u64(fault, 1);
    return 0;
}
#endif

template <class Source>
INSIDE Piece read_piece(u64 at, Op op, Source source) {
    Vec a = load(at), b = load(at + 16), c = load(at + 32);
    Piece piece;
    u32 page = source.unit(op.first_unit + c.x);
    piece.page = pair(a.x, a.y) + page * pair(a.z, a.w);
    piece.slot = pair(b.x, b.y) + op.slot * pair(b.z, b.w);
    piece.ring = c.y;
    piece.first = c.z;
    return piece;
}

// Where vector i of the tile lies in the slot.
INSIDE u64 in_slot(Piece piece, u32 i, Op op, u64 rings) {
    if (piece.ring == NO_RING) return piece.slot + 16ull * i;
    u64 at = rings + (u64)piece.ring * RING_BYTES;
    Vec a = load(at), b = load(at + 16);
    u32 row_vectors = a.x, rows = a.y, ring = a.z, stride = a.w;
    u32 vector = piece.first + i;
    u32 row = vector / row_vectors, column = vector - row * row_vectors;
    // The run ends at the boundary, and is no longer than the ring.
    u32 q = (op.boundary - rows) % ring + row;
    if (q >= ring) q -= ring;
    u32 group = q / stride;
    return piece.slot + group * pair(b.x, b.y) + (u64)(q - group * stride) * pair(b.z, b.w) +
           16ull * column;
}

template <class Source>
INSIDE void copy_tile(u64 tiles, u64 rings, Source batch, u64 limits, u64 fault) {
    u64 tile = tiles + (u64)BLOCK_X * TILE_BYTES;
    Op op = batch.op(BLOCK_Y);
    Vec ends = load(tile);
    if (op.kind == OP_IDLE) return;
#ifdef STATEPAGES_CHECKED
    for (u32 k = 0; k < 4; k++) {
        u32 unit = load_u32(tile + 16 + k * PIECE_BYTES + 32);
        u32 page = batch.unit(op.first_unit + unit);
        if (!within(limits, fault, op.slot, page, unit)) return;
    }
#endif
    // All addresses first, then all loads, then all stores: a wait for a table entry must not wait
    // for data that is on its way.
    Piece head = read_piece(tile + 16, op, batch);
    u64 source[VECTORS], target[VECTORS];
    Vec held[VECTORS];
#pragma unroll
    for (u32 v = 0; v < VECTORS; v++) {
        u32 i = v * THREADS + THREAD;
        Piece piece = head;
        if (i >= ends.x && i < ends.w) {
            u32 k = 1u + (i >= ends.y) + (i >= ends.z);
            piece = read_piece(tile + 16 + k * PIECE_BYTES, op, batch);
        }
        u64 slot = in_slot(piece, i, op, rings), page = piece.page + 16ull * i;
        source[v] = op.kind == OP_STORE ? slot : page;
        target[v] = op.kind == OP_STORE ? page : slot;
    }
#pragma unroll
    for (u32 v = 0; v < VECTORS; v++) {
        if (v * THREADS + THREAD < ends.w) held[v] = load(source[v]);
    }
#pragma unroll
    for (u32 v = 0; v < VECTORS; v++) {
        if (v * THREADS + THREAD < ends.w) store(target[v], held[v]);
    }
}

// Grid: one block a tile, one row of blocks an operation.
KERNEL(statepages_copy)(u64 tiles, u64 rings, u64 ops, u64 units, u64 limits, u64 fault) {
    copy_tile(tiles, rings, Uploaded{ops, units}, limits, fault);
}

KERNEL(statepages_copy_argued)
(u64 tiles, u64 rings, u64 limits, u64 fault, u32 ops, u32 units, CONSTANT_ARGUMENT Words words) {
    copy_tile(tiles, rings, Argued{words, ops, units}, limits, fault);
}

// ---- the image copy without tables ----
//
// For images without rings on pages whose regions are of few kinds, the layout itself is an argument,
// which `direct.rs` writes. A wait for a table entry would hold a block's threads idle; this kernel
// waits for constants, and for an operation and a unit id that many blocks share.
//
// A unit's stream is its regions, one behind the other; an image's stream is its units'. A class is
// consecutive regions of one length and stride. Each of its regions is cut into `tiles` tiles of
// `step` vectors, the last shorter.

#define DIRECT_CLASSES 4u
#define DIRECT_RUNS 4u
#define DIRECT_REGIONS 64u

struct DirectClass {
    // Of its first region: tile, index, and start in the unit's stream in vectors.
    u32 tile, region, start;
    // Of each region: tiles; 2^31 over their number, rounded up; vectors of a tile, of the region, and
    // from one page to the next.
    u32 tiles, reciprocal, step, len, stride;
};

struct DirectRun {
    // Of vector 0 of the image in slot 0, if the run began there; it may lie before the buffer.
    u64 base;
    // Vectors from one slot to the next, and of the image before the run.
    u32 stride, start;
};

struct Direct {
    u32 units, unit_vectors, image_vectors, unused;
    // Classes and runs that a layout does not have begin at 2^32 - 1.
    DirectClass classes[DIRECT_CLASSES];
    DirectRun runs[DIRECT_RUNS];
    // Page 0 of each region.
    u64 regions[DIRECT_REGIONS];
};

// Where a vector of the image lies in the slot.
INSIDE u64 in_runs(const Direct& layout, u32 slot, u32 vector) {
    u64 base = layout.runs[0].base;
    u32 stride = layout.runs[0].stride;
#pragma unroll
    for (u32 r = 1; r < DIRECT_RUNS; r++) {
        if (vector >= layout.runs[r].start) {
            base = layout.runs[r].base;
            stride = layout.runs[r].stride;
        }
    }
    return base + 16ull * slot * stride + 16ull * vector;
}

template <class Source>
INSIDE void copy_direct(const Direct& layout, Source batch, u64 limits, u64 fault) {
    u32 tile = BLOCK_X, unit = BLOCK_Y;
    // Neither load waits for the other.
    Op op = batch.op(BLOCK_Z);
    u32 page = batch.unit(BLOCK_Z * layout.units + unit);
    DirectClass of = layout.classes[0];
#pragma unroll
    for (u32 k = 1; k < DIRECT_CLASSES; k++) {
        if (tile >= layout.classes[k].tile) of = layout.classes[k];
    }
    u32 nth = (u64)(tile - of.tile) * of.reciprocal >> 31;
    u64 region = layout.regions[of.region + nth];
    // In the region, and in the image.
    u32 first = (tile - of.tile - nth * of.tiles) * of.step;
    u32 at = unit * layout.unit_vectors + of.start + nth * of.len + first;
    u32 count = of.len - first;
    if (count > of.step) count = of.step;
    // The last unit of an image need not be full.
    if (op.kind == OP_IDLE || at >= layout.image_vectors) return;
    if (count > layout.image_vectors - at) count = layout.image_vectors - at;
#ifdef STATEPAGES_CHECKED
    if (!within(limits, fault, op.slot, page, unit)) return;
#endif
    u64 in_page = region + 16ull * page * of.stride + 16ull * first;
    u64 in_slot = in_runs(layout, op.slot, at);
    // Blocks that move bytes of two runs are few.
    int divided = 0;
#pragma unroll
    for (u32 r = 1; r < DIRECT_RUNS; r++) {
        divided |= at < layout.runs[r].start && at + count > layout.runs[r].start;
    }
    u64 source[VECTORS], target[VECTORS];
    Vec held[VECTORS];
#pragma unroll
    for (u32 v = 0; v < VECTORS; v++) {
        u32 i = v * THREADS + THREAD;
        u64 slot = divided ? in_runs(layout, op.slot, at + i) : in_slot + 16ull * i;
        u64 paged = in_page + 16ull * i;
        source[v] = op.kind == OP_STORE ? slot : paged;
        target[v] = op.kind == OP_STORE ? paged : slot;
    }
#pragma unroll
    for (u32 v = 0; v < VECTORS; v++) {
        if (v * THREADS + THREAD < count) held[v] = load(source[v]);
    }
#pragma unroll
    for (u32 v = 0; v < VECTORS; v++) {
        if (v * THREADS + THREAD < count) store(target[v], held[v]);
    }
}

// Grid: one block a tile of the unit, one row of blocks a unit, one layer an operation. `units`
// begins with those of the first operation.
KERNEL(statepages_direct)
(u64 ops, u64 units, u64 limits, u64 fault, CONSTANT_ARGUMENT Direct layout) {
    copy_direct(layout, Uploaded{ops, units}, limits, fault);
}

KERNEL(statepages_direct_argued)
(u64 limits, u64 fault, u32 ops, u32 units, CONSTANT_ARGUMENT Direct layout,
 CONSTANT_ARGUMENT Words words) {
    copy_direct(layout, Argued{words, ops, units}, limits, fault);
}

// ---- relocation ----
//
//   tile, 32 B:    u64 base, stride; u32 vectors, unused[3]
//   op, 16 B:      u32 from, to, unused, kind (any but OP_IDLE)
//
template <class Source>
INSIDE void relocate_tile(u64 tiles, Source batch, u64 limits, u64 fault) {
    u64 tile = tiles + (u64)BLOCK_X * 32u;
    Vec a = load(tile), b = load(tile + 16);
    // Of a relocation the fields are those above.
    Op op = batch.op(BLOCK_Y);
    u32 source = op.slot, target = op.boundary;
    if (op.kind == OP_IDLE) return;
#ifdef STATEPAGES_CHECKED
    if (!within(limits, fault, source, 0, 0) || !within(limits, fault, target, 0, 0)) return;
#endif
    u64 base = pair(a.x, a.y), stride = pair(a.z, a.w);
    u64 from = base + source * stride, to = base + target * stride;
    Vec held[VECTORS];
#pragma unroll
    for (u32 v = 0; v < VECTORS; v++) {
        u32 i = v * THREADS + THREAD;
        if (i < b.x) held[v] = load(from + 16ull * i);
    }
#pragma unroll
    for (u32 v = 0; v < VECTORS; v++) {
        u32 i = v * THREADS + THREAD;
        if (i < b.x) store(to + 16ull * i, held[v]);
    }
}

// Grid: one block a tile, one row of blocks a relocation.
KERNEL(statepages_relocate)(u64 tiles, u64 ops, u64 limits, u64 fault) {
    relocate_tile(tiles, Uploaded{ops, 0}, limits, fault);
}

KERNEL(statepages_relocate_argued)
(u64 tiles, u64 limits, u64 fault, u32 ops, CONSTANT_ARGUMENT Words words) {
    relocate_tile(tiles, Argued{words, ops, 0}, limits, fault);
}

// ---- verification ----
//
// `pattern.rs` has the same two functions.

INSIDE u64 mix(u64 x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

#define STEP 0x9e3779b97f4a7c15ull

// Word `word` of item `item` of the buffer that `key` names.
INSIDE u64 pattern(u64 key, u64 item, u64 word) {
    return mix(mix(key + (item + 1) * STEP) + (word + 1) * STEP);
}

// Fills items `[first, first + gridDim.y)`, or those that `list` names from there on, with the
// pattern of `key`. `words` is even.
KERNEL(statepages_fill)(u64 base, u64 stride, u64 words, u64 list, u32 first, u64 key, u32 grid_x) {
    u64 item = first + BLOCK_Y;
    if (list) item = load_u32(list + 4 * item);
    u64 row = base + item * stride, step = (u64)grid_x * THREADS * 2;
    for (u64 word = ((u64)BLOCK_X * THREADS + THREAD) * 2; word < words; word += step) {
        u64 low = pattern(key, item, word), high = pattern(key, item, word + 1);
        Vec v = {(u32)low, (u32)(low >> 32), (u32)high, (u32)(high >> 32)};
        store(row + 8 * word, v);
    }
}

// Adds the digest of each of those items to the u64 at `sums + 8 * (place in the list or item)`. A
// digest is a sum over words, so the order of the threads does not matter.
KERNEL(statepages_digest)
(u64 base, u64 stride, u64 words, u64 list, u32 first, u64 sums, u32 grid_x) {
    u64 place = first + BLOCK_Y, item = place;
    if (list) item = load_u32(list + 4 * place);
    u64 row = base + item * stride, step = (u64)grid_x * THREADS * 2, sum = 0;
    for (u64 word = ((u64)BLOCK_X * THREADS + THREAD) * 2; word < words; word += step) {
        Vec v = load(row + 8 * word);
        sum += mix(pair(v.x, v.y) + (word + 1) * STEP);
        sum += mix(pair(v.z, v.w) + (word + 2) * STEP);
    }
    if (sum) add_u64(sums + 8 * place, sum);
}

// Keeps the device busy, so that what is timed behind it has been enqueued before it starts.
// One thread; the chain of `rounds` dependent operations cannot be shortened.
KERNEL(statepages_hold)(u64 rounds, u64 out) {
    u64 x = rounds;
    for (u64 i = 0; i < rounds; i++) x = mix(x + STEP);
    if (x == 1) add_u64(out, 1);
}
