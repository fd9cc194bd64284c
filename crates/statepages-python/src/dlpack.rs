//! Arrays of other libraries, by DLPack: an address, a shape, and a promise to keep both.
//!
//! ```text
//!   array.__dlpack__() --> capsule "dltensor" --Lent::of--> consumed, ours --drop--> its deleter
//! ```
//!
//! Invariants:
//! - the structures below are those of DLPack's C header, versions 0 and 1;
//! - a capsule is consumed by its renaming, exactly once; from then on its tensor is freed by
//!   [`Lent`] alone, when it is dropped;
//! - what is lent is contiguous and writable: everything else is refused by the name of the array.
//!
//! No stream is synchronised: a CUDA array is asked for with stream -1, and whoever copies enqueues
//! behind the work that made it.
#![expect(unsafe_code, reason = "DLPack is C structures behind pointers")]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict as _, PyCapsule};

use crate::native::error::MemoryRefused;

const NAME: &CStr = c"dltensor";
const NAME_VERSIONED: &CStr = c"dltensor_versioned";
const USED: &CStr = c"used_dltensor";
const USED_VERSIONED: &CStr = c"used_dltensor_versioned";
const FLAG_READ_ONLY: u64 = 1;

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// Where an array lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Memory that the host's threads reach, pinned or not.
    Host,
    /// A CUDA device.
    Cuda(u32),
    /// A HIP device.
    Hip(u32),
}

/// A contiguous, writable array of somebody else.
pub(crate) struct Lent {
    owner: Owner,
    /// Address of its first byte.
    pub(crate) address: u64,
    /// Its size.
    pub(crate) bytes: u64,
    /// Length of its first dimension.
    pub(crate) items: u64,
    pub(crate) place: Place,
}

enum Owner {
    Plain(NonNull<Managed>),
    Versioned(NonNull<ManagedVersioned>),
}

// SAFETY: a tensor is reached through its deleter alone, which DLPack lets any thread call.
unsafe impl Send for Lent {}
// SAFETY: nothing is changed through a shared reference.
unsafe impl Sync for Lent {}

impl Place {
    fn of(kind: i32, id: i32, name: &str) -> PyResult<Self> {
        match (kind, u32::try_from(id)) {
            (1 | 3, _) => Ok(Self::Host),
            (2, Ok(id)) => Ok(Self::Cuda(id)),
            (10, Ok(id)) => Ok(Self::Hip(id)),
            _ => Err(MemoryRefused::new_err(format!(
                "{name}: expected an array on the host, on CUDA or on HIP, got DLPack device \
                 ({kind}, {id})"
            ))),
        }
    }
}

impl Lent {
    /// Takes an array over; `name` is for messages.
    pub(crate) fn of(array: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        let py = array.py();
        let refused = |what: String| MemoryRefused::new_err(format!("{name}: {what}"));
        let export = array.getattr(intern!(py, "__dlpack__")).map_err(|_| {
            let kind = array.get_type().name().map_or_else(|_| "?".into(), |n| n.to_string());
            refused(format!("expected an array with __dlpack__, got {kind}"))
        })?;
        let device = array.call_method0(intern!(py, "__dlpack_device__"))?;
        let (kind, id): (i32, i32) = {
            let pair = (device.get_item(0)?, device.get_item(1)?);
            (pair.0.call_method0("__int__")?.extract()?, pair.1.extract()?)
        };
        let place = Place::of(kind, id, name)?;
        let stream = match place {
            Place::Host => None,
            Place::Cuda(_) | Place::Hip(_) => Some(-1i64),
        };
        let stream = stream.into_pyobject(py)?.into_any();
        let version = (1, 0).into_pyobject(py)?.into_any();
        let both = [("stream", &stream), ("max_version", &version)].into_py_dict(py)?;
        let capsule = export.call((), Some(&both)).or_else(|error| {
            // An exporter from before version 1 knows no such argument.
            if !error.is_instance_of::<pyo3::exceptions::PyTypeError>(py) {
                return Err(error);
            }
            export.call((), Some(&[("stream", &stream)].into_py_dict(py)?))
        });
        let capsule = capsule.map_err(|error| {
            refused(format!("expected a writable array that DLPack can lend, got: {error}"))
        })?;
        let capsule = capsule.cast::<PyCapsule>().map_err(PyErr::from)?;
        let owner = Owner::consume(capsule)?;
        // From here on an early return drops the owner.
        let mut lent = Self { owner, address: 0, bytes: 0, items: 0, place };
        lent.read().map_err(refused)?;
        Ok(lent)
    }

