//! Sixteen f32 lanes, the same on every instruction set, and the dispatch to one of them.
//!
//! A kernel is written once over [`Lanes`]. Every operation here is exact IEEE-754 per lane (fused
//! multiply-add included), so a kernel's bits depend on neither the machine nor the width of its
//! registers. Reductions across lanes happen in one place, [`tree`], in one order.

#[cfg(target_arch = "x86_64")]
use pulp::{NullaryFnOnce, Simd};

use crate::minifloat::{e2m1_to_f32, e4m3_to_f32};

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// Which instruction set the kernels run on. The results are the same bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Isa {
    /// The widest that the machine has.
    Auto,
    /// Plain f32 operations.
    Scalar,
    /// AVX2 with FMA, 8 lanes a register.
    Avx2,
    /// AVX-512, 16 lanes a register.
    Avx512,
}

/// An instruction set that the machine lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IsaUnavailable(pub Isa);

impl std::fmt::Display for IsaUnavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "this machine has no {:?} instructions", self.0)
    }
}

impl std::error::Error for IsaUnavailable {}

/// An instruction set that the machine has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Machine {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2(pulp::x86::V3),
    #[cfg(target_arch = "x86_64")]
    Avx512(pulp::x86::V4),
}

/// A piece of work over any [`Lanes`]. `run` and all that it calls with lanes must be
/// `inline(always)`, else they are compiled without the instructions that they were dispatched to:
/// no closure may take lanes, since closures cannot be marked so.
pub(crate) trait Kernel {
    fn run<L: Lanes>(self, l: L);
}

#[cfg(target_arch = "x86_64")]
struct Call<K, L>(K, L);

#[cfg(target_arch = "x86_64")]
impl<K: Kernel, L: Lanes> NullaryFnOnce for Call<K, L> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.0.run(self.1);
    }
}

impl Machine {
    pub(crate) fn new(isa: Isa) -> Result<Self, IsaUnavailable> {
        match isa {
            Isa::Scalar => Ok(Self::Scalar),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => pulp::x86::V3::try_new().map(Self::Avx2).ok_or(IsaUnavailable(isa)),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => pulp::x86::V4::try_new().map(Self::Avx512).ok_or(IsaUnavailable(isa)),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 => Err(IsaUnavailable(isa)),
            Isa::Auto => Self::new(Isa::Avx512)
                .or_else(|_| Self::new(Isa::Avx2))
                .or_else(|_| Self::new(Isa::Scalar)),
        }
    }

    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) {
        match self {
            Self::Scalar => kernel.run(ScalarLanes),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(simd) => simd.vectorize(Call(kernel, Avx2Lanes(simd))),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(simd) => simd.vectorize(Call(kernel, Avx512Lanes(simd))),
        }
    }
}

/// Operations on sixteen lanes.
pub(crate) trait Lanes: Copy {
    /// Sixteen f32 values.
    type V: Copy;

    /// True where a vector is one register of many: kernels then use their larger tiles.
    const WIDE: bool;

    fn splat(self, x: f32) -> Self::V;
    fn load(self, from: &[f32; LANES]) -> Self::V;
    fn store(self, to: &mut [f32; LANES], v: Self::V);
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    fn sqrt(self, a: Self::V) -> Self::V;
    /// `yes` in the lanes where `a < b`, `no` elsewhere (NaN included).
    fn select_less(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    /// Bits shifted left by 23, plus the bits of 1.0: turns the low bits of a number that was
    /// rounded to an integer by adding 1.5 * 2^23 into that power of two.
    fn power_of_two(self, rounded: Self::V) -> Self::V;

    /// The numbers of which these are the upper halves.
    #[inline(always)]
    fn bf16(self, halves: &[u16; LANES]) -> Self::V {
        self.load(&each(|i| f32::from_bits(u32::from(halves[i]) << 16)))
    }

    /// The numbers of thirty-two e4m3 codes, divided by 256.
    #[inline(always)]
    fn e4m3_over_256(self, codes: &[u8; 2 * LANES]) -> [Self::V; 2] {
        let number = |i: usize| e4m3_to_f32(codes[i]) * (1.0 / 256.0);
        [self.load(&each(number)), self.load(&each(|i| number(LANES + i)))]
    }

    /// The numbers of sixteen e2m1 codes in the low four bits, and of those in the high four.
    #[inline(always)]
    fn e2m1(self, codes: &[u8; LANES]) -> [Self::V; 2] {
        [
            self.load(&each(|i| e2m1_to_f32(codes[i] & 15))),
            self.load(&each(|i| e2m1_to_f32(codes[i] >> 4))),
        ]
    }

    /// `a[0], b[0], a[1], b[1]` and so on, in two vectors.
    #[inline(always)]
    fn interleave(self, a: Self::V, b: Self::V) -> [Self::V; 2] {
        let (mut lanes, mut pairs) = ([[0.0; LANES]; 2], [[0.0; LANES]; 2]);
        self.store(&mut lanes[0], a);
        self.store(&mut lanes[1], b);
        for i in 0..2 * LANES {
            pairs[i / LANES][i % LANES] = lanes[i % 2][i / 2];
        }
        [self.load(&pairs[0]), self.load(&pairs[1])]
    }

    /// [`tree`] of sixteen vectors: element `4 * i + j` is that of vector `4 * j + i`.
    #[inline(always)]
    fn trees(self, v: &[Self::V; LANES]) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        for i in 0..4 {
            for j in 0..4 {
                let mut lanes = [0.0; LANES];
                self.store(&mut lanes, v[4 * j + i]);
                out[4 * i + j] = tree(&lanes);
            }
        }
        out
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        self.select_less(a, b, b, a)
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        self.select_less(b, a, b, a)
    }
}

