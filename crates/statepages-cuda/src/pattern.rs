//! Content that is a function of (seed, buffer, item, offset), and digests of items: on the host and,
//! by [`Probe`], on the device. Verification compares what the device holds with what it should.

use std::ffi::c_void;

use statepages_page::Bytes;

use crate::device::{Device, Stream};
use crate::memory::{Buffer, DeviceMemory};
use crate::{DeviceError, Kernels};

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of SplitMix64: every bit of the result depends on every bit of `x`.
pub const fn mix(mut x: u64) -> u64 {
    x ^= x >> 30;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Key of one buffer's pattern.
pub const fn key(seed: u64, buffer: u64) -> u64 {
    mix(mix(seed.wrapping_add(STEP)).wrapping_add(buffer))
}

/// Word `word` (8 bytes, little-endian) of item `item` under `key`.
pub const fn word(key: u64, item: u64, word: u64) -> u64 {
    let row = mix(key.wrapping_add(item.wrapping_add(1).wrapping_mul(STEP)));
    mix(row.wrapping_add(word.wrapping_add(1).wrapping_mul(STEP)))
}

/// Writes the pattern of an item from byte `offset` on. Both are multiples of 8.
pub fn fill(key: u64, item: u64, offset: u64, bytes: &mut [u8]) {
    for (index, chunk) in bytes.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&word(key, item, offset / 8 + index as u64).to_le_bytes());
    }
}

/// Digest of an item: the sum over its words of the mixed word, told apart by position.
pub fn digest(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8).enumerate();
    words.fold(0, |sum: u64, (index, chunk)| {
        let word = u64::from_le_bytes(chunk.try_into().expect("chunks of eight"));
        sum.wrapping_add(mix(word.wrapping_add((index as u64 + 1).wrapping_mul(STEP))))
    })
}

/// Fills and digests on the device. Every call waits.
pub struct Probe<'a> {
    device: &'a Device,
    kernels: &'a Kernels,
    stream: Stream,
}

/// Rows of blocks that one launch may have.
const ROWS_MAX: u32 = 65_535;

impl<'a> Probe<'a> {
    /// A probe on a stream of its own.
    pub fn new(device: &'a Device, kernels: &'a Kernels) -> Result<Self, DeviceError> {
        Ok(Self { device, kernels, stream: device.stream()? })
    }

    /// Its stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Fills the items of a buffer, or the listed ones, with the pattern of `seed`.
    ///
    /// # Panics
    /// Where an item does not exist.
    pub fn fill(
        &self,
        memory: &mut DeviceMemory,
        buffer: Buffer,
        items: Option<&[u32]>,
        seed: u64,
    ) -> Result<(), DeviceError> {
        self.rows(memory, buffer, items, |launch| {
            let (mut key, mut grid) = (buffer.key(seed), launch.grid.0);
            let Row { mut base, mut stride, mut words, mut list, mut first, .. } = launch;
            let mut arguments = [
                argument(&mut base),
                argument(&mut stride),
                argument(&mut words),
                argument(&mut list),
                argument(&mut first),
                argument(&mut key),
                argument(&mut grid),
            ];
            let threads = self.kernels.shape.threads();
            // SAFETY: the kernel's arguments; items were checked, and `rows` waits.
            unsafe { self.stream.launch(&self.kernels.fill, launch.grid, threads, &mut arguments) }
        })
    }

    /// Digests of the items of a buffer, or of the listed ones, in that order.
    ///
    /// # Panics
    /// Where an item does not exist.
    pub fn digests(
        &self,
        memory: &DeviceMemory,
        buffer: Buffer,
        items: Option<&[u32]>,
    ) -> Result<Vec<u64>, DeviceError> {
        let count = items.map_or(memory.items(buffer) as usize, <[u32]>::len);
        let sums = self.device.allocate(Bytes::new(8 * count.max(1) as u64))?;
        sums.write(&self.stream, 0, &vec![0u8; 8 * count])?;
        self.rows(memory, buffer, items, |launch| {
            let (mut out, mut grid) = (sums.address(), launch.grid.0);
            let Row { mut base, mut stride, mut words, mut list, mut first, .. } = launch;
            let mut arguments = [
                argument(&mut base),
                argument(&mut stride),
                argument(&mut words),
                argument(&mut list),
                argument(&mut first),
                argument(&mut out),
                argument(&mut grid),
            ];
            let threads = self.kernels.shape.threads();
            // SAFETY: the kernel's arguments; items were checked, sums are as many, and `rows` waits.
            unsafe {
                self.stream.launch(&self.kernels.digest, launch.grid, threads, &mut arguments)
            }
        })?;
        let mut bytes = vec![0u8; 8 * count];
        sums.read(&self.stream, 0, &mut bytes)?;
        let words = bytes.chunks_exact(8);
        Ok(words.map(|w| u64::from_le_bytes(w.try_into().expect("chunks of eight"))).collect())
    }

    fn rows(
        &self,
        memory: &DeviceMemory,
        buffer: Buffer,
        items: Option<&[u32]>,
        mut launch: impl FnMut(Row) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let total = memory.items(buffer);
        let list = match items {
            None => None,
            Some([]) => return Ok(()),
            Some(items) => {
                assert!(items.iter().all(|&item| item < total), "{buffer:?} has {total} items");
                let list = self.device.allocate(Bytes::new(4 * items.len() as u64))?;
                let bytes: Vec<u8> = items.iter().flat_map(|item| item.to_le_bytes()).collect();
                list.write(&self.stream, 0, &bytes)?;
                Some((list, items.len() as u32))
            }
        };
        let (place, words) = (memory.place(buffer), memory.item_bytes(buffer).get() / 8);
        let rows = list.as_ref().map_or(total, |(_, count)| *count);
        // Enough blocks to fill a device, few enough that a small item is one block.
        let columns = words.div_ceil(u64::from(self.kernels.shape.threads()) * 16).clamp(1, 64);
        for first in (0..rows).step_by(ROWS_MAX as usize) {
            launch(Row {
                base: place.address,
                stride: place.stride,
                words,
                list: list.as_ref().map_or(0, |(list, _)| list.address()),
                first,
                grid: (columns as u32, ROWS_MAX.min(rows - first), 1),
            })?;
        }
        self.stream.synchronize()
    }
}

#[derive(Clone, Copy)]
struct Row {
    base: u64,
    stride: u64,
    words: u64,
    list: u64,
    first: u32,
    grid: (u32, u32, u32),
}

/// A kernel's argument by address, as drivers take it.
pub(crate) fn argument<T>(value: &mut T) -> *mut c_void {
    std::ptr::from_mut(value).cast()
}
