//! Number formats of cached rows.
//!
//! A row is rounded to its format before any query reads it, the chunk's own rows included: rows
//! are encoded once, and what is attended to is what decoding gives. A row's bytes lie in one or two
//! parts: the planes of a slot or page, or columns and scales.
//!
//! ```text
//! format       part 0                                              part 1
//! f32, bf16    the columns
//! fp8 planes   e4m3 columns but the rotary ones, by 64s; each      rotary columns, bf16
//!              64's scale byte twice; zeros
//! fp8 scaled   e4m3 columns                                        f32 scale, a power of two
//! fp4 scaled   e2m1 columns, the even one in the low four bits     scale byte of every 32 columns
//! ```
//!
//! Scale bytes are e8m0. Scales are the least powers of two that hold the largest magnitude `a` of
//! their columns (dsv4.md 1.5 and 1.6): at least `max(a / 448, 1e-4)` in planes, `max(a, 1e-4) / 448`
//! in fp8 indexer rows, `max(a, 6 * 2^-126) / 6` in fp4 ones. Queries are not quantised.

#![expect(clippy::inline_always, reason = "a kernel's parts must be compiled for its machine")]

use half::bf16;
use statepages_geometry::{IndexerFormat, KvFormat};

use crate::kernel::lanes::{Kernel, LANES, Lanes, Machine, e4m3_times};
use crate::minifloat::{
    E2M1_MAX, E4M3_MAX, e2m1_from_f32, e4m3_from_f32, e4m3_to_f32, e8m0_at_least, e8m0_reciprocal,
    e8m0_to_f32, largest,
};

/// Columns of a plane that share a scale.
const PLANE_GROUP: usize = 64;
/// Columns of an fp4 row that share a scale.
const FP4_GROUP: usize = 32;
/// Most parts of a row.
pub(crate) const PARTS_MAX: usize = 2;

/// Number format of a cached row, main or indexer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RowFormat {
    F32,
    Bf16,
    /// KV rows whose first `nope` columns are e4m3.
    Fp8Planes {
        nope: usize,
    },
    /// Indexer rows of e4m3 with one scale.
    Fp8Scaled,
    /// Indexer rows of e2m1.
    Fp4Scaled,
}

impl RowFormat {
    /// The format of KV rows of `width` columns, the last `rope` of them rotary.
    pub(crate) fn of_kv(kv: KvFormat, width: usize, rope: usize) -> Self {
        match kv {
            KvFormat::F32 => Self::F32,
            KvFormat::Bf16 => Self::Bf16,
            KvFormat::Fp8 => Self::Fp8Planes { nope: width - rope },
        }
    }

    /// The format of indexer rows.
    pub(crate) fn of_indexer(indexer: IndexerFormat) -> Self {
        match indexer {
            IndexerFormat::F32 => Self::F32,
            IndexerFormat::Bf16 => Self::Bf16,
            IndexerFormat::Fp8 => Self::Fp8Scaled,
            IndexerFormat::Fp4 => Self::Fp4Scaled,
        }
    }

    /// Parts of a row.
    pub(crate) fn parts(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 => 1,
            Self::Fp8Planes { .. } | Self::Fp8Scaled | Self::Fp4Scaled => PARTS_MAX,
        }
    }

    /// Writes one part of a row to its bytes.
    pub(crate) fn encode(self, machine: Machine, part: usize, row: &[f32], bytes: &mut [u8]) {
        machine.run(Encode { format: self, part, row, bytes });
    }

    /// Reads rows of `width` columns from their parts, each of all rows, one behind the other. A
    /// format of one part has no bytes in the second.
    pub(crate) fn decode(
        self,
        machine: Machine,
        parts: [&[u8]; PARTS_MAX],
        width: usize,
        rows: &mut [f32],
    ) {
        machine.run(Decode { format: self, parts, width, rows });
    }
}

/// One part of a row to be written. Its loops have no lanes: they are compiled for the machine.
struct Encode<'a> {
    format: RowFormat,
    part: usize,
    row: &'a [f32],
    bytes: &'a mut [u8],
}

/// Some rows to be read.
struct Decode<'a> {
    format: RowFormat,
    parts: [&'a [u8]; PARTS_MAX],
    width: usize,
    rows: &'a mut [f32],
}