    /// Checks the tensor and notes address and size.
    fn read(&mut self) -> Result<(), String> {
        if let Owner::Versioned(managed) = &self.owner {
            // SAFETY: the capsule held a tensor of this shape, which is ours until we drop it.
            let managed = unsafe { managed.as_ref() };
            if managed.major != 1 {
                return Err(format!("expected DLPack version 1, got {}", managed.major));
            }
            if managed.flags & FLAG_READ_ONLY != 0 {
                return Err("expected a writable array, got a read-only one".to_owned());
            }
        }
        let tensor = self.owner.tensor();
        let dimensions = usize::try_from(tensor.dimensions).map_err(|_| "a negative rank")?;
        if dimensions == 0 {
            return Err("expected an array of one item or more, got a scalar".to_owned());
        }
        // SAFETY: DLPack: `shape` points to one length per dimension.
        let shape = unsafe { std::slice::from_raw_parts(tensor.shape, dimensions) };
        // Where there is no item there is no step between two.
        if !tensor.strides.is_null() && !shape.contains(&0) {
            // SAFETY: DLPack: `strides`, where given, points to one stride per dimension.
            let strides = unsafe { std::slice::from_raw_parts(tensor.strides, dimensions) };
            let mut expected = 1i64;
            for (&length, &stride) in shape.iter().zip(strides).rev() {
                if length > 1 && stride != expected {
                    return Err(format!(
                        "expected a contiguous array, got shape {shape:?} with strides {strides:?}"
                    ));
                }
                expected = expected.saturating_mul(length.max(1));
            }
        }
        let bits = u64::from(tensor.bits) * u64::from(tensor.lanes);
        if !bits.is_multiple_of(8) {
            return Err(format!("expected items of whole bytes, got {bits} bits"));
        }
        let mut bytes = bits / 8;
        for &length in shape {
            let length = u64::try_from(length).map_err(|_| "a negative length")?;
            bytes = bytes.checked_mul(length).ok_or("more bytes than addresses")?;
        }
        self.address = (tensor.data as u64).wrapping_add(tensor.byte_offset);
        self.bytes = bytes;
        self.items = shape[0] as u64;
        Ok(())
    }
}

impl Owner {
    /// Makes a capsule's tensor ours.
    fn consume(capsule: &Bound<'_, PyCapsule>) -> PyResult<Self> {
        let (owner, used) = if capsule.is_valid_checked(Some(NAME_VERSIONED)) {
            let managed = capsule.pointer_checked(Some(NAME_VERSIONED))?;
            (Self::Versioned(managed.cast()), USED_VERSIONED)
        } else {
            (Self::Plain(capsule.pointer_checked(Some(NAME))?.cast()), USED)
        };
        // SAFETY: the capsule lives, and the name is static.
        let renamed = unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) };
        if renamed != 0 {
            // Not consumed: the capsule frees its tensor.
            std::mem::forget(owner);
            return Err(PyErr::fetch(capsule.py()));
        }
        Ok(owner)
    }

    fn tensor(&self) -> &DlTensor {
        match self {
            // SAFETY: the capsule held a tensor of this shape, which is ours until we drop it.
            Self::Plain(managed) => &unsafe { managed.as_ref() }.tensor,
            // SAFETY: as above.
            Self::Versioned(managed) => &unsafe { managed.as_ref() }.tensor,
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        match *self {
            Self::Plain(managed) => {
                // SAFETY: ours, and not freed before.
                if let Some(deleter) = unsafe { managed.as_ref() }.deleter {
                    // SAFETY: DLPack: called once, with the tensor it came with.
                    unsafe { deleter(managed.as_ptr()) };
                }
            }
            Self::Versioned(managed) => {
                // SAFETY: ours, and not freed before.
                if let Some(deleter) = unsafe { managed.as_ref() }.deleter {
                    // SAFETY: DLPack: called once, with the tensor it came with.
                    unsafe { deleter(managed.as_ptr()) };
                }
            }
        }
    }
}
