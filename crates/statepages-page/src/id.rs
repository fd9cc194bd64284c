//! Identifiers. Each is a newtype without arithmetic; `index()` is for the slice access alone.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $raw:ty, $letter:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name($raw);

        impl $name {
            /// Wraps a raw number.
            pub const fn new(raw: $raw) -> Self {
                Self(raw)
            }

            /// The raw number, for the wire and for kernels.
            pub const fn raw(self) -> $raw {
                self.0
            }

            /// The number as an index into a slice.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($letter, "{}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self, f)
            }
        }
    };
}

id!(
    /// One page of the pool: a composite of one region in each of several buffers. All regions of
    /// a page change owner in one transition.
    PageId, u32, "p"
);
id!(
    /// One active slot: the contiguous, fixed-address state of one resident request.
    SlotId, u32, "s"
);
id!(
    /// One checkpoint record. Never reused, so it is its own generation.
    CheckpointId, u64, "c"
);
id!(
    /// One request, as its submitter named it. Never reused while the engine lives.
    RequestId, u64, "r"
);
id!(
    /// One batch that really runs: its copies and its forward. Ids ascend in the order of building.
    BatchId, u64, "b"
);
