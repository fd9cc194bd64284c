//! Why a directory of weights cannot be used.

use std::fmt;
use std::path::{Path, PathBuf};

use statepages_model::ConfigError;

use crate::json::JsonError;

/// A directory that holds no usable model. No tensor has been read.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// A file cannot be read.
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file's JSON is not what it must be.
    Json {
        /// The file.
        path: PathBuf,
        /// Why, and in which field.
        source: JsonError,
    },
    /// A field of `config.json` asks for what the forward lacks.
    Field {
        /// Public name of the field.
        field: &'static str,
        /// What the forward has.
        expected: String,
        /// The field's value.
        got: String,
    },
    /// The model's shape is refused.
    Config(ConfigError),
    /// A safetensors file contradicts itself.
    Shard {
        /// The file.
        path: PathBuf,
        /// The tensor at hand, where there is one.
        tensor: Option<String>,
        /// What was looked at.
        what: &'static str,
        /// What it must be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// The index names tensors of a file otherwise than the file does.
    Index {
        /// The tensor.
        tensor: String,
        /// File that the index names, if it does.
        expected: Option<String>,
        /// File that holds the tensor, if one does.
        got: Option<String>,
    },
    /// The model takes more memory than there is.
    Memory {
        /// Bytes that the model takes, activations and caches apart.
        needed: u64,
        /// Bytes that there are.
        available: u64,
    },
}

impl OpenError {
    pub(crate) fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        |source| Self::File { path: path.into(), source }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, source } => write!(f, "{}: {source}", path.display()),
            Self::Json { path, source } => write!(f, "{}: {source}", path.display()),
            Self::Field { field, expected, got } => {
                write!(f, "config.json: {field}: expected {expected}, got {got}")
            }
            Self::Config(error) => write!(f, "config.json: {error}"),
            Self::Shard { path, tensor, what, expected, got } => {
                write!(f, "{}: ", path.display())?;
                if let Some(tensor) = tensor {
                    write!(f, "tensor {tensor}: ")?;
                }
                write!(f, "{what}: expected {expected}, got {got}")
            }
            Self::Index { tensor, expected, got } => {
                let name = |file: &Option<String>| file.clone().unwrap_or_else(|| "no file".into());
                let (expected, got) = (name(expected), name(got));
                write!(f, "tensor {tensor}: the index says {expected}, but {got} holds it")
            }
            Self::Memory { needed, available } => write!(
                f,
                "the model takes {needed} bytes of memory, {available} are available; nothing was \
                 read"
            ),
        }
    }
}

// Its text holds that of its cause; a source beside it would be printed a second time.
impl std::error::Error for OpenError {}
