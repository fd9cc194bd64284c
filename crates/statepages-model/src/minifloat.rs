//! Numbers of 8 and 4 bits: e4m3, e2m1 and the powers of two that scale them (e8m0).
//!
//! The formats are those of the OCP microscaling specification, e4m3 without infinities ("fn").
//! Rounding is to nearest, ties to the even code, subnormals included; what is too large is held at
//! the largest number, signs of zeros are kept. Nothing branches on a value, so that loops over
//! these functions become vector code.

#![expect(clippy::inline_always, reason = "loops over these are compiled for their machine")]

/// Largest e4m3 number.
pub const E4M3_MAX: f32 = 448.0;
/// Largest e2m1 number.
pub const E2M1_MAX: f32 = 6.0;

const SIGN: u32 = 1 << 31;

/// Rounds to a code of `MANTISSA` stored bits and exponent bias `BIAS`; the sign is left out.
#[inline(always)]
fn magnitude<const MANTISSA: u32, const BIAS: u32>(x: f32, max: f32) -> u32 {
    let a = f32::from_bits(x.to_bits() & !SIGN);
    let a = if a > max { max } else { a };
    let drop = 23 - MANTISSA;
    // Ties to even: half of the dropped range, less one unless the kept part is odd.
    let bits = a.to_bits();
    let normal = (bits + ((1 << (drop - 1)) - 1) + ((bits >> drop) & 1)) >> drop;
    let normal = normal.wrapping_sub((127 - BIAS) << MANTISSA);
    // Adding a number whose unit is the smallest subnormal rounds to multiples of that.
    let unit = f32::from_bits((127 + 23 + 1 - BIAS - MANTISSA) << 23);
    let subnormal = (a + unit).to_bits().wrapping_sub(unit.to_bits());
    let smallest_normal = f32::from_bits((128 - BIAS) << 23);
    if a < smallest_normal { subnormal } else { normal }
}

/// The value of a code without its sign. Makes no subnormal f32 on the way, which would cost a
/// hundred times an ordinary number.
#[inline(always)]
fn value<const MANTISSA: u32, const BIAS: u32>(code: u32) -> f32 {
    let normal = f32::from_bits((code << (23 - MANTISSA)) + ((127 - BIAS) << 23));
    let subnormal = code as i32 as f32 * f32::from_bits((128 - BIAS - MANTISSA) << 23);
    if code >> MANTISSA == 0 { subnormal } else { normal }
}

/// The nearest e4m3 code. NaN becomes the code of NaN.
#[inline(always)]
pub fn e4m3_from_f32(x: f32) -> u8 {
    let code = if x.is_nan() { 0x7f } else { magnitude::<3, 7>(x, E4M3_MAX) };
    (code | x.to_bits() >> 24 & 0x80) as u8
}

/// The value of an e4m3 code.
#[inline(always)]
pub fn e4m3_to_f32(code: u8) -> f32 {
    let (sign, code) = (u32::from(code >> 7) << 31, u32::from(code & 0x7f));
    let magnitude = if code == 0x7f { f32::NAN } else { value::<3, 7>(code) };
    f32::from_bits(magnitude.to_bits() | sign)
}

/// The nearest e2m1 code, in the low four bits. NaN, which the format lacks, becomes the largest
/// number.
#[inline(always)]
pub fn e2m1_from_f32(x: f32) -> u8 {
    let code = if x.is_nan() { 7 } else { magnitude::<1, 1>(x, E2M1_MAX) };
    (code | x.to_bits() >> 28 & 8) as u8
}

/// The value of an e2m1 code in the low four bits.
#[inline(always)]
pub fn e2m1_to_f32(code: u8) -> f32 {
    let (sign, code) = (u32::from(code >> 3 & 1) << 31, u32::from(code & 7));
    f32::from_bits(value::<1, 1>(code).to_bits() | sign)
}

/// The value of an e8m0 code, `2^(code - 127)`; NaN for 255.
#[inline(always)]
pub fn e8m0_to_f32(code: u8) -> f32 {
    match code {
        // The one value below the normal numbers.
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        code => f32::from_bits(u32::from(code) << 23),
    }
}

