//! A directory of weights, mapped and checked; tensors are read as they are asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use statepages_geometry::DraftLayers;
use statepages_model::{MatrixData, ModelConfig, TensorSource, WeightError, Weights};

use crate::config::{self, Quantised};
use crate::error::OpenError;
use crate::form::{FP4_GROUP, FP8_BLOCK};
use crate::header::{self, Dtype, Entry};
use crate::json;
use crate::shard::{Shard, read_text};

/// Names the single file of a directory without an index.
const SINGLE: &str = "model.safetensors";
/// Names the index of a directory of several files.
const INDEX: &str = "model.safetensors.index.json";

/// A model in its published form, with its files mapped and its headers checked. Nobody may change
/// the files while this lives; a file that is cut short ends the process.
#[derive(Debug)]
pub struct Published {
    config: ModelConfig,
    quantised: Quantised,
    files: Vec<Shard>,
    tensors: BTreeMap<String, (usize, Entry)>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Published {
    /// Opens a directory and checks everything but the tensors' elements. `available` is how much
    /// memory the weights may take; a model that takes more is refused.
    pub fn open(directory: &Path, available: Option<u64>) -> Result<Self, OpenError> {
        let (config, quantised) = config::read(&directory.join("config.json"))?;
        let index = directory.join(INDEX);
        let map = if index.exists() {
            let text = read_text(&index).map_err(OpenError::file(&index))?;
            let parsed: Index = json::from_slice(text.as_bytes())
                .map_err(|source| OpenError::Json { path: index, source })?;
            Some(parsed.weight_map)
        } else {
            None
        };
        let names: BTreeSet<String> = match &map {
            Some(map) => map.values().cloned().collect(),
            None => [SINGLE.to_owned()].into(),
        };
        let mut open = Self { config, quantised, files: Vec::new(), tensors: BTreeMap::new() };
        let mut held: BTreeMap<String, String> = BTreeMap::new();
        for name in names {
            let path = shard_path(directory, &name)?;
            let file = Shard::map(&path).map_err(OpenError::file(&path))?;
            for (tensor, entry) in header::read(&path, &file)? {
                held.insert(tensor.clone(), name.clone());
                open.tensors.insert(tensor, (open.files.len(), entry));
            }
            open.files.push(file);
        }
        if let Some(map) = map {
            for tensor in map.keys().chain(held.keys()) {
                let (expected, got) = (map.get(tensor).cloned(), held.get(tensor).cloned());
                if expected != got {
                    return Err(OpenError::Index { tensor: tensor.clone(), expected, got });
                }
            }
        }
        let needed = open.memory();
        match available {
            Some(available) if needed > available => Err(OpenError::Memory { needed, available }),
            _ => Ok(open),
        }
    }

    /// A model that is part of the program: the text of its `config.json` and its one safetensors
    /// file. Checked like a directory; errors name the files as they would be named there.
    pub fn embedded(config: &str, tensors: &'static [u8]) -> Result<Self, OpenError> {
        let (config, quantised) = config::parse(Path::new("config.json"), config)?;
        let file = Shard::Embedded(tensors);
        let entries = header::read(Path::new(SINGLE), &file)?.into_iter();
        let tensors = entries.map(|(name, entry)| (name, (0, entry))).collect();
        Ok(Self { config, quantised, files: vec![file], tensors })
    }

    /// The model's shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Bytes that the weights take in memory.
    pub fn memory(&self) -> u64 {
        let one = |(name, (_, entry)): (&String, &(usize, Entry))| {
            // Matrices stay as they are stored; everything else becomes f32, and a table of token
            // embeddings is no matrix of a product.
            let plain = entry.shape.len() < 2 || name == "embed.weight";
            let floats = matches!(entry.dtype, Dtype::Bf16) && plain;
            if floats { 2 * entry.bytes } else { entry.bytes }
        };
        // One tensor at a time exists twice: as it was copied, and as it is packed. What is mapped
        // takes no memory that others could not have.
        let largest = self.tensors.values().map(|(_, entry)| entry.bytes).max().unwrap_or(0);
        self.tensors.iter().map(one).sum::<u64>() + 4 * largest
    }

    /// Reads all weights. Tensors that the model lacks are an error; those of DSpark draft layers,
    /// which the forward lacks, are passed over.
    pub fn load(self) -> Result<Weights, WeightError> {
        let config = self.config.clone();
        let mut source = Reading { published: &self, unused: self.tensors.keys().collect() };
        let weights = Weights::load(&config, &mut source)?;
        let mut unused = source.unused;
        if config.cache.draft_layers == DraftLayers::DSpark {
            unused.retain(|name| !name.starts_with("mtp."));
        }
        match unused.first() {
            None => Ok(weights),
            Some(name) => {
                Err(WeightError::Surplus { name: (*name).clone(), others: unused.len() - 1 })
            }
        }
    }
}

/// A file of the directory itself: an index names no file elsewhere.
fn shard_path(directory: &Path, name: &str) -> Result<PathBuf, OpenError> {
    if Path::new(name).file_name().is_some_and(|file| file == name) {
        return Ok(directory.join(name));
    }
    Err(OpenError::Shard {
        path: directory.join(INDEX),
        tensor: None,
        what: "file",
        expected: "a name in the same directory".into(),
        got: name.into(),
    })
}

struct Reading<'a> {
    published: &'a Published,
    unused: BTreeSet<&'a String>,
}

