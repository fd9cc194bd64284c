//! Counts and sizes, and every conversion between them with its rounding direction.

use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};

macro_rules! count {
    ($(#[$doc:meta])* $name:ident, $raw:ty, $unit:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name($raw);

        impl $name {
            /// None of them.
            pub const ZERO: Self = Self(0);

            /// Wraps a raw number.
            pub const fn new(raw: $raw) -> Self {
                Self(raw)
            }

            /// The raw number.
            pub const fn get(self) -> $raw {
                self.0
            }

            /// The number as `usize`, for slices and lengths.
            pub const fn index(self) -> usize {
                self.0 as usize
            }

            /// The difference, or zero where `other` is larger.
            #[must_use]
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0.checked_add(other.0).expect(concat!($unit, " overflow")))
            }
        }

        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0.checked_sub(other.0).expect(concat!($unit, " underflow")))
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }

        impl SubAssign for $name {
            fn sub_assign(&mut self, other: Self) {
                *self = *self - other;
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{} ", $unit), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

count!(
    /// A number of bytes.
    Bytes, u64, "bytes"
);
count!(
    /// A number of pages.
    Pages, u32, "pages"
);
count!(
    /// A number of tokens, or the position of a token in its request (position `n` is the token
    /// after the first `n`).
    Tokens, u32, "tokens"
);

impl Bytes {
    /// The fewest pages of `page` bytes that hold this many bytes.
    ///
    /// # Panics
    /// Where `page` is zero, or the answer exceeds `u32`.
    pub fn pages_ceil(self, page: Bytes) -> Pages {
        assert!(page.0 > 0, "a page has at least one byte");
        Pages(u32::try_from(self.0.div_ceil(page.0)).expect("a page count fits u32"))
    }

    /// The pages of `page` bytes that fit wholly into this many bytes.
    pub fn pages_floor(self, page: Bytes) -> Pages {
        assert!(page.0 > 0, "a page has at least one byte");
        Pages(u32::try_from(self.0 / page.0).expect("a page count fits u32"))
    }
}

/// Tokens per block: the granularity of pages and of content keys. Never zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockSize(u32);

impl BlockSize {
    /// A block of `tokens` tokens; `None` for zero.
    pub const fn new(tokens: u32) -> Option<Self> {
        if tokens == 0 { None } else { Some(Self(tokens)) }
    }

    /// Tokens per block.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Blocks that `tokens` fill completely.
    pub const fn blocks_floor(self, tokens: Tokens) -> Pages {
        Pages(tokens.0 / self.0)
    }

    /// Blocks that `tokens` touch.
    pub const fn blocks_ceil(self, tokens: Tokens) -> Pages {
        Pages(tokens.0.div_ceil(self.0))
    }

    /// The largest boundary not after `tokens`.
    pub const fn boundary_floor(self, tokens: Tokens) -> Boundary {
        Boundary(tokens.0 - tokens.0 % self.0)
    }

    /// The boundary behind `blocks` whole blocks.
    pub fn boundary_after(self, blocks: Pages) -> Boundary {
        Boundary(blocks.0.checked_mul(self.0).expect("a position fits u32"))
    }

    /// `tokens` as a boundary, where it lies on the grid.
    pub const fn boundary_at(self, tokens: Tokens) -> Option<Boundary> {
        if tokens.0.is_multiple_of(self.0) { Some(Boundary(tokens.0)) } else { None }
    }
}

/// A token position on the hash-block grid: the only positions at which state is kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Boundary(u32);

impl Boundary {
    /// The start of every request.
    pub const ZERO: Self = Self(0);

    /// Tokens before the boundary; also the position of the first token after it.
    pub const fn tokens(self) -> Tokens {
        Tokens(self.0)
    }

    /// Tokens before the boundary, raw, for the wire and for kernels.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// A boundary read back from the wire or handed over by an embedding engine. The caller states
    /// that it lies on its grid; the copy layer needs only the number.
    pub const fn from_raw(tokens: u32) -> Self {
        Self(tokens)
    }
}

impl fmt::Debug for Boundary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_directions() {
        let block = BlockSize::new(256).unwrap();
        for (tokens, floor, ceil, boundary) in
            [(0, 0, 0, 0), (1, 0, 1, 0), (255, 0, 1, 0), (256, 1, 1, 256), (257, 1, 2, 256)]
        {
            let t = Tokens::new(tokens);
            assert_eq!(block.blocks_floor(t).get(), floor);
            assert_eq!(block.blocks_ceil(t).get(), ceil);
            assert_eq!(block.boundary_floor(t).get(), boundary);
            assert_eq!(block.boundary_at(t).is_some(), tokens % 256 == 0);
        }
        assert_eq!(Bytes::new(25).pages_ceil(Bytes::new(10)), Pages::new(3));
        assert_eq!(Bytes::new(25).pages_floor(Bytes::new(10)), Pages::new(2));
        assert_eq!(BlockSize::new(0), None);
    }
}
