//! How the state of a request moves, and the wire form in which a runner tells an engine.
//!
//! The wire form is strict and versioned: a mapping with exactly the expected fields of exactly the
//! expected types. Anything else is an error that names the field, what was expected and what came.
//! Units per checkpoint are derived on both sides and never sent. [`WireValue`] is the data model of
//! JSON without fractions and lists; encoding it is the business of an outer crate.

use std::collections::BTreeMap;
use std::fmt;

use statepages_page::{Bytes, LayoutId, Pages, StateLayout};

/// Version of the wire form.
const WIRE_VERSION: i64 = 1;

/// How a resuming request gets the state of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateTransfer {
    /// Its image is copied into a slot of the request's own. The owner of the state is undisturbed.
    Copy {
        /// Layout of the images.
        layout: LayoutId,
    },
    /// The live group becomes the checkpoint; for one forward its owner reads the old group and
    /// writes a fresh one.
    Fork {
        /// Tokens that forward must have. Never zero.
        tokens: u32,
    },
    /// Not at all: state starts at zero tokens.
    None,
}

/// Tokens the forward after a checkpoint must have for the checkpoint to be possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuccessorRoom {
    /// At least so many.
    Tokens(u32),
    /// No number suffices.
    Never,
}

/// Geometry of page-backed images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointSpec {
    page_unit_bytes: Bytes,
    slot_bytes: Bytes,
    image_bytes: Bytes,
    layout: LayoutId,
}

/// A transfer with the geometry it needs, validated together: `copy` has a spec of its own layout,
/// `fork` and `none` have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateRuntime {
    transfer: StateTransfer,
    spec: Option<CheckpointSpec>,
}

/// A value on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireValue {
    /// Nothing.
    Null,
    /// A truth value, which is no integer here.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A text.
    Str(String),
    /// Named fields.
    Map(BTreeMap<String, WireValue>),
}

/// A runtime that is inconsistent in itself or did not come over the wire whole.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireError {
    /// A field has another type.
    Type {
        /// Path of the field.
        field: String,
        /// Type expected.
        expected: &'static str,
        /// Type that came.
        got: &'static str,
    },
    /// A mapping has other fields.
    Fields {
        /// Path of the mapping.
        field: String,
        /// Names expected, sorted.
        expected: Vec<String>,
        /// Names that came, sorted.
        got: Vec<String>,
    },
    /// A field has the right type and an impossible value.
    Value {
        /// Path of the field.
        field: String,
        /// What would do.
        expected: String,
        /// What came.
        got: String,
    },
    /// Two sides that must agree do not.
    Mismatch {
        /// What they disagree about.
        what: &'static str,
        /// This side's value.
        ours: String,
        /// The other side's value.
        theirs: String,
    },
}

impl StateTransfer {
    /// The room a checkpoint of this class needs after itself.
    pub const fn successor_room(&self) -> SuccessorRoom {
        match self {
            Self::Copy { .. } => SuccessorRoom::Tokens(0),
            Self::Fork { tokens } => SuccessorRoom::Tokens(*tokens),
            Self::None => SuccessorRoom::Never,
        }
    }

    const fn kind(&self) -> &'static str {
        match self {
            Self::Copy { .. } => "copy",
            Self::Fork { .. } => "fork",
            Self::None => "none",
        }
    }

    fn to_wire(&self) -> WireValue {
        let (tokens, layout) = match self {
            Self::Copy { layout } => (0, WireValue::Str(layout.as_str().to_owned())),
            Self::Fork { tokens } => (i64::from(*tokens), WireValue::Null),
            Self::None => (0, WireValue::Null),
        };
        map([
            ("kind", WireValue::Str(self.kind().to_owned())),
            ("fork_tokens", WireValue::Int(tokens)),
            ("paged_layout_id", layout),
        ])
    }

    fn from_wire(wire: &WireValue, at: &str) -> Result<Self, WireError> {
        let [kind, tokens, layout] = fields(wire, at, ["kind", "fork_tokens", "paged_layout_id"])?;
        let tokens_at = format!("{at}.fork_tokens");
        let layout_at = format!("{at}.paged_layout_id");
        let tokens = int(tokens, &tokens_at)?;
        let value = |field: &str, expected: &str, got: String| WireError::Value {
            field: field.to_owned(),
            expected: expected.to_owned(),
            got,
        };
        let no_tokens = || match tokens {
            0 => Ok(()),
            _ => Err(value(&tokens_at, "0 unless the kind is fork", tokens.to_string())),
        };
        let no_layout = || match layout {
            WireValue::Null => Ok(()),
            other => Err(WireError::Type {
                field: layout_at.clone(),
                expected: "null unless the kind is copy",
                got: other.type_name(),
            }),
        };
        match text(kind, &format!("{at}.kind"))? {
            "copy" => {
                no_tokens()?;
                let id = text(layout, &layout_at)?;
                let layout = LayoutId::new(id)
                    .ok_or_else(|| value(&layout_at, "a non-empty layout id", "\"\"".into()))?;
                Ok(Self::Copy { layout })
            }
            "fork" => {
                no_layout()?;
                let room = u32::try_from(tokens).ok().filter(|tokens| *tokens > 0);
                room.map(|tokens| Self::Fork { tokens })
                    .ok_or_else(|| value(&tokens_at, "a positive u32", tokens.to_string()))
            }
            "none" => {
                no_tokens()?;
                no_layout()?;
                Ok(Self::None)
            }
            other => Err(value(&format!("{at}.kind"), "copy, fork or none", other.to_owned())),
        }
    }
}

