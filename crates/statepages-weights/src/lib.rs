//! DeepSeek-V4 (DSV4) weights in their published form: a directory of `config.json` and safetensors
//! files with the public tensor names.
//!
//! | stored as | dtype | scales, in the tensor's `.scale` |
//! | --- | --- | --- |
//! | fp8 | `F8_E4M3` `[n, k]` | `F8_E8M0` `[ceil(n / 128), ceil(k / 128)]` |
//! | fp4, experts only | `I8` `[n, k / 2]`, the even column in the low four bits | `F8_E8M0` `[n, k / 32]` |
//! | plain | `BF16`, `F32` | none |
//! | ids | `I64`, `I32` | none |
//!
//! [`Published::open`] checks names, dtypes and byte ranges of all files and the room that the model
//! takes before any tensor is read; files are mapped, and tensors are read from the map one at a time,
//! as the model asks for them. [`Published::embedded`] does the same for a model that is part of the
//! program. [`write_published`] is the other direction.

mod config;
mod error;
mod form;
mod header;
mod json;
mod memory;
mod shard;
mod source;
mod write;

pub use config::read_config;
pub use error::OpenError;
pub use form::{RoundedTensors, WeightForm};
pub use json::JsonError;
pub use memory::available_memory;
pub use shard::read_text;
pub use source::Published;
pub use write::{WriteError, write_published};
