//! Hashes as content keys.
//!
//! The interface takes any `int`; a key has 128 bits. Integers in `[-2^63, 2^128 - 2^63)` map one to
//! one: negative ones, as Python's `hash` gives them, take the top 2^63 keys.

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt};
use statepages_page::ContentKey;

/// First key that stands for a negative hash.
const NEGATIVE: u128 = u128::MAX - (1 << 63) + 1;

/// The key of a hash.
pub(crate) fn key_of(hash: &Bound<'_, PyAny>) -> PyResult<ContentKey> {
    if let Ok(small) = hash.extract::<u64>() {
        return Ok(ContentKey::from_raw(u128::from(small)));
    }
    let out_of_range = || {
        PyOverflowError::new_err("hash: expected an int in [-2**63, 2**128 - 2**63)".to_string())
    };
    let hash = hash.cast::<PyInt>().map_err(|_| {
        let name = hash.get_type().name().map_or_else(|_| "?".to_owned(), |n| n.to_string());
        PyTypeError::new_err(format!("hash: expected an int, got {name}"))
    })?;
    let py = hash.py();
    let bytes = hash.call_method(
        intern!(py, "to_bytes"),
        (17, intern!(py, "little")),
        Some(&[(intern!(py, "signed"), true)].into_py_dict(py)?),
    );
    let bytes = bytes.map_err(|_| out_of_range())?;
    let bytes = bytes.cast::<PyBytes>()?.as_bytes();
    let (low, sign) = bytes.split_first_chunk::<16>().expect("17 bytes were asked for");
    let raw = u128::from_le_bytes(*low);
    match (sign[0], raw >= NEGATIVE) {
        (0, false) | (0xff, true) => Ok(ContentKey::from_raw(raw)),
        _ => Err(out_of_range()),
    }
}

/// The hash of a key.
pub(crate) fn hash_of(py: Python<'_>, key: ContentKey) -> PyResult<Bound<'_, PyAny>> {
    let raw = key.raw();
    if let Ok(small) = u64::try_from(raw) {
        return Ok(small.into_pyobject(py)?.into_any());
    }
    if raw >= NEGATIVE {
        return Ok((raw as i128).into_pyobject(py)?.into_any());
    }
    Ok(raw.into_pyobject(py)?.into_any())
}

use pyo3::types::IntoPyDict as _;