impl Kernel for Encode<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let Self { format, part, row, bytes } = self;
        match (format, part) {
            (RowFormat::F32, _) => store_f32(row, bytes),
            (RowFormat::Bf16, _) => store_bf16(row, bytes),
            (RowFormat::Fp8Planes { nope }, 0) => {
                let (codes, rest) = bytes.split_at_mut(nope);
                let (scales, padding) = rest.split_at_mut(2 * (nope / PLANE_GROUP));
                let groups = row[..nope].chunks_exact(PLANE_GROUP);
                let codes = codes.chunks_exact_mut(PLANE_GROUP);
                let scales = scales.as_chunks_mut::<2>().0;
                for ((group, codes), scale) in groups.zip(codes).zip(scales) {
                    let least = (largest(group) / E4M3_MAX).max(1e-4);
                    *scale = [e8m0_at_least(least); 2];
                    store_e4m3(group, e8m0_reciprocal(scale[0]), codes);
                }
                padding.fill(0);
            }
            (RowFormat::Fp8Planes { nope }, _) => store_bf16(&row[nope..], bytes),
            (RowFormat::Fp8Scaled, part) => {
                let scale = e8m0_at_least(largest(row).max(1e-4) / E4M3_MAX);
                match part {
                    0 => store_e4m3(row, e8m0_reciprocal(scale), bytes),
                    _ => store_f32(&[e8m0_to_f32(scale)], bytes),
                }
            }
            (RowFormat::Fp4Scaled, part) => {
                for (i, group) in row.chunks_exact(FP4_GROUP).enumerate() {
                    let least = largest(group).max(E2M1_MAX * f32::MIN_POSITIVE) / E2M1_MAX;
                    let scale = e8m0_at_least(least);
                    if part == 1 {
                        bytes[i] = scale;
                        continue;
                    }
                    let by = e8m0_reciprocal(scale);
                    let packed = &mut bytes[i * FP4_GROUP / 2..][..FP4_GROUP / 2];
                    for (to, [even, odd]) in packed.iter_mut().zip(group.as_chunks().0) {
                        *to = e2m1_from_f32(even * by) | e2m1_from_f32(odd * by) << 4;
                    }
                }
            }
        }
    }
}

impl Kernel for Decode<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { format, parts, width, rows } = self;
        match format {
            // These rows have no structure: all of them are one.
            RowFormat::F32 => return load_f32(parts[0], rows),
            RowFormat::Bf16 => return load_bf16(parts[0], rows),
            _ => {}
        }
        let rows = rows.chunks_exact_mut(width);
        let count = rows.len();
        let of_one = parts.map(|part| part.len() / count.max(1));
        for (part, of_one) in parts.iter().zip(of_one) {
            assert_eq!(part.len(), of_one * count, "rows have as many bytes each");
        }
        for (i, row) in rows.enumerate() {
            let part = |part: usize| &parts[part][i * of_one[part]..][..of_one[part]];
            format.decode_one(l, [part(0), part(1)], row);
        }
    }
}

impl RowFormat {
    #[inline(always)]
    fn decode_one<L: Lanes>(self, l: L, [bytes, second]: [&[u8]; PARTS_MAX], row: &mut [f32]) {
        match self {
            Self::F32 => load_f32(bytes, row),
            Self::Bf16 => load_bf16(bytes, row),
            Self::Fp8Planes { nope } => {
                let (codes, rest) = bytes.split_at(nope);
                let (row, rope) = row.split_at_mut(nope);
                let groups = row.chunks_exact_mut(PLANE_GROUP);
                let codes = codes.chunks_exact(PLANE_GROUP);
                for ((group, codes), scale) in groups.zip(codes).zip(rest.as_chunks::<2>().0) {
                    load_e4m3(l, codes, e8m0_to_f32(scale[0]), group);
                }
                load_bf16(second, rope);
            }
            Self::Fp8Scaled => {
                let mut scale = [0.0];
                load_f32(second, &mut scale);
                load_e4m3(l, bytes, scale[0], row);
            }
            Self::Fp4Scaled => {
                assert_eq!(2 * bytes.len(), row.len(), "a row has its format's bytes");
                let groups = row.chunks_exact_mut(FP4_GROUP).zip(bytes.chunks_exact(FP4_GROUP / 2));
                for ((group, codes), &scale) in groups.zip(second) {
                    load_e2m1(l, codes, e8m0_to_f32(scale), group);
                }
            }
        }
    }
}

