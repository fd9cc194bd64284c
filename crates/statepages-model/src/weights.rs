//! The model's tensors, under their public names, packed for the kernels.

use std::fmt;

use statepages_geometry::CSA_RATIO;

use crate::config::{ConfigError, ModelConfig};
use crate::kernel::attend::HEADS;
use crate::kernel::matrix::{Matrix, MatrixData};
use crate::seeded::SeededTensors;

/// Gives tensors by public name. Whoever implements it may also refuse surplus tensors once all
/// have been asked for.
pub trait TensorSource {
    /// Row-major f32 elements of the tensor.
    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError>;

    /// The `[n, k]` tensor of that name, in the format it is stored in.
    fn matrix(&mut self, name: &str, n: usize, k: usize) -> Result<MatrixData, WeightError> {
        self.floats(name, &[n, k]).map(MatrixData::F32)
    }

    /// Row-major ids of the tensor, each below `below`.
    fn ids(&mut self, name: &str, shape: &[usize], below: u32) -> Result<Vec<u32>, WeightError>;
}

/// Weights that cannot be had.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WeightError {
    /// The model's shape is refused.
    Config(ConfigError),
    /// The source lacks a tensor.
    Missing {
        /// Its public name.
        name: String,
    },
    /// A tensor has another shape.
    Shape {
        /// Its public name.
        name: String,
        /// The shape that the config asks for.
        expected: Vec<usize>,
        /// The shape that the source has.
        got: Vec<usize>,
    },
    /// A tensor is stored in a format that it may not have, or with other scales than it needs.
    Format {
        /// Its public name.
        name: String,
        /// What it may be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// The source has tensors that the model lacks.
    Surplus {
        /// Public name of the first, by name.
        name: String,
        /// How many more there are.
        others: usize,
    },
    /// A tensor cannot be read.
    Unreadable {
        /// Its public name.
        name: String,
        /// Why.
        message: String,
    },
    /// An element is not finite, an id is too large, or stands twice in a row.
    Element {
        /// The tensor's public name.
        name: String,
        /// Row-major index.
        index: usize,
        /// What it must be.
        expected: String,
        /// The element, as text.
        got: String,
    },
}

impl fmt::Display for WeightError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::Missing { name } => write!(f, "tensor {name} is missing"),
            Self::Shape { name, expected, got } => {
                write!(f, "tensor {name}: expected shape {expected:?}, got {got:?}")
            }
            Self::Format { name, expected, got } => {
                write!(f, "tensor {name}: expected {expected}, got {got}")
            }
            Self::Surplus { name, others } => {
                write!(f, "tensor {name} is none of the model's, nor are {others} others")
            }
            Self::Unreadable { name, message } => write!(f, "tensor {name}: {message}"),
            Self::Element { name, index, expected, got } => {
                write!(f, "tensor {name}: element {index}: expected {expected}, got {got}")
            }
        }
    }
}

impl std::error::Error for WeightError {}

impl WeightError {
    /// An element that is NaN or infinite.
    pub fn not_finite(name: &str, index: usize, got: f32) -> Self {
        let (name, got) = (name.into(), got.to_string());
        Self::Element { name, index, expected: "a finite number".into(), got }
    }

    /// An id that is not below `below`.
    pub fn id(name: &str, index: usize, below: u32, got: i64) -> Self {
        let (name, expected) = (name.into(), format!("an id below {below}"));
        Self::Element { name, index, expected, got: got.to_string() }
    }
}

impl From<ConfigError> for WeightError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

/// The trunk's weights, and those of its multi-token-prediction block.
pub struct Weights {
    pub(crate) config: ModelConfig,
    /// `[vocab][hidden]`.
    pub(crate) embed: Vec<f32>,
    pub(crate) head: Matrix,
    pub(crate) norm: Vec<f32>,
    pub(crate) hc_head: HyperWeights,
    pub(crate) layers: Vec<LayerWeights>,
    pub(crate) draft: Option<DraftWeights>,
}

/// The multi-token-prediction block behind the trunk.
pub(crate) struct DraftWeights {
    pub(crate) e_proj: Matrix,
    pub(crate) h_proj: Matrix,
    pub(crate) enorm: Vec<f32>,
    pub(crate) hnorm: Vec<f32>,
    pub(crate) layer: LayerWeights,
    pub(crate) hc_head: HyperWeights,
    pub(crate) norm: Vec<f32>,
}