/// The numbers of e4m3 codes times `by`, a power of two, each product rounded once.
#[inline(always)]
pub(crate) fn e4m3_times<L: Lanes>(
    l: L,
    codes: &[[u8; 2 * LANES]],
    by: f32,
    out: &mut [[[f32; LANES]; 2]],
) {
    let whole = by * 256.0;
    for (out, codes) in out.iter_mut().zip(codes) {
        for (out, v) in out.iter_mut().zip(l.e4m3_over_256(codes)) {
            let v = if whole.is_finite() {
                l.mul(v, l.splat(whole))
            } else {
                l.mul(l.mul(v, l.splat(256.0)), l.splat(by))
            };
            l.store(out, v);
        }
    }
}

/// Sum of sixteen lanes: halves are added until one is left.
#[inline(always)]
pub(crate) fn tree(v: &[f32; LANES]) -> f32 {
    let mut a = [0.0f32; 8];
    for i in 0..8 {
        a[i] = v[i] + v[i + 8];
    }
    let mut b = [0.0f32; 4];
    for i in 0..4 {
        b[i] = a[i] + a[i + 4];
    }
    (b[0] + b[2]) + (b[1] + b[3])
}

/// Plain f32 operations; the definition of the other two.
#[derive(Clone, Copy)]
pub(crate) struct ScalarLanes;

#[inline(always)]
fn each(f: impl FnMut(usize) -> f32) -> [f32; LANES] {
    std::array::from_fn(f)
}

