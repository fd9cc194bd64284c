//! Domains, and the tokens of a request with the content keys of their blocks.

use numpy::{PyArrayMethods, PyReadonlyArray1};
use pyo3::prelude::*;
use statepages_page::{BlockSize, Boundary, ContentKey, Domain, DomainTag, LayoutId, Tokens};
use statepages_store::PromptKeys;

use super::error::value_error;

/// What must be equal, beside the tokens, for one request to read what another wrote.
#[pyclass(name = "Domain", module = "statepages", frozen, eq, hash)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PyDomain {
    tag: DomainTag,
}

#[pymethods]
impl PyDomain {
    #[new]
    #[pyo3(signature = (model_revision, *, tenant_salt=None, adapter=None, media=None, layout_id=None))]
    fn new(
        model_revision: &str,
        tenant_salt: Option<&[u8]>,
        adapter: Option<&str>,
        media: Option<&[u8]>,
        layout_id: Option<&str>,
    ) -> PyResult<Self> {
        let named = |id| LayoutId::new(id).ok_or_else(|| value_error("layout_id: got ''"));
        let layout = layout_id.map(named).transpose()?;
        let domain =
            Domain { tenant_salt, adapter, media, model_revision, layout: layout.as_ref() };
        Ok(Self { tag: domain.tag() })
    }

    /// The digest, 128 bits.
    #[getter]
    fn tag(&self) -> u128 {
        self.tag.raw()
    }
}

/// Tokens and chained block keys of one request; grows at the end only.
#[pyclass(name = "PromptKeys", module = "statepages")]
pub(crate) struct PyPromptKeys {
    pub(crate) keys: PromptKeys,
}

#[pymethods]
impl PyPromptKeys {
    #[new]
    #[pyo3(signature = (domain, block_size, tokens=None))]
    fn new(
        domain: &PyDomain,
        block_size: u32,
        tokens: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let mut made = Self { keys: PromptKeys::new(domain.tag, block(block_size)?) };
        if let Some(tokens) = tokens {
            made.extend(tokens)?;
        }
        Ok(made)
    }

    /// Tokens with keys of the engine's own, one of 128 bits per whole block.
    #[staticmethod]
    fn with_keys(
        domain: &PyDomain,
        block_size: u32,
        tokens: &Bound<'_, PyAny>,
        keys: Vec<u128>,
    ) -> PyResult<Self> {
        let (tokens, given) = (integers(tokens, "tokens")?, keys.len());
        let whole = tokens.len() / block_size.max(1) as usize;
        let keys = keys.into_iter().map(ContentKey::from_raw).collect();
        let keys = PromptKeys::with_keys(domain.tag, block(block_size)?, tokens, keys);
        let keys = keys.ok_or_else(|| {
            value_error(format!("keys: expected one per whole block, {whole}, got {given}"))
        })?;
        Ok(Self { keys })
    }

    /// Appends tokens, an int array or a sequence, and hashes each block that they complete.
    fn extend(&mut self, tokens: &Bound<'_, PyAny>) -> PyResult<()> {
        self.keys.extend(&integers(tokens, "tokens")?);
        Ok(())
    }

    /// The key of the state after `boundary` tokens; `None` off the grid and behind the last block.
    fn key_at(&self, boundary: u32) -> Option<u128> {
        self.keys.key_at(Boundary::from_raw(boundary)).map(ContentKey::raw)
    }

    #[getter]
    fn block_size(&self) -> u32 {
        self.keys.block().get()
    }

    fn __len__(&self) -> usize {
        self.keys.len().index()
    }
}

impl PyPromptKeys {
    pub(crate) fn len(&self) -> Tokens {
        self.keys.len()
    }
}

pub(crate) fn block(tokens: u32) -> PyResult<BlockSize> {
    BlockSize::new(tokens).ok_or_else(|| value_error("block_size: expected at least 1, got 0"))
}

/// Unsigned integers below 2^32 from an int array or a sequence.
pub(crate) fn integers(given: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<u32>> {
    fn narrow<T: numpy::Element + Copy + TryInto<u32> + std::fmt::Display>(
        array: &PyReadonlyArray1<'_, T>,
        name: &str,
    ) -> PyResult<Vec<u32>> {
        let numbers = array.as_array();
        let one = |&number: &T| {
            number.try_into().map_err(|_| {
                value_error(format!("{name}: expected integers in [0, 2^32), got {number}"))
            })
        };
        numbers.iter().map(one).collect()
    }
    if let Ok(array) = given.cast::<numpy::PyArray1<u32>>() {
        return Ok(array.readonly().as_array().to_vec());
    }
    if let Ok(array) = given.cast::<numpy::PyArray1<i64>>() {
        return narrow(&array.readonly(), name);
    }
    if let Ok(array) = given.cast::<numpy::PyArray1<i32>>() {
        return narrow(&array.readonly(), name);
    }
    given.extract().map_err(|error| {
        value_error(format!("{name}: expected integers in [0, 2^32), got {given}: {error}"))
    })
}
