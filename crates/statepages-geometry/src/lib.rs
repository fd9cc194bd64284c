//! Byte geometry of DeepSeek-V4 (DSV4) caches: pages, slots, checkpoint images, addresses.
//!
//! [`Dsv4Geometry::new`] derives everything from a [`CacheConfig`] (the model's shape) and
//! [`CacheOptions`] (the engine's choices). Its [`Dsv4Geometry::layout`] is all that the data plane
//! needs; its address functions are all that a forward needs.

mod capacity;
mod config;
mod error;
mod field;
mod geometry;
mod image;

pub use capacity::{Budget, Capacity, CapacityError};
pub use config::{
    BLOCK_TOKENS, CSA_RATIO, CacheConfig, CacheOptions, DraftLayers, HCA_RATIO, IndexerFormat,
    KvFormat,
};
pub use error::GeometryError;
pub use field::StateField;
pub use geometry::{Dsv4Geometry, IndexerRow, LayerCache, LayerClass, PageBytes, SlotBytes};