impl Lanes for ScalarLanes {
    type V = [f32; LANES];

    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::V {
        *from
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; LANES], v: Self::V) {
        *to = v;
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] - b[i])
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] / b[i])
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        each(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        each(|i| a[i].sqrt())
    }

    #[inline(always)]
    fn select_less(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
        each(|i| if a[i] < b[i] { yes[i] } else { no[i] })
    }

    #[inline(always)]
    fn power_of_two(self, rounded: Self::V) -> Self::V {
        each(|i| f32::from_bits((rounded[i].to_bits() << 23).wrapping_add(0x3f80_0000)))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use bytemuck::cast;
    use pulp::x86::{V3, V4};

    use super::{LANES, Lanes, Simd};

    /// Two registers of eight lanes.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2Lanes(pub(super) V3);

    /// One register of sixteen lanes.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512Lanes(pub(super) V4);

    impl Lanes for Avx512Lanes {
        type V = pulp::f32x16;

        const WIDE: bool = true;

        #[inline(always)]
        fn splat(self, x: f32) -> Self::V {
            self.0.splat_f32s(x)
        }

        #[inline(always)]
        fn load(self, from: &[f32; LANES]) -> Self::V {
            cast(*from)
        }

        #[inline(always)]
        fn store(self, to: &mut [f32; LANES], v: Self::V) {
            *to = cast(v);
        }

        #[inline(always)]
        fn add(self, a: Self::V, b: Self::V) -> Self::V {
            self.0.add_f32s(a, b)
        }

        #[inline(always)]
        fn sub(self, a: Self::V, b: Self::V) -> Self::V {
            self.0.sub_f32s(a, b)
        }

        #[inline(always)]
        fn mul(self, a: Self::V, b: Self::V) -> Self::V {
            self.0.mul_f32s(a, b)
        }

        #[inline(always)]
        fn div(self, a: Self::V, b: Self::V) -> Self::V {
            self.0.div_f32s(a, b)
        }

        #[inline(always)]
        fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
            self.0.mul_add_f32s(a, b, c)
        }

        #[inline(always)]
        fn sqrt(self, a: Self::V) -> Self::V {
            self.0.sqrt_f32s(a)
        }

        #[inline(always)]
        fn select_less(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
            self.0.select_f32s(self.0.less_than_f32s(a, b), yes, no)
        }

        #[inline(always)]
        fn power_of_two(self, rounded: Self::V) -> Self::V {
            let s = self.0;
            let shifted = s.wrapping_dyn_shl_u32s(cast(rounded), s.splat_u32s(23));
            cast(s.add_u32s(shifted, s.splat_u32s(0x3f80_0000)))
        }

        #[inline(always)]
        fn bf16(self, halves: &[u16; LANES]) -> Self::V {
            let simd = self.0.avx512f;
            let words = simd._mm512_cvtepu16_epi32(cast(*halves));
            pulp::cast(simd._mm512_slli_epi32::<16>(words))
        }

        /// A half-precision number has e4m3's fields, but one exponent bit more at the top: the
        /// bits between, subnormals included, mean the same times 2^-8. NaN's code becomes half
        /// precision's NaN by an addition that leaves the sign alone.
        #[inline(always)]
        fn e4m3_over_256(self, codes: &[u8; 2 * LANES]) -> [Self::V; 2] {
            const NAN: u16 = 0x3f80;
            let (f, bw) = (self.0.avx512f, self.0.avx512bw);
            let all = |word: u16| cast([word; 2 * LANES]);
            let shifted = bw._mm512_slli_epi16::<7>(bw._mm512_cvtepi8_epi16(cast(*codes)));
            let half = f._mm512_and_si512(shifted, all(0x8000 | NAN));
            let nan = bw._mm512_cmpeq_epi16_mask(f._mm512_and_si512(half, all(NAN)), all(NAN));
            let half = bw._mm512_mask_add_epi16(half, nan, half, all(0x7e00 - NAN));
            let [low, high]: [core::arch::x86_64::__m256i; 2] = cast(half);
            [pulp::cast(f._mm512_cvtph_ps(low)), pulp::cast(f._mm512_cvtph_ps(high))]
        }

        #[inline(always)]
        fn interleave(self, a: Self::V, b: Self::V) -> [Self::V; 2] {
            const LOW: [u32; LANES] = [0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23];
            const HIGH: [u32; LANES] =
                [8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31];
            let (a, b) = (pulp::cast(a), pulp::cast(b));
            [LOW, HIGH]
                .map(|pick| pulp::cast(self.0.avx512f._mm512_permutex2var_ps(a, cast(pick), b)))
        }

        /// The table of all sixteen numbers is one register.
        #[inline(always)]
        fn e2m1(self, codes: &[u8; LANES]) -> [Self::V; 2] {
            const NUMBERS: [f32; LANES] = [
                0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0,
                -6.0,
            ];
            let simd = self.0.avx512f;
            let low = simd._mm512_cvtepu8_epi32(cast(*codes));
            // Only the low four bits of an index count.
            [low, simd._mm512_srli_epi32::<4>(low)]
                .map(|index| pulp::cast(simd._mm512_permutexvar_ps(index, cast(NUMBERS))))
        }

        /// The additions of [`super::tree`], of several vectors at once: each step brings the halves
        /// that are added next to the same lanes of two registers.
        #[inline(always)]
        fn trees(self, v: &[Self::V; LANES]) -> [f32; LANES] {
            let mut eights = [v[0]; 8];
            for i in 0..8 {
                let (a, b) = (v[2 * i], v[2 * i + 1]);
                eights[i] = self.add(self.quarters::<0x44>(a, b), self.quarters::<0xee>(a, b));
            }
            let mut fours = [v[0]; 4];
            for i in 0..4 {
                let (a, b) = (eights[2 * i], eights[2 * i + 1]);
                fours[i] = self.add(self.quarters::<0x88>(a, b), self.quarters::<0xdd>(a, b));
            }
            let mut twos = [v[0]; 2];
            for i in 0..2 {
                let (a, b) = (fours[2 * i], fours[2 * i + 1]);
                twos[i] = self.add(self.singles::<0x44>(a, b), self.singles::<0xee>(a, b));
            }
            let [a, b] = twos;
            cast(self.add(self.singles::<0x88>(a, b), self.singles::<0xdd>(a, b)))
        }
    }

    impl Avx512Lanes {
        /// Two of `a`'s quarters, then two of `b`'s.
        #[inline(always)]
        fn quarters<const PICK: i32>(self, a: pulp::f32x16, b: pulp::f32x16) -> pulp::f32x16 {
            pulp::cast(self.0.avx512f._mm512_shuffle_f32x4::<PICK>(pulp::cast(a), pulp::cast(b)))
        }

        /// In each quarter, two of `a`'s elements, then two of `b`'s.
        #[inline(always)]
        fn singles<const PICK: i32>(self, a: pulp::f32x16, b: pulp::f32x16) -> pulp::f32x16 {
            pulp::cast(self.0.avx512f._mm512_shuffle_ps::<PICK>(pulp::cast(a), pulp::cast(b)))
        }
    }

    impl Lanes for Avx2Lanes {
        type V = [pulp::f32x8; 2];

        const WIDE: bool = false;

        #[inline(always)]
        fn splat(self, x: f32) -> Self::V {
            [self.0.splat_f32s(x); 2]
        }

        #[inline(always)]
        fn load(self, from: &[f32; LANES]) -> Self::V {
            cast(*from)
        }

        #[inline(always)]
        fn store(self, to: &mut [f32; LANES], v: Self::V) {
            *to = cast(v);
        }

        #[inline(always)]
        fn add(self, a: Self::V, b: Self::V) -> Self::V {
            [self.0.add_f32s(a[0], b[0]), self.0.add_f32s(a[1], b[1])]
        }

        #[inline(always)]
        fn sub(self, a: Self::V, b: Self::V) -> Self::V {
            [self.0.sub_f32s(a[0], b[0]), self.0.sub_f32s(a[1], b[1])]
        }

        #[inline(always)]
        fn mul(self, a: Self::V, b: Self::V) -> Self::V {
            [self.0.mul_f32s(a[0], b[0]), self.0.mul_f32s(a[1], b[1])]
        }

        #[inline(always)]
        fn div(self, a: Self::V, b: Self::V) -> Self::V {
            [self.0.div_f32s(a[0], b[0]), self.0.div_f32s(a[1], b[1])]
        }

        #[inline(always)]
        fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
            [self.0.mul_add_f32s(a[0], b[0], c[0]), self.0.mul_add_f32s(a[1], b[1], c[1])]
        }

        #[inline(always)]
        fn sqrt(self, a: Self::V) -> Self::V {
            [self.0.sqrt_f32s(a[0]), self.0.sqrt_f32s(a[1])]
        }

        #[inline(always)]
        fn select_less(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
            let s = self.0;
            [
                s.select_f32s(s.less_than_f32s(a[0], b[0]), yes[0], no[0]),
                s.select_f32s(s.less_than_f32s(a[1], b[1]), yes[1], no[1]),
            ]
        }

        #[inline(always)]
        fn power_of_two(self, rounded: Self::V) -> Self::V {
            let (s, one) = (self.0, self.0.splat_u32s(0x3f80_0000));
            let by = s.splat_u32s(23);
            [
                cast(s.add_u32s(s.wrapping_dyn_shl_u32s(cast(rounded[0]), by), one)),
                cast(s.add_u32s(s.wrapping_dyn_shl_u32s(cast(rounded[1]), by), one)),
            ]
        }
    }
}