pub(crate) struct HyperWeights {
    pub(crate) project: Matrix,
    pub(crate) base: Vec<f32>,
    pub(crate) scale: Vec<f32>,
}

pub(crate) struct LayerWeights {
    pub(crate) hc_attn: HyperWeights,
    pub(crate) attn_norm: Vec<f32>,
    pub(crate) attn: AttentionWeights,
    pub(crate) hc_ffn: HyperWeights,
    pub(crate) ffn_norm: Vec<f32>,
    pub(crate) ffn: MoeWeights,
}

pub(crate) struct AttentionWeights {
    pub(crate) wq_a: Matrix,
    pub(crate) q_norm: Vec<f32>,
    pub(crate) wq_b: Matrix,
    pub(crate) wkv: Matrix,
    pub(crate) kv_norm: Vec<f32>,
    /// By head, zero for the heads that pad to a multiple of [`HEADS`].
    pub(crate) sinks: Vec<f32>,
    /// One per group.
    pub(crate) wo_a: Vec<Matrix>,
    pub(crate) wo_b: Matrix,
    pub(crate) compressed: Option<CompressedWeights>,
}

/// What a layer with compressed entries adds.
pub(crate) struct CompressedWeights {
    pub(crate) main: CompressorWeights,
    /// Only in CSA layers.
    pub(crate) indexer: Option<IndexerWeights>,
}

pub(crate) struct CompressorWeights {
    /// `[ratio][columns]`.
    pub(crate) ape: Vec<f32>,
    pub(crate) wkv: Matrix,
    pub(crate) wgate: Matrix,
    pub(crate) norm: Vec<f32>,
}

pub(crate) struct IndexerWeights {
    pub(crate) wq_b: Matrix,
    pub(crate) weights_proj: Matrix,
    pub(crate) compressor: CompressorWeights,
}

pub(crate) struct MoeWeights {
    pub(crate) gate: Matrix,
    pub(crate) routing: Routing,
    pub(crate) experts: Vec<ExpertWeights>,
    pub(crate) shared: ExpertWeights,
}

pub(crate) enum Routing {
    /// Added to the scores for the choice alone, `[experts]`.
    Bias(Vec<f32>),
    /// Experts by token id, `[vocab][experts per token]`.
    Hash(Vec<u32>),
}

pub(crate) struct ExpertWeights {
    pub(crate) w1: Matrix,
    pub(crate) w2: Matrix,
    pub(crate) w3: Matrix,
}

impl Weights {
    /// All tensors of the trunk, and of the multi-token-prediction block where the config has one,
    /// from a source.
    pub fn load(config: &ModelConfig, source: &mut dyn TensorSource) -> Result<Self, WeightError> {
        config.validate()?;
        let mut load = Loader { config, source };
        let (vocab, hidden) = (config.vocab_size as usize, config.hidden_size as usize);
        let streams = config.hc_mult as usize;
        Ok(Self {
            embed: load.floats("embed.weight", &[vocab, hidden])?,
            head: load.matrix("head", vocab, hidden)?,
            norm: load.floats("norm.weight", &[hidden])?,
            hc_head: load.hyper("hc_head", streams, 1)?,
            layers: (0..config.cache.num_hidden_layers as usize)
                .map(|layer| {
                    let hashed = layer < config.num_hash_layers as usize;
                    load.layer(&format!("layers.{layer}."), config.trunk_ratios()[layer], hashed)
                })
                .collect::<Result<_, _>>()?,
            draft: if config.has_draft() { Some(load.draft()?) } else { None },
            config: config.clone(),
        })
    }

    /// Weights drawn from a seed, of sizes that put every non-linearity in play.
    pub fn seeded(config: &ModelConfig, seed: u64) -> Result<Self, WeightError> {
        Self::load(config, &mut SeededTensors::new(seed))
    }

    /// The shape they belong to.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }
}

/// The first element that stands in its row of `width` already.
fn repeated(ids: &[u32], width: usize) -> Option<usize> {
    (0..ids.len()).find(|&i| ids[i - i % width..i].contains(&ids[i]))
}

struct Loader<'a> {
    config: &'a ModelConfig,
    source: &'a mut dyn TensorSource,
}