impl Reading<'_> {
    fn entry(&mut self, name: &str) -> Option<(usize, Entry)> {
        self.unused.remove(&name.to_owned());
        self.published.tensors.get(name).cloned()
    }

    fn expect(&mut self, name: &str) -> Result<(usize, Entry), WeightError> {
        self.entry(name).ok_or_else(|| WeightError::Missing { name: name.into() })
    }

    /// A tensor's bytes, in place.
    fn bytes(&self, (file, entry): &(usize, Entry)) -> &[u8] {
        &self.published.files[*file][entry.offset as usize..][..entry.bytes as usize]
    }

    /// The scales of a tensor of codes.
    fn scales(&mut self, name: &str, shape: &[usize]) -> Result<Vec<u8>, WeightError> {
        let stem = name.strip_suffix(".weight").unwrap_or(name);
        let name = format!("{stem}.scale");
        let at = self.expect(&name)?;
        must_be(&name, &at.1, Dtype::E8m0)?;
        must_have(&name, &at.1, shape)?;
        let scales = self.bytes(&at);
        match scales.iter().position(|&scale| scale == E8M0_NAN) {
            Some(index) => Err(WeightError::not_finite(&name, index, f32::NAN)),
            None => Ok(scales.to_vec()),
        }
    }

    /// A tensor of numbers. `expected` is what it may be.
    fn plain(
        &mut self,
        name: &str,
        shape: &[usize],
        expected: &str,
    ) -> Result<MatrixData, WeightError> {
        let at = self.expect(name)?;
        if !matches!(at.1.dtype, Dtype::F32 | Dtype::Bf16) {
            return Err(format_error(name, expected, at.1.dtype));
        }
        must_have(name, &at.1, shape)?;
        let bytes = self.bytes(&at);
        if at.1.dtype == Dtype::F32 {
            let words = bytes.as_chunks().0.iter();
            return Ok(MatrixData::F32(words.map(|word| f32::from_le_bytes(*word)).collect()));
        }
        let halves = bytes.as_chunks().0.iter();
        Ok(MatrixData::Bf16(halves.map(|half| u16::from_le_bytes(*half)).collect()))
    }
}

/// What a tensor that is not quantised may be.
const PLAIN: &str = "BF16 or F32";
/// What a matrix may be where the config says that some are quantised.
const PLAIN_OR_FP8: &str = "F8_E4M3, BF16 or F32";
/// The one e8m0 code that is no power of two.
const E8M0_NAN: u8 = 0xff;

fn format_error(name: &str, expected: &str, got: Dtype) -> WeightError {
    let (name, expected) = (name.into(), expected.into());
    WeightError::Format { name, expected, got: got.name().into() }
}

fn must_be(name: &str, entry: &Entry, dtype: Dtype) -> Result<(), WeightError> {
    if entry.dtype == dtype { Ok(()) } else { Err(format_error(name, dtype.name(), entry.dtype)) }
}

fn must_have(name: &str, entry: &Entry, shape: &[usize]) -> Result<(), WeightError> {
    if entry.shape == shape {
        return Ok(());
    }
    let (name, expected) = (name.into(), shape.to_vec());
    Err(WeightError::Shape { name, expected, got: entry.shape.clone() })
}

impl TensorSource for Reading<'_> {
    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        match self.plain(name, shape, PLAIN)? {
            MatrixData::F32(values) => Ok(values),
            data => Ok(data.expand(1, shape.iter().product())),
        }
    }

    fn matrix(&mut self, name: &str, n: usize, k: usize) -> Result<MatrixData, WeightError> {
        let entry = self.expect(name)?;
        let Quantised { fp8, fp4_experts } = self.published.quantised;
        // The config says how experts are stored; other matrices may be plain in any model.
        let fp4 = fp4_experts && name.contains(".ffn.experts.");
        match entry.1.dtype {
            Dtype::Fp4 if fp4 => {
                if !k.is_multiple_of(FP4_GROUP) {
                    let expected = format!("a multiple of {FP4_GROUP} columns for fp4");
                    let got = k.to_string();
                    return Err(WeightError::Format { name: name.into(), expected, got });
                }
                must_have(name, &entry.1, &[n, k / 2])?;
                let codes = self.bytes(&entry).to_vec();
                Ok(MatrixData::Fp4 { codes, scales: self.scales(name, &[n, k / FP4_GROUP])? })
            }
            got if fp4 => Err(format_error(name, Dtype::Fp4.name(), got)),
            Dtype::Fp8 if fp8 => {
                must_have(name, &entry.1, &[n, k])?;
                let codes = self.bytes(&entry).to_vec();
                let blocks = [n.div_ceil(FP8_BLOCK), k.div_ceil(FP8_BLOCK)];
                Ok(MatrixData::Fp8 { codes, scales: self.scales(name, &blocks)? })
            }
            Dtype::Fp8 => {
                Err(format_error(name, "no F8_E4M3 without quantization_config", entry.1.dtype))
            }
            _ => self.plain(name, &[n, k], if fp8 { PLAIN_OR_FP8 } else { PLAIN }),
        }
    }

    fn ids(&mut self, name: &str, shape: &[usize], below: u32) -> Result<Vec<u32>, WeightError> {
        let at = self.expect(name)?;
        must_have(name, &at.1, shape)?;
        let bytes = self.bytes(&at);
        let ids: Vec<i64> = match at.1.dtype {
            Dtype::I64 => bytes.as_chunks().0.iter().map(|id| i64::from_le_bytes(*id)).collect(),
            Dtype::I32 => {
                bytes.as_chunks().0.iter().map(|id| i64::from(i32::from_le_bytes(*id))).collect()
            }
            got => return Err(format_error(name, "I64 or I32", got)),
        };
        let id = |(index, id): (usize, i64)| match u32::try_from(id) {
            Ok(id) if id < below => Ok(id),
            _ => Err(WeightError::id(name, index, below, id)),
        };
        ids.into_iter().enumerate().map(id).collect()
    }
}
