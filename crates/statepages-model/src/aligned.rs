//! Rows of floats that start on a cache line.
//!
//! A vector of sixteen floats then lies in one line. Elsewhere it touches two, and a kernel that
//! loads as often as it multiplies, as attention does, runs at two thirds of its speed.

use std::ops::{Deref, DerefMut};

use bytemuck::{Pod, Zeroable};

/// The floats of a cache line.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// Floats, the first at the start of a line. Reused from call to call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Aligned {
    lines: Vec<Line>,
    len: usize,
}

impl Aligned {
    /// Room for `len` floats; what they are is left over from earlier use.
    pub(crate) fn fit(&mut self, len: usize) -> &mut [f32] {
        let lines = len.div_ceil(16);
        if self.lines.len() < lines {
            self.lines.resize(lines, Line([0.0; 16]));
        }
        self.len = len;
        self
    }
}

impl Deref for Aligned {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_start_on_lines_and_room_is_kept() {
        let mut rows = Aligned::default();
        assert!(rows.is_empty());
        for len in [5, 1000, 16, 0, 37] {
            let room = rows.fit(len);
            assert_eq!((room.len(), room.as_ptr().addr() % 64), (len, 0));
            room.fill(len as f32);
        }
        rows.fit(1000);
        assert_eq!((rows[36], rows[37], rows[999]), (37.0, 1000.0, 1000.0));
    }
}