impl Loader<'_> {
    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        let values = self.source.floats(name, shape)?;
        assert_eq!(values.len(), shape.iter().product::<usize>(), "{name} has its shape");
        if let Some(index) = values.iter().position(|x| !x.is_finite()) {
            return Err(WeightError::not_finite(name, index, values[index]));
        }
        Ok(values)
    }

    fn stored(&mut self, name: &str, n: usize, k: usize) -> Result<MatrixData, WeightError> {
        let name = format!("{name}.weight");
        let data = self.source.matrix(&name, n, k)?;
        let finite = |values: &[f32]| values.iter().position(|x| !x.is_finite());
        let bad = match &data {
            MatrixData::F32(values) => {
                assert_eq!(values.len(), n * k, "{name} has its shape");
                finite(values).map(|index| (index, values[index]))
            }
            MatrixData::Bf16(_) | MatrixData::Fp8 { .. } | MatrixData::Fp4 { .. } => {
                let values = data.expand(n, k);
                finite(&values).map(|index| (index, values[index]))
            }
        };
        match bad {
            Some((index, got)) => Err(WeightError::not_finite(&name, index, got)),
            None => Ok(data),
        }
    }

    fn matrix(&mut self, name: &str, n: usize, k: usize) -> Result<Matrix, WeightError> {
        Ok(Matrix::new(n, k, &self.stored(name, n, k)?))
    }

    fn norm(&mut self, name: &str, n: usize) -> Result<Vec<f32>, WeightError> {
        self.floats(&format!("{name}.weight"), &[n])
    }

    fn hyper(&mut self, name: &str, n: usize, scales: usize) -> Result<HyperWeights, WeightError> {
        let k = (self.config.hc_mult * self.config.hidden_size) as usize;
        Ok(HyperWeights {
            project: Matrix::pack(n, k, &self.floats(&format!("{name}_fn"), &[n, k])?),
            base: self.floats(&format!("{name}_base"), &[n])?,
            scale: self.floats(&format!("{name}_scale"), &[scales])?,
        })
    }

    fn draft(&mut self) -> Result<DraftWeights, WeightError> {
        let hidden = self.config.hidden_size as usize;
        let name = |tensor: &str| format!("mtp.0.{tensor}");
        Ok(DraftWeights {
            e_proj: self.matrix(&name("e_proj"), hidden, hidden)?,
            h_proj: self.matrix(&name("h_proj"), hidden, hidden)?,
            enorm: self.norm(&name("enorm"), hidden)?,
            hnorm: self.norm(&name("hnorm"), hidden)?,
            // The draft block looks no experts up by token id.
            layer: self.layer("mtp.0.", 0, false)?,
            hc_head: self.hyper(&name("hc_head"), self.config.hc_mult as usize, 1)?,
            norm: self.norm(&name("norm"), hidden)?,
        })
    }

    fn layer(
        &mut self,
        prefix: &str,
        ratio: u32,
        hashed: bool,
    ) -> Result<LayerWeights, WeightError> {
        let hidden = self.config.hidden_size as usize;
        let streams = self.config.hc_mult as usize;
        let mixes = (2 + streams) * streams;
        let name = |tensor: &str| format!("{prefix}{tensor}");
        Ok(LayerWeights {
            hc_attn: self.hyper(&name("hc_attn"), mixes, 3)?,
            attn_norm: self.norm(&name("attn_norm"), hidden)?,
            attn: self.attention(&name("attn."), ratio)?,
            hc_ffn: self.hyper(&name("hc_ffn"), mixes, 3)?,
            ffn_norm: self.norm(&name("ffn_norm"), hidden)?,
            ffn: self.moe(&name("ffn."), hashed)?,
        })
    }

    fn attention(&mut self, prefix: &str, ratio: u32) -> Result<AttentionWeights, WeightError> {
        let c = self.config;
        let (hidden, heads) = (c.hidden_size as usize, c.num_attention_heads as usize);
        let (d, rank) = (c.cache.head_dim as usize, c.q_lora_rank as usize);
        let (groups, group) = (c.o_groups as usize, c.o_lora_rank as usize);
        let name = |tensor: &str| format!("{prefix}{tensor}");
        let mut sinks = self.floats(&name("attn_sink"), &[heads])?;
        sinks.resize(heads.next_multiple_of(HEADS), 0.0);
        let inputs = heads * d / groups;
        let wo_a = self.stored(&name("wo_a"), groups * group, inputs)?;
        Ok(AttentionWeights {
            wq_a: self.matrix(&name("wq_a"), rank, hidden)?,
            q_norm: self.norm(&name("q_norm"), rank)?,
            wq_b: self.matrix(&name("wq_b"), heads * d, rank)?,
            wkv: self.matrix(&name("wkv"), d, hidden)?,
            kv_norm: self.norm(&name("kv_norm"), d)?,
            sinks,
            wo_a: (0..groups)
                .map(|i| wo_a.rows(groups * group, inputs, i * group, group))
                .map(|rows| Matrix::new(group, inputs, &rows))
                .collect(),
            wo_b: self.matrix(&name("wo_b"), hidden, groups * group)?,
            compressed: if ratio == 0 { None } else { Some(self.compressed(prefix, ratio)?) },
        })
    }

    fn compressed(&mut self, prefix: &str, ratio: u32) -> Result<CompressedWeights, WeightError> {
        let c = self.config;
        let main = self.compressor(&format!("{prefix}compressor."), ratio, c.cache.head_dim)?;
        if ratio != CSA_RATIO {
            return Ok(CompressedWeights { main, indexer: None });
        }
        let (heads, columns) = (c.index_n_heads as usize, c.cache.index_head_dim as usize);
        let name = |tensor: &str| format!("{prefix}indexer.{tensor}");
        let indexer = IndexerWeights {
            wq_b: self.matrix(&name("wq_b"), heads * columns, c.q_lora_rank as usize)?,
            weights_proj: self.matrix(&name("weights_proj"), heads, c.hidden_size as usize)?,
            compressor: self.compressor(&name("compressor."), ratio, c.cache.index_head_dim)?,
        };
        Ok(CompressedWeights { main, indexer: Some(indexer) })
    }

    fn compressor(
        &mut self,
        prefix: &str,
        ratio: u32,
        width: u32,
    ) -> Result<CompressorWeights, WeightError> {
        let (width, hidden) = (width as usize, self.config.hidden_size as usize);
        let columns = if ratio == CSA_RATIO { 2 * width } else { width };
        let name = |tensor: &str| format!("{prefix}{tensor}");
        Ok(CompressorWeights {
            ape: self.floats(&name("ape"), &[ratio as usize, columns])?,
            wkv: self.matrix(&name("wkv"), columns, hidden)?,
            wgate: self.matrix(&name("wgate"), columns, hidden)?,
            norm: self.norm(&name("norm"), width)?,
        })
    }

    fn moe(&mut self, prefix: &str, hashed: bool) -> Result<MoeWeights, WeightError> {
        let c = self.config;
        let (experts, hidden) = (c.n_routed_experts as usize, c.hidden_size as usize);
        let name = |tensor: &str| format!("{prefix}{tensor}");
        let routing = if hashed {
            let shape = [c.vocab_size as usize, c.num_experts_per_tok as usize];
            let tensor = name("gate.tid2eid");
            let ids = self.source.ids(&tensor, &shape, c.n_routed_experts)?;
            if let Some(index) = ids.iter().position(|&id| id >= c.n_routed_experts) {
                let (below, got) = (c.n_routed_experts, i64::from(ids[index]));
                return Err(WeightError::id(&tensor, index, below, got));
            }
            if let Some(index) = repeated(&ids, shape[1]) {
                let expected = "each expert of a row once".into();
                let got = format!("{} again", ids[index]);
                return Err(WeightError::Element { name: tensor, index, expected, got });
            }
            Routing::Hash(ids)
        } else {
            Routing::Bias(self.floats(&name("gate.bias"), &[experts])?)
        };
        Ok(MoeWeights {
            gate: self.matrix(&name("gate"), experts, hidden)?,
            routing,
            experts: (0..experts)
                .map(|e| self.expert(&name(&format!("experts.{e}."))))
                .collect::<Result<_, _>>()?,
            shared: self.expert(&name("shared_experts."))?,
        })
    }

    fn expert(&mut self, prefix: &str) -> Result<ExpertWeights, WeightError> {
        let hidden = self.config.hidden_size as usize;
        let inner = self.config.moe_intermediate_size as usize;
        Ok(ExpertWeights {
            w1: self.matrix(&format!("{prefix}w1"), inner, hidden)?,
            w2: self.matrix(&format!("{prefix}w2"), hidden, inner)?,
            w3: self.matrix(&format!("{prefix}w3"), inner, hidden)?,
        })
    }
}
