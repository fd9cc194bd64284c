//! Writes a model in its published form.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::num::NonZeroUsize;
use std::path::Path;

use serde_json::json;
use statepages_model::{MatrixData, ModelConfig, TensorSource, WeightError, Weights};

use crate::config::{Quantised, RawConfig};
use crate::form::{FP4_GROUP, FP8_BLOCK, WeightForm, bf16, is_half, round};
use crate::header::Dtype;

/// A model that was not written, or not wholly.
#[derive(Debug)]
#[non_exhaustive]
pub enum WriteError {
    /// The source has not what the config asks for.
    Weights(WeightError),
    /// A file cannot be written.
    File(std::io::Error),
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Weights(error) => error.fmt(f),
            Self::File(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for WriteError {}

impl From<std::io::Error> for WriteError {
    fn from(error: std::io::Error) -> Self {
        Self::File(error)
    }
}

/// Writes `config.json` and `shards` safetensors files with all tensors that a model of `config`
/// has, rounded to `form`, into an existing directory.
pub fn write_published(
    directory: &Path,
    config: &ModelConfig,
    source: &mut dyn TensorSource,
    form: WeightForm,
    shards: NonZeroUsize,
) -> Result<(), WriteError> {
    let mut writing = Writing { source, form, tensors: BTreeMap::new() };
    // Loading asks for every tensor of the model by name, and for nothing else.
    Weights::load(config, &mut writing).map_err(WriteError::Weights)?;
    let quantised = Quantised {
        fp8: form == WeightForm::Published,
        fp4_experts: form == WeightForm::Published,
    };
    let text = serde_json::to_string_pretty(&RawConfig::of(config, quantised))
        .expect("a config is plain data");
    std::fs::write(directory.join("config.json"), text + "\n")?;
    let tensors: Vec<(String, Stored)> = writing.tensors.into_iter().collect();
    let each = tensors.len().div_ceil(shards.get());
    let mut map = serde_json::Map::new();
    for (i, tensors) in tensors.chunks(each).enumerate() {
        let name = match shards.get() {
            1 => "model.safetensors".to_owned(),
            n => format!("model-{:05}-of-{n:05}.safetensors", i + 1),
        };
        write_shard(&directory.join(&name), tensors)?;
        map.extend(tensors.iter().map(|(tensor, _)| (tensor.clone(), json!(name))));
    }
    if shards.get() > 1 {
        let index = json!({ "metadata": {}, "weight_map": map });
        std::fs::write(directory.join("model.safetensors.index.json"), index.to_string() + "\n")?;
    }
    Ok(())
}

struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

fn write_shard(path: &Path, tensors: &[(String, Stored)]) -> std::io::Result<()> {
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    header.insert("__metadata__".into(), json!({ "format": "pt" }));
    for (name, tensor) in tensors {
        let begin = end;
        end += tensor.bytes.len();
        let entry = json!({
            "dtype": tensor.dtype.name(),
            "shape": tensor.shape,
            "data_offsets": [begin, end],
        });
        header.insert(name.clone(), entry);
    }
    let mut text = serde_json::Value::Object(header).to_string();
    // Readers that map the file want tensors aligned to eight bytes.
    text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
    let mut out = BufWriter::new(File::create(path)?);
    out.write_all(&(text.len() as u64).to_le_bytes())?;
    out.write_all(text.as_bytes())?;
    for (_, tensor) in tensors {
        out.write_all(&tensor.bytes)?;
    }
    out.flush()
}

struct Writing<'a> {
    source: &'a mut dyn TensorSource,
    form: WeightForm,
    tensors: BTreeMap<String, Stored>,
}

fn words<const N: usize, T: Copy>(xs: &[T], word: fn(T) -> [u8; N]) -> Vec<u8> {
    xs.iter().flat_map(|&x| word(x)).collect()
}

impl Writing<'_> {
    fn put(&mut self, name: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) {
        self.tensors.insert(name.into(), Stored { dtype, shape: shape.into(), bytes });
    }

    fn put_bf16(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        self.put(name, Dtype::Bf16, shape, words(values, |x| bf16(x).to_le_bytes()));
    }

    fn put_f32(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        self.put(name, Dtype::F32, shape, words(values, f32::to_le_bytes));
    }

    fn put_matrix(&mut self, name: &str, n: usize, k: usize, data: &MatrixData) {
        match data {
            MatrixData::F32(values) => self.put_f32(name, &[n, k], values),
            MatrixData::Bf16(halves) => {
                self.put(name, Dtype::Bf16, &[n, k], words(halves, u16::to_le_bytes));
            }
            MatrixData::Fp8 { codes, scales } => {
                let blocks = [n.div_ceil(FP8_BLOCK), k.div_ceil(FP8_BLOCK)];
                self.put(&scale_name(name), Dtype::E8m0, &blocks, scales.clone());
                self.put(name, Dtype::Fp8, &[n, k], codes.clone());
            }
            MatrixData::Fp4 { codes, scales } => {
                self.put(&scale_name(name), Dtype::E8m0, &[n, k / FP4_GROUP], scales.clone());
                self.put(name, Dtype::Fp4, &[n, k / 2], codes.clone());
            }
        }
    }
}

fn scale_name(name: &str) -> String {
    format!("{}.scale", name.strip_suffix(".weight").unwrap_or(name))
}

impl TensorSource for Writing<'_> {
    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        let values = self.source.floats(name, shape)?;
        if is_half(self.form, name) {
            self.put_bf16(name, shape, &values);
        } else {
            self.put_f32(name, shape, &values);
        }
        Ok(values)
    }

    fn matrix(&mut self, name: &str, n: usize, k: usize) -> Result<MatrixData, WeightError> {
        let data = round(self.form, name, n, k, &self.source.matrix(name, n, k)?)?;
        self.put_matrix(name, n, k, &data);
        Ok(data)
    }

    fn ids(&mut self, name: &str, shape: &[usize], below: u32) -> Result<Vec<u32>, WeightError> {
        let ids = self.source.ids(name, shape, below)?;
        let bytes = words(&ids, |id| i64::from(id).to_le_bytes());
        self.put(name, Dtype::I64, shape, bytes);
        Ok(ids)
    }
}
