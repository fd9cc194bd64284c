//! Builds and loads the stand-in driver.

use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use libloading::Library;
use statepages_cuda::{
    Checks, Device, DeviceBackend, DeviceMemory, DeviceOptions, KERNEL_SOURCE, KernelShape,
    Libraries, Passing, StagingLimits, Vendor,
};
use statepages_page::{Pages, StateLayout};

/// Small blocks, so that small layouts have many tiles.
pub(crate) const SHAPE: KernelShape = KernelShape::new(64, 2, 1).expect("a valid shape");

/// A driver of its own: failures that a test asks for reach no other test.
pub(crate) struct StandIn {
    pub(crate) libraries: Libraries,
    control: Library,
    checks: Checks,
    file: PathBuf,
}

/// Libraries that this process has built.
static BUILT: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static COPIES: AtomicU32 = AtomicU32::new(0);

impl StandIn {
    /// `None`, with a word on standard error, where there is no C++ compiler.
    pub(crate) fn new(vendor: Vendor, checks: Checks) -> Option<Self> {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let built = dir.join(format!("stand-in-{checks:?}.so"));
        let mut ready = BUILT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !ready.contains(&built) {
            build(&built, checks)?;
            ready.push(built.clone());
        }
        drop(ready);
        // The loader tells libraries apart by file.
        let copy = COPIES.fetch_add(1, Ordering::Relaxed);
        let own = dir.join(format!("stand-in-{}-{copy}.so", std::process::id()));
        std::fs::copy(&built, &own).expect("the target folder can be written");
        // SAFETY: the library has no initialisers beyond those of its containers.
        let control = unsafe { Library::new(&own) }.expect("the stand-in was just built");
        let names = vec![own.display().to_string()];
        let libraries = Libraries { vendor, driver: names.clone(), compiler: names };
        Some(Self { libraries, control, checks, file: own })
    }

    pub(crate) fn device(&self) -> Device {
        Device::open(&self.libraries, 0).expect("the stand-in has a device")
    }

    /// A backend with a stream of its own, and the memory it was built for.
    pub(crate) fn backend(
        &self,
        layout: &StateLayout,
        (pages, slots): (u32, u32),
        (staging, passing): (StagingLimits, Passing),
    ) -> (DeviceBackend, DeviceMemory) {
        let device = self.device();
        let memory = DeviceMemory::allocate(&device, layout, Pages::new(pages), slots).unwrap();
        let options = DeviceOptions {
            shape: SHAPE,
            checks: self.checks,
            staging,
            passing,
            cache: None,
            source: KERNEL_SOURCE.into(),
        };
        let backend =
            DeviceBackend::new(&self.libraries, layout.clone(), &memory, &options).unwrap();
        (backend, memory)
    }

    /// Fails the call of that (CUDA) name after the next `after`.
    pub(crate) fn fail(&self, call: &str, after: i32) {
        let name = CString::new(call).unwrap();
        // SAFETY: declared as (const char*, int) in stand_in.cpp.
        let fail = unsafe {
            self.control.get::<unsafe extern "C" fn(*const c_char, c_int)>("stand_in_fail")
        };
        // SAFETY: the name ends in zero.
        unsafe { fail.unwrap()(name.as_ptr(), after) };
    }

    /// Has the next table reach the device with `value` at byte `at`.
    pub(crate) fn corrupt(&self, at: u64, value: u32) {
        // SAFETY: declared as (u64, u32) in stand_in.cpp.
        let corrupt =
            unsafe { self.control.get::<unsafe extern "C" fn(u64, u32)>("stand_in_corrupt") };
        // SAFETY: takes any numbers.
        unsafe { corrupt.unwrap()(at, value) };
    }

    /// Seeds the order in which streams get on.
    pub(crate) fn seed(&self, seed: u64) {
        // SAFETY: declared as (u64) in stand_in.cpp.
        let set = unsafe { self.control.get::<unsafe extern "C" fn(u64)>("stand_in_seed") };
        // SAFETY: takes any number.
        unsafe { set.unwrap()(seed) };
    }

    /// Bytes of guard bands that were overwritten.
    pub(crate) fn guard_faults(&self) -> u64 {
        self.count("stand_in_guard_faults")
    }

    /// Things made and not yet destroyed.
    pub(crate) fn live(&self) -> u64 {
        self.count("stand_in_live")
    }

    fn count(&self, name: &str) -> u64 {
        // SAFETY: both counters are declared as () -> u64 in stand_in.cpp.
        let count = unsafe { self.control.get::<unsafe extern "C" fn() -> u64>(name) };
        // SAFETY: takes nothing.
        unsafe { count.unwrap()() }
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        // A copy that stays behind costs disk, not truth.
        std::fs::remove_file(&self.file).ok();
    }
}

fn build(target: &Path, checks: Checks) -> Option<()> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/device/stand_in.cpp");
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let mut command = Command::new(&compiler);
    command.args(["-std=c++17", "-O2", "-shared", "-fPIC", "-DRESIDENT=1"]);
    command.arg(format!("-DTHREADS={}u", SHAPE.threads()));
    command.arg(format!("-DVECTORS={}u", SHAPE.vectors()));
    if checks == Checks::HostAndKernel {
        command.arg("-DSTATEPAGES_CHECKED");
    }
    command.arg("-o").arg(target).arg(source);
    match command.output() {
        Err(error) => {
            eprintln!("skipped: no C++ compiler for the stand-in driver: {compiler}: {error}");
            None
        }
        Ok(output) => {
            let log = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "the kernels do not compile as host code: {log}");
            Some(())
        }
    }
}