#[cfg(target_arch = "x86_64")]
use x86::{Avx2Lanes, Avx512Lanes};

#[cfg(test)]
mod tests {
    use super::*;

    /// Every code of both formats, sixteen at a time.
    struct AllCodes<'a>(&'a mut Vec<u32>);

    impl Kernel for AllCodes<'_> {
        #[inline(always)]
        fn run<L: Lanes>(self, l: L) {
            let codes: Vec<u8> = (0..=255).collect();
            for codes in codes.as_chunks::<LANES>().0 {
                let [low, high] = l.e2m1(codes);
                let [first, second] = l.interleave(low, high);
                for v in [low, high, first, second] {
                    let mut lanes = [0.0; LANES];
                    l.store(&mut lanes, v);
                    self.0.extend(lanes.map(f32::to_bits));
                }
            }
            // 2^127 times 256 is no number, while many codes times 2^127 are.
            for by in [1.0, 0.5f32.powi(126) / 2.0, 2f32.powi(119), 2f32.powi(127)] {
                let codes = codes.as_chunks::<{ 2 * LANES }>().0;
                let mut out = vec![[[0.0; LANES]; 2]; codes.len()];
                e4m3_times(l, codes, by, &mut out);
                let want = codes.as_flattened().iter().map(|&code| e4m3_to_f32(code) * by);
                let got = out.as_flattened().as_flattened().iter().copied();
                assert!(got.map(f32::to_bits).eq(want.map(f32::to_bits)), "times {by}");
            }
        }
    }

    #[test]
    fn codes_are_the_same_numbers_on_every_machine() {
        let all = |machine: Machine| {
            let mut bits = Vec::new();
            machine.run(AllCodes(&mut bits));
            bits
        };
        let want = all(Machine::Scalar);
        assert_eq!(want.len(), 4 * 256);
        for isa in [Isa::Avx2, Isa::Avx512] {
            let Ok(machine) = Machine::new(isa) else { continue };
            assert_eq!(all(machine), want, "{isa:?}");
        }
    }
}