impl CheckpointSpec {
    /// Checks and wraps the geometry of an image.
    pub fn new(
        page_unit_bytes: Bytes,
        slot_bytes: Bytes,
        image_bytes: Bytes,
        layout: LayoutId,
    ) -> Result<Self, WireError> {
        let sizes = [
            ("page_unit_bytes", page_unit_bytes),
            ("slot_bytes", slot_bytes),
            ("image_bytes", image_bytes),
        ];
        for (field, bytes) in sizes {
            if bytes == Bytes::ZERO {
                return Err(WireError::Value {
                    field: field.to_owned(),
                    expected: "a positive number of bytes".to_owned(),
                    got: "0".to_owned(),
                });
            }
        }
        if image_bytes > slot_bytes {
            return Err(WireError::Value {
                field: "image_bytes".to_owned(),
                expected: format!("at most the slot's {slot_bytes} bytes"),
                got: image_bytes.to_string(),
            });
        }
        if u32::try_from(image_bytes.get().div_ceil(page_unit_bytes.get())).is_err() {
            return Err(WireError::Value {
                field: "image_bytes".to_owned(),
                expected: format!("at most 2^32 units of {page_unit_bytes} bytes"),
                got: image_bytes.to_string(),
            });
        }
        Ok(Self { page_unit_bytes, slot_bytes, image_bytes, layout })
    }

    /// The spec of a whole layout.
    pub fn of(layout: &StateLayout) -> Result<Self, WireError> {
        Self::new(
            layout.page.page_bytes(),
            layout.slot.slot_bytes(),
            layout.image.image_bytes(),
            layout.id.clone(),
        )
    }

    /// Bytes of one page.
    pub const fn page_unit_bytes(&self) -> Bytes {
        self.page_unit_bytes
    }

    /// Bytes of one slot.
    pub const fn slot_bytes(&self) -> Bytes {
        self.slot_bytes
    }

    /// Bytes of one image.
    pub const fn image_bytes(&self) -> Bytes {
        self.image_bytes
    }

    /// Layout of an image.
    pub const fn layout(&self) -> &LayoutId {
        &self.layout
    }

    /// Units of one image: `ceil(image_bytes / page_unit_bytes)`.
    pub fn units_per_checkpoint(&self) -> Pages {
        self.image_bytes.pages_ceil(self.page_unit_bytes)
    }

    fn to_wire(&self) -> WireValue {
        let bytes = |b: Bytes| WireValue::Int(i64::try_from(b.get()).expect("a size fits i64"));
        map([
            ("page_unit_bytes", bytes(self.page_unit_bytes)),
            ("slot_bytes", bytes(self.slot_bytes)),
            ("image_bytes", bytes(self.image_bytes)),
            ("layout_id", WireValue::Str(self.layout.as_str().to_owned())),
        ])
    }

    fn from_wire(wire: &WireValue, at: &str) -> Result<Self, WireError> {
        let names = ["page_unit_bytes", "slot_bytes", "image_bytes", "layout_id"];
        let [page, slot, image, layout] = fields(wire, at, names)?;
        let bytes = |value: &WireValue, name: &str| {
            let field = format!("{at}.{name}");
            let raw = int(value, &field)?;
            u64::try_from(raw).map(Bytes::new).map_err(|_| WireError::Value {
                field,
                expected: "a positive number of bytes".to_owned(),
                got: raw.to_string(),
            })
        };
        let layout_at = format!("{at}.layout_id");
        let layout = LayoutId::new(text(layout, &layout_at)?).ok_or(WireError::Value {
            field: layout_at,
            expected: "a non-empty layout id".to_owned(),
            got: "\"\"".to_owned(),
        })?;
        Self::new(
            bytes(page, "page_unit_bytes")?,
            bytes(slot, "slot_bytes")?,
            bytes(image, "image_bytes")?,
            layout,
        )
    }
}

impl StateRuntime {
    /// Checks the combination.
    pub fn new(transfer: StateTransfer, spec: Option<CheckpointSpec>) -> Result<Self, WireError> {
        match (&transfer, &spec) {
            (StateTransfer::Copy { layout }, Some(spec)) if *layout != spec.layout => {
                Err(WireError::Mismatch {
                    what: "layout id of transfer and checkpoint spec",
                    ours: layout.to_string(),
                    theirs: spec.layout.to_string(),
                })
            }
            (StateTransfer::Copy { .. }, None) => Err(WireError::Value {
                field: "checkpoint_spec".to_owned(),
                expected: "a spec, because the transfer is copy".to_owned(),
                got: "none".to_owned(),
            }),
            (StateTransfer::Fork { .. } | StateTransfer::None, Some(spec)) => {
                Err(WireError::Value {
                    field: "checkpoint_spec".to_owned(),
                    expected: format!("none, because the transfer is {}", transfer.kind()),
                    got: format!("a spec of layout {}", spec.layout),
                })
            }
            (StateTransfer::Fork { tokens: 0 }, None) => Err(WireError::Value {
                field: "transfer.fork_tokens".to_owned(),
                expected: "a positive u32".to_owned(),
                got: "0".to_owned(),
            }),
            _ => Ok(Self { transfer, spec }),
        }
    }