/// The numbers of a group of e2m1 codes times `by`, two a byte with the even column in the low bits.
#[inline(always)]
fn load_e2m1<L: Lanes>(l: L, codes: &[u8], by: f32, group: &mut [f32]) {
    let (groups, _) = group.as_chunks_mut::<{ 2 * LANES }>();
    let factor = l.splat(by);
    for (group, codes) in groups.iter_mut().zip(codes.as_chunks::<LANES>().0) {
        let [even, odd] = l.e2m1(codes);
        let (halves, _) = group.as_chunks_mut::<LANES>();
        for (half, v) in halves.iter_mut().zip(l.interleave(even, odd)) {
            l.store(half, l.mul(v, factor));
        }
    }
}

const _: () = assert!(FP4_GROUP.is_multiple_of(2 * LANES), "a group has whole vectors");

/// The numbers of e4m3 codes times `by`, NaN included: a row may hold what a broken model computed.
#[inline(always)]
fn load_e4m3<L: Lanes>(l: L, codes: &[u8], by: f32, row: &mut [f32]) {
    assert_eq!(codes.len(), row.len(), "a row has its format's bytes");
    let (blocks, few) = row.as_chunks_mut::<{ 2 * LANES }>();
    let (codes, rest) = codes.as_chunks();
    e4m3_times(l, codes, by, bytemuck::cast_slice_mut(blocks));
    few.iter_mut().zip(rest).for_each(|(x, code)| *x = e4m3_to_f32(*code) * by);
}

#[inline(always)]
fn store_e4m3(row: &[f32], by: f32, codes: &mut [u8]) {
    assert_eq!(codes.len(), row.len(), "a row has its format's bytes");
    codes.iter_mut().zip(row).for_each(|(code, x)| *code = e4m3_from_f32(x * by));
}

#[inline(always)]
fn store_f32(row: &[f32], bytes: &mut [u8]) {
    let (to, _) = bytes.as_chunks_mut::<4>();
    assert_eq!(to.len(), row.len(), "a row has its format's bytes");
    to.iter_mut().zip(row).for_each(|(to, x)| *to = x.to_le_bytes());
}

#[inline(always)]
fn load_f32(bytes: &[u8], row: &mut [f32]) {
    let (from, _) = bytes.as_chunks::<4>();
    assert_eq!(from.len(), row.len(), "a row has its format's bytes");
    row.iter_mut().zip(from).for_each(|(x, from)| *x = f32::from_le_bytes(*from));
}

#[inline(always)]
fn store_bf16(row: &[f32], bytes: &mut [u8]) {
    let (to, _) = bytes.as_chunks_mut::<2>();
    assert_eq!(to.len(), row.len(), "a row has its format's bytes");
    to.iter_mut().zip(row).for_each(|(to, x)| *to = bf16::from_f32(*x).to_le_bytes());
}

