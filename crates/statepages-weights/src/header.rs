//! The header of a safetensors file: eight bytes of length, then JSON by tensor name.
//!
//! ```text
//! [0, 8)          length n of the header, u64
//! [8, 8 + n)      {"name": {"dtype", "shape", "data_offsets": [begin, end]}, ...}
//! [8 + n, end)    tensors, back to back
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::error::OpenError;
use crate::json;

/// Longest header that is read. The largest published models have headers of a few megabytes.
const HEADER_MAX: u64 = 100 << 20;

/// Number format of a stored tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dtype {
    F32,
    Bf16,
    Fp8,
    /// Two e2m1 numbers a byte.
    Fp4,
    E8m0,
    I64,
    I32,
}

/// A tensor of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    /// First byte in the file.
    pub(crate) offset: u64,
    /// Bytes, all of them inside the file.
    pub(crate) bytes: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl Dtype {
    fn parse(name: &str) -> Option<Self> {
        match name {
            "F32" => Some(Self::F32),
            "BF16" => Some(Self::Bf16),
            "F8_E4M3" => Some(Self::Fp8),
            "I8" => Some(Self::Fp4),
            "F8_E8M0" => Some(Self::E8m0),
            "I64" => Some(Self::I64),
            "I32" => Some(Self::I32),
            _ => None,
        }
    }

    /// The name in a file.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::Bf16 => "BF16",
            Self::Fp8 => "F8_E4M3",
            Self::Fp4 => "I8",
            Self::E8m0 => "F8_E8M0",
            Self::I64 => "I64",
            Self::I32 => "I32",
        }
    }

    /// Bytes of one element.
    pub(crate) const fn size(self) -> u64 {
        match self {
            Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::Bf16 => 2,
            Self::Fp8 | Self::Fp4 | Self::E8m0 => 1,
        }
    }
}

/// The tensors of a file of these bytes, by name.
pub(crate) fn read(path: &Path, file: &[u8]) -> Result<BTreeMap<String, Entry>, OpenError> {
    let shard = |tensor: Option<&str>, what, expected: String, got: String| OpenError::Shard {
        path: path.into(),
        tensor: tensor.map(str::to_owned),
        what,
        expected,
        got,
    };
    let size = file.len() as u64;
    let Some((length, rest)) = file.split_first_chunk() else {
        return Err(shard(None, "bytes of the file", "at least 8".into(), size.to_string()));
    };
    let length = u64::from_le_bytes(*length);
    let max = HEADER_MAX.min(size - 8);
    if length > max {
        let got = length.to_string();
        return Err(shard(None, "bytes of the header", format!("at most {max}"), got));
    }
    let text = &rest[..length as usize];
    let bad_json = |source| OpenError::Json { path: path.into(), source };
    let Named(raw) = json::from_slice(text).map_err(bad_json)?;
    let data = 8 + length;
    let (mut entries, mut ranges) = (BTreeMap::<String, Entry>::new(), Vec::new());
    for (name, value) in raw.into_iter().filter(|(name, _)| name != "__metadata__") {
        if entries.contains_key(&name) {
            let got = "a second one".to_owned();
            return Err(shard(Some(&name), "entries", "one of each name".into(), got));
        }
        let raw: RawEntry = serde_json::from_value(value).map_err(|error| {
            shard(Some(&name), "entry", "dtype, shape, data_offsets".into(), error.to_string())
        })?;
        let dtype = Dtype::parse(&raw.dtype).ok_or_else(|| {
            let known = "F32, BF16, F8_E4M3, F8_E8M0, I8, I32 or I64";
            shard(Some(&name), "dtype", known.into(), raw.dtype.clone())
        })?;
        let [begin, end] = raw.data_offsets;
        let room = size - data;
        if begin > end || end > room {
            let got = format!("{begin} to {end}");
            return Err(shard(Some(&name), "data_offsets", format!("inside {room} bytes"), got));
        }
        let count = raw.shape.iter().try_fold(dtype.size(), |n, &dim| n.checked_mul(dim));
        if count != Some(end - begin) {
            let expected = format!("those of {} {:?}", raw.dtype, raw.shape);
            return Err(shard(Some(&name), "bytes", expected, (end - begin).to_string()));
        }
        ranges.push((begin, end, name.clone()));
        let shape = raw.shape.iter().map(|&dim| dim as usize).collect();
        entries.insert(name, Entry { dtype, shape, offset: data + begin, bytes: end - begin });
    }
    // Bytes that are no tensor's are passed over: a tensor that is missing is told by its name.
    ranges.sort();
    for pair in ranges.windows(2) {
        if pair[1].0 < pair[0].1 {
            let (expected, got) = (format!("{} or later", pair[0].1), pair[1].0.to_string());
            return Err(shard(Some(&pair[1].2), "first byte", expected, got));
        }
    }
    Ok(entries)
}

/// The members of an object in their order, those of one name included.
struct Named(Vec<(String, serde_json::Value)>);

impl<'de> Deserialize<'de> for Named {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Named;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Named, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Named(members))
            }
        }
        from.deserialize_map(Members)
    }
}