    /// The transfer.
    pub const fn transfer(&self) -> &StateTransfer {
        &self.transfer
    }

    /// The geometry; present exactly for `copy`.
    pub const fn spec(&self) -> Option<&CheckpointSpec> {
        self.spec.as_ref()
    }

    /// The nested wire form.
    pub fn to_wire(&self) -> WireValue {
        map([
            ("version", WireValue::Int(WIRE_VERSION)),
            ("transfer", self.transfer.to_wire()),
            (
                "checkpoint_spec",
                self.spec.as_ref().map_or(WireValue::Null, CheckpointSpec::to_wire),
            ),
        ])
    }

    /// Reads the nested wire form and validates the whole again.
    pub fn from_wire(wire: &WireValue) -> Result<Self, WireError> {
        let at = "state_runtime";
        let [version, transfer, spec] =
            fields(wire, at, ["version", "transfer", "checkpoint_spec"])?;
        let got = int(version, "state_runtime.version")?;
        if got != WIRE_VERSION {
            return Err(WireError::Value {
                field: "state_runtime.version".to_owned(),
                expected: WIRE_VERSION.to_string(),
                got: got.to_string(),
            });
        }
        let transfer = StateTransfer::from_wire(transfer, "state_runtime.transfer")?;
        let spec = match spec {
            WireValue::Null => None,
            other => Some(CheckpointSpec::from_wire(other, "state_runtime.checkpoint_spec")?),
        };
        Self::new(transfer, spec)
    }

    /// Refuses a peer whose runtime differs, naming both sides of the first difference.
    pub fn agree(&self, theirs: &Self) -> Result<(), WireError> {
        let differ = |what, ours: &dyn fmt::Debug, theirs: &dyn fmt::Debug| {
            Err(WireError::Mismatch {
                what,
                ours: format!("{ours:?}"),
                theirs: format!("{theirs:?}"),
            })
        };
        if self.transfer != theirs.transfer {
            return differ("state transfer", &self.transfer, &theirs.transfer);
        }
        if let (Some(a), Some(b)) = (&self.spec, &theirs.spec) {
            for (what, ours, other) in [
                ("page_unit_bytes", a.page_unit_bytes, b.page_unit_bytes),
                ("slot_bytes", a.slot_bytes, b.slot_bytes),
                ("image_bytes", a.image_bytes, b.image_bytes),
            ] {
                if ours != other {
                    return differ(what, &ours, &other);
                }
            }
        }
        Ok(())
    }
}

impl WireValue {
    /// Name of the type, for messages.
    pub const fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Str(_) => "string",
            Self::Map(_) => "mapping",
        }
    }
}

fn map<const N: usize>(fields: [(&str, WireValue); N]) -> WireValue {
    WireValue::Map(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

fn fields<'a, const N: usize>(
    wire: &'a WireValue,
    at: &str,
    names: [&str; N],
) -> Result<[&'a WireValue; N], WireError> {
    let WireValue::Map(map) = wire else {
        return Err(WireError::Type {
            field: at.to_owned(),
            expected: "mapping",
            got: wire.type_name(),
        });
    };
    let found = names.map(|name| map.get(name));
    if map.len() != N || found.iter().any(Option::is_none) {
        let mut expected: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        expected.sort();
        let got = map.keys().cloned().collect();
        return Err(WireError::Fields { field: at.to_owned(), expected, got });
    }
    Ok(found.map(|value| value.expect("every name was found")))
}

fn int(value: &WireValue, at: &str) -> Result<i64, WireError> {
    match value {
        WireValue::Int(raw) => Ok(*raw),
        other => {
            Err(WireError::Type { field: at.to_owned(), expected: "int", got: other.type_name() })
        }
    }
}

fn text<'a>(value: &'a WireValue, at: &str) -> Result<&'a str, WireError> {
    match value {
        WireValue::Str(text) => Ok(text),
        other => Err(WireError::Type {
            field: at.to_owned(),
            expected: "string",
            got: other.type_name(),
        }),
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Type { field, expected, got } => {
                write!(f, "{field}: expected {expected}, got {got}")
            }
            Self::Fields { field, expected, got } => write!(
                f,
                "{field}: expected exactly the fields {}, got {}",
                expected.join(", "),
                got.join(", ")
            ),
            Self::Value { field, expected, got } => {
                write!(f, "{field}: expected {expected}, got {got}")
            }
            Self::Mismatch { what, ours, theirs } => {
                write!(f, "{what}: expected {ours}, got {theirs}")
            }
        }
    }
}

impl std::error::Error for WireError {}