#[inline(always)]
fn load_bf16(bytes: &[u8], row: &mut [f32]) {
    let (from, _) = bytes.as_chunks::<2>();
    assert_eq!(from.len(), row.len(), "a row has its format's bytes");
    let widen = |x: [u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(x)) << 16);
    row.iter_mut().zip(from).for_each(|(x, from)| *x = widen(*from));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine::new(crate::Isa::Auto).expect("every machine is something")
    }

    const KV: RowFormat = RowFormat::Fp8Planes { nope: 448 };

    fn encoded(format: RowFormat, row: &[f32], sizes: &[usize]) -> Vec<Vec<u8>> {
        let part = |(part, &len): (usize, &usize)| {
            let mut bytes = vec![0xee; len];
            format.encode(machine(), part, row, &mut bytes);
            bytes
        };
        assert_eq!(format.parts(), sizes.len());
        sizes.iter().enumerate().map(part).collect()
    }

    fn decoded(format: RowFormat, parts: &[Vec<u8>], width: usize) -> Vec<f32> {
        let mut row = vec![f32::NAN; width];
        let part = |part: usize| parts.get(part).map_or(&[][..], |bytes| bytes);
        format.decode(machine(), [part(0), part(1)], width, &mut row);
        row
    }

    /// The bytes of `tools/make_row_fixtures.py`: ties, subnormals, saturation, zeros, floors.
    #[test]
    fn bytes_are_those_of_the_published_definitions() {
        let mut data = &include_bytes!("../tests/fixtures/rows.bin")[..];
        let mut take = |n: usize| {
            let (head, rest) = data.split_at(n);
            data = rest;
            head.to_vec()
        };
        let floats = |bytes: &[u8]| {
            let mut row = vec![0.0; bytes.len() / 4];
            load_f32(bytes, &mut row);
            row
        };
        let count = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        for i in 0..count(&take(4)) {
            let (row, parts) = (floats(&take(2048)), vec![take(512), take(128)]);
            assert_eq!(encoded(KV, &row, &[512, 128]), parts, "KV row {i}");
        }
        for i in 0..count(&take(4)) {
            let row = floats(&take(512));
            let fp8 = vec![take(128), take(4)];
            assert_eq!(encoded(RowFormat::Fp8Scaled, &row, &[128, 4]), fp8, "fp8 row {i}");
            let fp4 = vec![take(64), take(4)];
            assert_eq!(encoded(RowFormat::Fp4Scaled, &row, &[64, 4]), fp4, "fp4 row {i}");
        }
        assert!(take(0).is_empty() && data.is_empty());
    }

    /// The floor under an fp4 group's largest magnitude, 6 * 2^-126, which keeps the scale normal: as
    /// in the public kernels (SGLang 0.5.23, `fp4_fake_quant.py` and `fp4_utils.cuh`; that they
    /// multiply by the rounded 1/6 where this divides by 6 changes no scale of any f32).
    #[test]
    fn fp4_scales_stop_at_the_smallest_normal_power() {
        let floor = E2M1_MAX * f32::MIN_POSITIVE;
        let next = f32::from_bits(floor.to_bits() + 1);
        let smallest = f32::from_bits(1);
        for (largest, scale, code) in [
            (0.0, 1, 0),
            // 2^-149 and 2^-129 are less than half of the smallest step, 2^-128 is the tie.
            (smallest, 1, 0),
            (f32::MIN_POSITIVE / 8.0, 1, 0),
            (f32::MIN_POSITIVE / 4.0, 1, 0),
            (f32::from_bits((f32::MIN_POSITIVE / 4.0).to_bits() + 1), 1, 1),
            (f32::MIN_POSITIVE / 2.0, 1, 1),
            (f32::MIN_POSITIVE, 1, 2),
            (floor, 1, 7),
            // Above the floor the scale is the next power: 3 and a little, of steps up to 6.
            (next, 2, 5),
            (2.0 * floor, 2, 7),
        ] {
            let mut row = [0.0; 128];
            row[32] = largest;
            row[33] = -largest;
            let parts = encoded(RowFormat::Fp4Scaled, &row, &[64, 4]);
            assert_eq!(parts[1], [1, scale, 1, 1], "{largest:e}");
            assert_eq!(parts[0][16], code | (code | 8) << 4, "{largest:e}");
            assert!(parts[0].iter().enumerate().all(|(i, &byte)| i == 16 || byte == 0));
        }
    }

    #[test]
    fn what_is_read_is_near_what_was_written_and_stays() {
        let row: Vec<f32> =
            (0..512).map(|i| ((i * 37 % 101) as f32 - 50.5) * 0.123_456_7).collect();
        for (format, width, sizes, bound) in [
            (RowFormat::F32, 512, &[2048][..], 0.0),
            (RowFormat::Bf16, 512, &[1024], 1.0 / 256.0),
            (KV, 512, &[512, 128], 1.0 / 16.0),
            (RowFormat::Fp8Scaled, 128, &[128, 4], 1.0 / 16.0),
            (RowFormat::Fp4Scaled, 128, &[64, 4], 1.0 / 3.0),
        ] {
            let row = &row[..width];
            let back = decoded(format, &encoded(format, row, sizes), width);
            let unit = largest(row) * bound;
            assert!(
                row.iter().zip(&back).all(|(a, b)| (a - b).abs() <= a.abs() * bound + unit / 4.0)
            );
            let again = decoded(format, &encoded(format, &back, sizes), width);
            assert_eq!(again, back, "{format:?}");
        }
    }
}
