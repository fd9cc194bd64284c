//! The driver's functions, found in its library at run time.
//!
//! CUDA and HIP have the same functions under two sets of names, with the same binary interface:
//! statuses are integers of which 0 is success, handles are pointers, device addresses are 64 bits
//! wide. So one table serves both, filled by the names of the vendor. The few functions whose shapes
//! differ are [`Vendor`]-specific and stand apart.

use std::ffi::{CStr, c_char, c_float, c_int, c_uint, c_void};

use libloading::Library;

use crate::DeviceError;

/// Whose driver, and whose names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Vendor {
    /// NVIDIA: libcuda and NVRTC.
    Cuda,
    /// AMD: libamdhip64 and hiprtc. Type-checked and run against a stand-in driver; untested on
    /// hardware.
    Hip,
}

impl Vendor {
    /// Names under which the driver may be installed, newest first.
    pub(crate) const fn drivers(self) -> &'static [&'static str] {
        match self {
            Self::Cuda => &["libcuda.so.1", "libcuda.so"],
            Self::Hip => {
                &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"]
            }
        }
    }

    /// Names under which the run-time compiler may be installed, newest first.
    pub(crate) const fn compilers(self) -> &'static [&'static str] {
        match self {
            Self::Cuda => &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
            Self::Hip => &["libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5", "libhiprtc.so"],
        }
    }
}

/// What a driver's function answers; 0 is success.
pub(crate) type Status = c_int;

/// An event that is still to come, in both vendors' numbering.
pub(crate) const NOT_READY: Status = 600;
/// Flag of streams that do not wait for the default stream, in both numberings.
pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;
/// Flag of events that carry no time, in both numberings.
pub(crate) const EVENT_NO_TIMING: c_uint = 2;
/// Captures concern the calling thread alone, in both numberings.
pub(crate) const CAPTURE_THREAD_LOCAL: c_uint = 1;

/// Something that a driver has made: a stream, an event, a module, a function, a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(crate) struct Handle(pub(crate) *mut c_void);

impl Handle {
    pub(crate) const NONE: Self = Self(std::ptr::null_mut());
}

// SAFETY: a handle is a name. Nothing is reached through it but by the driver, whose functions may
// be called from any thread.
unsafe impl Send for Handle {}
// SAFETY: as for `Send`; drivers serialise what must be serialised.
unsafe impl Sync for Handle {}

