//! The shape of a kernel: how much each block moves, and how many blocks share a processor.

/// Threads of a block, vectors that each thread keeps in flight, and blocks that one multiprocessor
/// is to hold. Fixed when the kernels are compiled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelShape {
    threads: u32,
    vectors: u32,
    resident: u32,
}

/// Bytes of the widest access.
pub(crate) const VECTOR_BYTES: u64 = 16;

impl KernelShape {
    /// The fastest of those that were measured on an H200; see `docs/gpu-copy.md`.
    pub const MEASURED: Self = Self { threads: 128, vectors: 2, resident: 16 };

    /// A shape; `None` where `threads` is not a multiple of 64 up to 1024, `vectors` is not in
    /// `1..=16`, or `resident` is not in `1..=32`. 64 is the width of AMD's wavefronts.
    pub const fn new(threads: u32, vectors: u32, resident: u32) -> Option<Self> {
        let threads_fit = threads > 0 && threads <= 1024 && threads.is_multiple_of(64);
        let vectors_fit = vectors > 0 && vectors <= 16;
        let resident_fits = resident > 0 && resident <= 32;
        if threads_fit && vectors_fit && resident_fits {
            Some(Self { threads, vectors, resident })
        } else {
            None
        }
    }

    /// Threads of a block.
    pub const fn threads(self) -> u32 {
        self.threads
    }

    /// Vectors of 16 bytes that a thread moves.
    pub const fn vectors(self) -> u32 {
        self.vectors
    }

    /// Blocks that the compiler leaves registers for on one multiprocessor.
    pub const fn resident(self) -> u32 {
        self.resident
    }

    /// Vectors of a whole tile.
    pub const fn tile_vectors(self) -> u32 {
        self.threads * self.vectors
    }
}
