//! What can go wrong with a device.

use std::fmt;

use statepages_copy::CopyError;
use statepages_page::Bytes;

/// A device that is not there, or that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeviceError {
    /// No library of the driver or of the run-time compiler was found.
    LibraryAbsent {
        /// Names that were tried.
        tried: Vec<String>,
        /// What the loader said to each.
        reason: String,
    },
    /// A library without a function that is needed: too old, or not what it seems.
    SymbolAbsent {
        /// The function.
        symbol: String,
        /// What the loader said.
        reason: String,
    },
    /// A driver's function failed.
    Call {
        /// What was tried.
        call: &'static str,
        /// The driver's number.
        status: i32,
        /// The driver's name of it.
        name: String,
    },
    /// The run-time compiler refused the kernels.
    Compile {
        /// Its log.
        log: String,
    },
    /// A kernel of a checked build met wrong indices: tables or operations were overwritten.
    WrongIndices {
        /// How many.
        count: u64,
    },
    /// More memory was asked for than a device can address.
    TooLarge {
        /// Bytes of one item.
        item: Bytes,
        /// Number of items.
        items: u32,
    },
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LibraryAbsent { tried, reason } => {
                write!(f, "no GPU library found: expected one of {}: {reason}", tried.join(", "))
            }
            Self::SymbolAbsent { symbol, reason } => {
                write!(f, "GPU library without {symbol}: {reason}")
            }
            Self::Call { call, status, name } => {
                write!(f, "device failed to {call}: {name} ({status})")
            }
            Self::Compile { log } => write!(f, "kernels did not compile: {log}"),
            Self::WrongIndices { count } => {
                write!(f, "kernels met {count} wrong indices: expected none")
            }
            Self::TooLarge { item, items } => {
                write!(f, "{items} items of {item} bytes exceed 64-bit addresses")
            }
        }
    }
}

impl std::error::Error for DeviceError {}

impl From<DeviceError> for CopyError {
    fn from(error: DeviceError) -> Self {
        Self::Device { message: error.to_string() }
    }
}
