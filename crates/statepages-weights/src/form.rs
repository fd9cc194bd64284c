//! Rounds weights to the formats that models are published in.

use statepages_model::minifloat::{
    E2M1_MAX, E4M3_MAX, e2m1_from_f32, e4m3_from_f32, e8m0_at_least, e8m0_reciprocal, largest,
};
use statepages_model::{MatrixData, TensorSource, WeightError};

/// Side of an fp8 block.
pub(crate) const FP8_BLOCK: usize = 128;
/// Columns of an fp4 row that share a scale.
pub(crate) const FP4_GROUP: usize = 32;

/// In which formats matrices are kept. What is no matrix of a product is kept as published:
/// norms and embedding in bf16, everything else in f32.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WeightForm {
    /// f32, all of them.
    F32,
    /// bf16, all of them.
    Bf16,
    /// Routed experts in fp4, routers, compressors, embedding and head in bf16, the others in fp8.
    Published,
}

/// Another source's tensors, rounded to a form.
pub struct RoundedTensors<S> {
    source: S,
    form: WeightForm,
}

impl<S: TensorSource> RoundedTensors<S> {
    /// Rounds what `source` gives.
    pub const fn new(source: S, form: WeightForm) -> Self {
        Self { source, form }
    }
}

impl<S: TensorSource> TensorSource for RoundedTensors<S> {
    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        let mut values = self.source.floats(name, shape)?;
        if is_half(self.form, name) {
            for x in &mut values {
                *x = f32::from_bits(u32::from(bf16(*x)) << 16);
            }
        }
        Ok(values)
    }

    fn matrix(&mut self, name: &str, n: usize, k: usize) -> Result<MatrixData, WeightError> {
        round(self.form, name, n, k, &self.source.matrix(name, n, k)?)
    }

    fn ids(&mut self, name: &str, shape: &[usize], below: u32) -> Result<Vec<u32>, WeightError> {
        self.source.ids(name, shape, below)
    }
}

/// True for tensors, no matrices of a product, that a form keeps in bf16.
pub(crate) fn is_half(form: WeightForm, name: &str) -> bool {
    form != WeightForm::F32 && (name.ends_with("norm.weight") || name == "embed.weight")
}

/// The upper half of the f32 that is nearest, ties to even.
pub(crate) fn bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// A matrix in the format that a form keeps it in.
pub(crate) fn round(
    form: WeightForm,
    name: &str,
    n: usize,
    k: usize,
    data: &MatrixData,
) -> Result<MatrixData, WeightError> {
    let halves =
        |data: &MatrixData| MatrixData::Bf16(data.expand(n, k).into_iter().map(bf16).collect());
    let plain = ["gate.", "compressor.", "weights_proj.", "head."];
    match form {
        WeightForm::F32 => Ok(MatrixData::F32(data.expand(n, k))),
        WeightForm::Bf16 => Ok(halves(data)),
        WeightForm::Published if name.contains(".ffn.experts.") => {
            if !k.is_multiple_of(FP4_GROUP) {
                let expected = format!("a multiple of {FP4_GROUP} columns for fp4");
                return Err(WeightError::Format {
                    name: name.into(),
                    expected,
                    got: k.to_string(),
                });
            }
            Ok(to_fp4(&data.expand(n, k)))
        }
        WeightForm::Published if plain.iter().any(|part| name.contains(part)) => Ok(halves(data)),
        WeightForm::Published => Ok(to_fp8(n, k, &data.expand(n, k))),
    }
}

fn to_fp8(n: usize, k: usize, values: &[f32]) -> MatrixData {
    let (down, across) = (n.div_ceil(FP8_BLOCK), k.div_ceil(FP8_BLOCK));
    let mut tops = vec![0.0f32; down * across];
    let block = |i: usize| i / k / FP8_BLOCK * across + i % k / FP8_BLOCK;
    for (i, x) in values.iter().enumerate() {
        tops[block(i)] = tops[block(i)].max(x.abs());
    }
    let scale = |&top: &f32| e8m0_at_least((top / E4M3_MAX).max(f32::MIN_POSITIVE));
    let scales: Vec<u8> = tops.iter().map(scale).collect();
    let code = |(i, x): (usize, &f32)| e4m3_from_f32(x * e8m0_reciprocal(scales[block(i)]));
    MatrixData::Fp8 { codes: values.iter().enumerate().map(code).collect(), scales }
}

fn to_fp4(values: &[f32]) -> MatrixData {
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for group in values.chunks_exact(FP4_GROUP) {
        let scale = e8m0_at_least((largest(group) / E2M1_MAX).max(f32::MIN_POSITIVE));
        let by = e8m0_reciprocal(scale);
        scales.push(scale);
        let pairs = group.as_chunks().0.iter();
        codes.extend(pairs.map(|[a, b]| e2m1_from_f32(a * by) | e2m1_from_f32(b * by) << 4));
    }
    MatrixData::Fp4 { codes, scales }
}
