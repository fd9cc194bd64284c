//! JSON whose errors name the field.

use serde::de::DeserializeOwned;
use serde_path_to_error::{Error, Track};

/// What went wrong, and in which field.
pub type JsonError = Error<serde_json::Error>;

/// Reads one value and nothing behind it.
pub(crate) fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, JsonError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json)?;
    json.end().map_err(plain)?;
    Ok(value)
}

/// An error that is no field's.
pub(crate) fn plain(error: serde_json::Error) -> JsonError {
    Error::new(Track::new().path(), error)
}
