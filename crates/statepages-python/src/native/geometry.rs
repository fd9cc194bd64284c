//! DeepSeek-V4 geometry: layouts from a model's shape and an engine's choices.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping};
use statepages_geometry::{
    Budget, CacheConfig, CacheOptions, DraftLayers, Dsv4Geometry, IndexerFormat, KvFormat,
};
use statepages_page::{BlockSize, Bytes};

use super::error::value_error;
use super::layout::{PyStateLayout, image_rule};

/// Layout of a model's pages, slots and images.
#[pyclass(name = "Dsv4Geometry", module = "statepages", frozen)]
pub(crate) struct PyGeometry {
    geometry: Dsv4Geometry,
}

#[pymethods]
impl PyGeometry {
    /// `model` is a preset's name, or a mapping with the fields of the model's `config.json`.
    #[new]
    #[pyo3(signature = (
        model, *, kv="fp8", indexer="fp8", draft_tokens=0, block_size=256, image="whole"
    ))]
    fn new(
        model: &Bound<'_, PyAny>,
        kv: &str,
        indexer: &str,
        draft_tokens: u32,
        block_size: u32,
        image: &str,
    ) -> PyResult<Self> {
        let config = match model.extract::<String>() {
            Ok(name) => preset(&name)?,
            Err(_) => config(model)?,
        };
        let kvs = [KvFormat::Fp8, KvFormat::Bf16, KvFormat::F32];
        let indexers =
            [IndexerFormat::Fp8, IndexerFormat::Fp4, IndexerFormat::Bf16, IndexerFormat::F32];
        let options = CacheOptions {
            kv: kvs
                .into_iter()
                .find(|format| format.name() == kv)
                .ok_or_else(|| value_error(format!("kv: expected fp8, bf16 or f32, got {kv:?}")))?,
            indexer: indexers.into_iter().find(|f| f.name() == indexer).ok_or_else(|| {
                value_error(format!("indexer: expected fp8, fp4, bf16 or f32, got {indexer:?}"))
            })?,
            draft_tokens,
            block: BlockSize::new(block_size)
                .ok_or_else(|| value_error("block_size: expected at least 1, got 0"))?,
            dcp_world_size: 1,
            image: image_rule(image)?,
        };
        let geometry = Dsv4Geometry::new(&config, &options).map_err(value_error)?;
        Ok(Self { geometry })
    }

    #[getter]
    fn layout(&self) -> PyStateLayout {
        PyStateLayout { layout: self.geometry.layout().clone() }
    }

    /// Positions that a window ring holds.
    #[getter]
    fn ring(&self) -> u32 {
        self.geometry.ring()
    }

    /// What `memory` bytes hold beside `max_seqs` slots.
    fn capacity<'py>(
        &self,
        memory: u64,
        max_seqs: u32,
        py: Python<'py>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let budget = Budget { memory: Bytes::new(memory), max_seqs };
        let capacity = self.geometry.capacity(budget).map_err(value_error)?;
        let facts = PyDict::new(py);
        facts.set_item("slots", capacity.slots)?;
        facts.set_item("pages", capacity.pages.get())?;
        facts.set_item("images", capacity.images)?;
        facts.set_item("tokens", capacity.tokens)?;
        facts.set_item("slot_bytes", capacity.slot_bytes.get())?;
        facts.set_item("page_bytes", capacity.page_bytes.get())?;
        facts.set_item("unused", capacity.unused.get())?;
        Ok(facts)
    }
}

fn preset(name: &str) -> PyResult<CacheConfig> {
    match name {
        "v4-pro" => Ok(CacheConfig::v4_pro()),
        "v4-flash" => Ok(CacheConfig::v4_flash()),
        "v4-flash-dspark" => Ok(CacheConfig::v4_flash_dspark()),
        "mini" => Ok(CacheConfig::mini()),
        other => Err(value_error(format!(
            "model: expected v4-pro, v4-flash, v4-flash-dspark, mini or a mapping, got {other:?}"
        ))),
    }
}

fn config(model: &Bound<'_, PyAny>) -> PyResult<CacheConfig> {
    let fields = model.cast::<PyMapping>().map_err(|_| {
        value_error("model: expected a preset's name or a mapping with the fields of config.json")
    })?;
    let number = |name: &str| -> PyResult<u32> {
        let value = fields
            .get_item(name)
            .map_err(|_| value_error(format!("model: expected a field {name}, got none")))?;
        value.extract().map_err(|_| {
            value_error(format!("model[{name:?}]: expected an unsigned integer, got {value}"))
        })
    };
    let ratios = fields
        .get_item("compress_ratios")
        .map_err(|_| value_error("model: expected a field compress_ratios, got none"))?;
    Ok(CacheConfig {
        num_hidden_layers: number("num_hidden_layers")?,
        num_nextn_predict_layers: number("num_nextn_predict_layers")?,
        draft_layers: if fields.contains("dspark_block_size")? {
            DraftLayers::DSpark
        } else {
            DraftLayers::Mtp
        },
        compress_ratios: ratios.extract().map_err(|_| {
            value_error(format!("model[\"compress_ratios\"]: expected integers, got {ratios}"))
        })?,
        head_dim: number("head_dim")?,
        qk_rope_head_dim: number("qk_rope_head_dim")?,
        index_head_dim: number("index_head_dim")?,
        sliding_window: number("sliding_window")?,
    })
}