/// The smallest e8m0 code whose value is at least `x`, for positive `x`; 254 for what is larger than
/// any.
#[inline(always)]
pub fn e8m0_at_least(x: f32) -> u8 {
    let bits = x.to_bits();
    let (exponent, more) = (bits >> 23, u32::from(bits & 0x7f_ffff != 0));
    // Subnormals up to 2^-127 have the code 0.
    let code = if bits <= 1 << 22 { 0 } else { exponent + more };
    code.min(254) as u8
}

/// `1 / e8m0_to_f32(code)`, exactly, for codes up to 254.
#[inline(always)]
pub fn e8m0_reciprocal(code: u8) -> f32 {
    e8m0_to_f32(254 - code)
}

/// Largest magnitude; NaN counts for nothing.
#[inline(always)]
pub fn largest(xs: &[f32]) -> f32 {
    xs.iter().fold(0.0, |top, x| if x.abs() > top { x.abs() } else { top })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Value of a code by the definition of the formats, in f64.
    fn naive(code: u32, mantissa: u32, bias: i32) -> f64 {
        let (exponent, fraction) = (code >> mantissa, f64::from(code & ((1 << mantissa) - 1)));
        let fraction = fraction / f64::from(1 << mantissa);
        match exponent {
            0 => fraction * 2f64.powi(1 - bias),
            exponent => (1.0 + fraction) * 2f64.powi(exponent as i32 - bias),
        }
    }

    /// Nearest code by trying all, ties to the even one.
    fn nearest(x: f32, values: &[f64]) -> u32 {
        let distance = |code: u32| (values[code as usize] - f64::from(x.abs())).abs();
        let mut best = 0;
        for code in 1..values.len() as u32 {
            let (new, old) = (distance(code), distance(best));
            if new < old || (new <= old && code % 2 == 0) {
                best = code;
            }
        }
        best
    }

    fn check(
        mantissa: u32,
        bias: i32,
        codes: u32,
        encode: fn(f32) -> u8,
        decode: fn(u8) -> f32,
        sign: u8,
    ) {
        let values: Vec<f64> = (0..codes).map(|code| naive(code, mantissa, bias)).collect();
        for (code, value) in (0u8..).zip(&values) {
            assert_eq!(f64::from(decode(code)).to_bits(), value.to_bits());
            assert_eq!(f64::from(decode(code | sign)).to_bits(), (-value).to_bits());
            assert_eq!(encode(decode(code)), code);
            assert_eq!(encode(decode(code | sign)), code | sign, "signs of zeros are kept");
        }
        // Every value, every midpoint, and both neighbours of each.
        let halves = values.windows(2).map(|pair| f64::midpoint(pair[0], pair[1]));
        for x in values.iter().copied().chain(halves).map(|x| x as f32) {
            for x in [x, x.next_up(), x.next_down(), x * 1.01, x * 0.99] {
                assert_eq!(u32::from(encode(x) & !sign), nearest(x, &values), "{x:e}");
                assert_eq!(encode(-x), encode(x) ^ sign, "{x:e}");
            }
        }
        for huge in [values[values.len() - 1] as f32 * 1.2, f32::MAX, f32::INFINITY] {
            assert_eq!(u32::from(encode(huge)), codes - 1);
        }
    }

    #[test]
    fn every_code_tie_and_neighbour() {
        check(3, 7, 0x7f, e4m3_from_f32, e4m3_to_f32, 0x80);
        check(1, 1, 8, e2m1_from_f32, e2m1_to_f32, 8);
        assert_eq!(e4m3_from_f32(f32::NAN) & 0x7f, 0x7f);
        assert!(e4m3_to_f32(0x7f).is_nan() && e4m3_to_f32(0xff).is_nan());
        assert_eq!(e2m1_from_f32(f32::NAN) & 7, 7);
    }

    #[test]
    fn scales_are_the_next_power_of_two() {
        for code in 0..=254u8 {
            let value = e8m0_to_f32(code);
            assert_eq!(f64::from(value).to_bits(), 2f64.powi(i32::from(code) - 127).to_bits());
            assert_eq!(e8m0_at_least(value), code);
            assert_eq!(e8m0_at_least(value.next_up()), code.saturating_add(1).min(254));
            assert!(code == 0 || e8m0_at_least(value.next_down()) == code);
            assert_eq!((e8m0_reciprocal(code) * value).to_bits(), 1f32.to_bits());
        }
        assert_eq!(e8m0_at_least(f32::INFINITY), 254);
        assert!(e8m0_to_f32(255).is_nan());
    }
}