macro_rules! table {
    ($(#[$doc:meta])* $table:ident { $($field:ident: $cuda:literal, $hip:literal, ($($arg:ty),*);)* }) => {
        $(#[$doc])*
        pub(crate) struct $table {
            $(pub(crate) $field: unsafe extern "C" fn($($arg),*) -> Status,)*
        }

        impl $table {
            fn find(library: &Library, vendor: Vendor) -> Result<Self, DeviceError> {
                Ok(Self {
                    $($field: {
                        let name = match vendor {
                            Vendor::Cuda => $cuda,
                            Vendor::Hip => $hip,
                        };
                        // SAFETY: the vendor documents the function of this name with these
                        // parameters, up to pointer types of the same width.
                        unsafe { symbol(library, name) }?
                    },)*
                })
            }
        }
    };
}

table!(
    /// The driver's functions that both vendors shape alike.
    Driver {
        init: "cuInit", "hipInit", (c_uint);
        device_get: "cuDeviceGet", "hipDeviceGet", (*mut c_int, c_int);
        device_name: "cuDeviceGetName", "hipDeviceGetName", (*mut c_char, c_int, c_int);
        memory_info: "cuMemGetInfo_v2", "hipMemGetInfo", (*mut usize, *mut usize);
        allocate: "cuMemAlloc_v2", "hipMalloc", (*mut u64, usize);
        free: "cuMemFree_v2", "hipFree", (u64);
        host_allocate: "cuMemHostAlloc", "hipHostMalloc", (*mut *mut c_void, usize, c_uint);
        host_free: "cuMemFreeHost", "hipHostFree", (*mut c_void);
        stream_create: "cuStreamCreate", "hipStreamCreateWithFlags", (*mut Handle, c_uint);
        stream_destroy: "cuStreamDestroy_v2", "hipStreamDestroy", (Handle);
        stream_synchronize: "cuStreamSynchronize", "hipStreamSynchronize", (Handle);
        stream_wait: "cuStreamWaitEvent", "hipStreamWaitEvent", (Handle, Handle, c_uint);
        event_create: "cuEventCreate", "hipEventCreateWithFlags", (*mut Handle, c_uint);
        event_destroy: "cuEventDestroy_v2", "hipEventDestroy", (Handle);
        event_record: "cuEventRecord", "hipEventRecord", (Handle, Handle);
        event_query: "cuEventQuery", "hipEventQuery", (Handle);
        event_elapsed: "cuEventElapsedTime", "hipEventElapsedTime", (*mut c_float, Handle, Handle);
        copy_to_device: "cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync", (u64, *const c_void, usize, Handle);
        copy_to_host: "cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync", (*mut c_void, u64, usize, Handle);
        copy_on_device: "cuMemcpyDtoDAsync_v2", "hipMemcpyDtoDAsync", (u64, u64, usize, Handle);
        module_load: "cuModuleLoadData", "hipModuleLoadData", (*mut Handle, *const c_void);
        module_unload: "cuModuleUnload", "hipModuleUnload", (Handle);
        module_function: "cuModuleGetFunction", "hipModuleGetFunction", (*mut Handle, Handle, *const c_char);
        launch: "cuLaunchKernel", "hipModuleLaunchKernel", (
            Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle,
            *mut *mut c_void, *mut *mut c_void
        );
        capture_begin: "cuStreamBeginCapture_v2", "hipStreamBeginCapture", (Handle, c_uint);
        capture_end: "cuStreamEndCapture", "hipStreamEndCapture", (Handle, *mut Handle);
        graph_instantiate: "cuGraphInstantiateWithFlags", "hipGraphInstantiateWithFlags", (*mut Handle, Handle, u64);
        graph_launch: "cuGraphLaunch", "hipGraphLaunch", (Handle, Handle);
        graph_destroy: "cuGraphDestroy", "hipGraphDestroy", (Handle);
        graph_exec_destroy: "cuGraphExecDestroy", "hipGraphExecDestroy", (Handle);
    }
);

table!(
    /// The run-time compiler's functions. `code` is machine code of the named processor.
    Compiler {
        version: "nvrtcVersion", "hiprtcVersion", (*mut c_int, *mut c_int);
        create: "nvrtcCreateProgram", "hiprtcCreateProgram", (
            *mut Handle, *const c_char, *const c_char, c_int, *const *const c_char,
            *const *const c_char
        );
        compile: "nvrtcCompileProgram", "hiprtcCompileProgram", (Handle, c_int, *const *const c_char);
        log_size: "nvrtcGetProgramLogSize", "hiprtcGetProgramLogSize", (Handle, *mut usize);
        log: "nvrtcGetProgramLog", "hiprtcGetProgramLog", (Handle, *mut c_char);
        code_size: "nvrtcGetCUBINSize", "hiprtcGetCodeSize", (Handle, *mut usize);
        code: "nvrtcGetCUBIN", "hiprtcGetCode", (Handle, *mut c_char);
        destroy: "nvrtcDestroyProgram", "hiprtcDestroyProgram", (*mut Handle);
    }
);

/// Makes a device current on the calling thread.
pub(crate) enum Activate {
    /// By the device's primary context.
    Context {
        retain: unsafe extern "C" fn(*mut Handle, c_int) -> Status,
        release: unsafe extern "C" fn(c_int) -> Status,
        set: unsafe extern "C" fn(Handle) -> Status,
        attribute: unsafe extern "C" fn(*mut c_int, c_int, c_int) -> Status,
    },
    /// By the device's number.
    Number {
        /// The vendor's call.
        set: unsafe extern "C" fn(c_int) -> Status,
    },
}

/// Names an error status.
pub(crate) enum ErrorName {
    /// Through a pointer.
    Out(unsafe extern "C" fn(Status, *mut *const c_char) -> Status),
    /// As the result.
    Returned(unsafe extern "C" fn(Status) -> *const c_char),
}

/// A loaded driver.
pub(crate) struct Api {
    pub(crate) vendor: Vendor,
    pub(crate) driver: Driver,
    pub(crate) activate: Activate,
    error_name: ErrorName,
    /// Keeps the code of the functions mapped.
    _library: Library,
}

/// A loaded run-time compiler.
pub(crate) struct CompilerApi {
    pub(crate) compiler: Compiler,
    /// Keeps the code of the functions mapped.
    _library: Library,
}

impl Api {
    /// Loads the first driver that is found among `names`.
    pub(crate) fn load(vendor: Vendor, names: &[String]) -> Result<Self, DeviceError> {
        let opened = open(names)?;
        let library = &opened;
        let driver = Driver::find(library, vendor)?;
        let (activate, error_name) = match vendor {
            Vendor::Cuda => (
                Activate::Context {
                    // SAFETY: documented as (CUcontext*, CUdevice).
                    retain: unsafe { symbol(library, "cuDevicePrimaryCtxRetain") }?,
                    // SAFETY: documented as (CUdevice).
                    release: unsafe { symbol(library, "cuDevicePrimaryCtxRelease_v2") }?,
                    // SAFETY: documented as (CUcontext).
                    set: unsafe { symbol(library, "cuCtxSetCurrent") }?,
                    // SAFETY: documented as (int*, CUdevice_attribute, CUdevice).
                    attribute: unsafe { symbol(library, "cuDeviceGetAttribute") }?,
                },
                // SAFETY: documented as (CUresult, const char**).
                ErrorName::Out(unsafe { symbol(library, "cuGetErrorName") }?),
            ),
            Vendor::Hip => (
                // SAFETY: documented as (int).
                Activate::Number { set: unsafe { symbol(library, "hipSetDevice") }? },
                // SAFETY: documented as (hipError_t) -> const char*.
                ErrorName::Returned(unsafe { symbol(library, "hipGetErrorName") }?),
            ),
        };
        Ok(Self { vendor, driver, activate, error_name, _library: opened })
    }

    /// Turns a status into a result; `call` says what was tried.
    pub(crate) fn check(&self, call: &'static str, status: Status) -> Result<(), DeviceError> {
        if status == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        match self.error_name {
            ErrorName::Out(get) => {
                // SAFETY: the pointer is to a local; an unknown status leaves it null.
                unsafe { get(status, &raw mut name) };
            }
            ErrorName::Returned(get) => {
                // SAFETY: takes any number.
                name = unsafe { get(status) };
            }
        }
        let name = if name.is_null() {
            "unknown error".into()
        } else {
            // SAFETY: the driver's names are static strings.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        };
        Err(DeviceError::Call { call, status, name })
    }
}

impl CompilerApi {
    /// Loads the first run-time compiler that is found among `names`.
    pub(crate) fn load(vendor: Vendor, names: &[String]) -> Result<Self, DeviceError> {
        let library = open(names)?;
        Ok(Self { compiler: Compiler::find(&library, vendor)?, _library: library })
    }
}

fn open(names: &[String]) -> Result<Library, DeviceError> {
    let mut reasons = Vec::new();
    for name in names {
        // SAFETY: initialisers of a driver's libraries have no preconditions.
        match unsafe { Library::new(name) } {
            Ok(library) => return Ok(library),
            Err(error) => reasons.push(what(&error)),
        }
    }
    Err(DeviceError::LibraryAbsent { tried: names.to_vec(), reason: reasons.join("; ") })
}

/// # Safety
/// `T` is a function pointer of the shape that the library gives the symbol.
unsafe fn symbol<T: Copy>(library: &Library, name: &str) -> Result<T, DeviceError> {
    // SAFETY: the caller states the shape.
    let found = unsafe { library.get::<T>(name) };
    found
        .map(|symbol| *symbol)
        .map_err(|error| DeviceError::SymbolAbsent { symbol: name.into(), reason: what(&error) })
}

/// The loader's own words, where there are any: the error itself says only which call has failed.
fn what(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}
