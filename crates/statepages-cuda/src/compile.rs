//! Compiles the kernels for the device that was found, and keeps the machine code on disk.
//!
//! A cached file is named by the digest of everything that decides the code: source, flags,
//! compiler version, processor. It begins with the digest of the code that follows, so a file that
//! was torn or changed is compiled anew.

use std::ffi::{CString, c_char, c_int};
use std::fs;
use std::path::{Path, PathBuf};

use crate::api::{Compiler, CompilerApi, Handle, Status, Vendor};
use crate::device::{Allocation, Device, Kernel, Libraries, Module, Processor, Stream};
use crate::pattern::argument;
use crate::{DeviceError, DeviceOptions, KernelShape};

/// The one source of all kernels.
pub const KERNEL_SOURCE: &str = include_str!("../kernels/copy.cu");

/// Whether kernels check the indices that the host has checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checks {
    /// The host's checks are enough.
    Host,
    /// Kernels check once more and count what is wrong; the batch then fails.
    HostAndKernel,
}

/// What became of the cache on disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CacheOutcome {
    /// None was asked for.
    Unused,
    /// The code was read from it.
    Hit,
    /// The code was compiled and written to it.
    Written,
    /// The code was compiled and could not be written.
    Failed(String),
}

/// The kernels of one device.
pub struct Kernels {
    pub(crate) copy: Kernel,
    pub(crate) copy_argued: Kernel,
    pub(crate) direct: Kernel,
    pub(crate) direct_argued: Kernel,
    pub(crate) relocate: Kernel,
    pub(crate) relocate_argued: Kernel,
    pub(crate) fill: Kernel,
    pub(crate) digest: Kernel,
    pub(crate) hold: Kernel,
    pub(crate) shape: KernelShape,
    pub(crate) checks: Checks,
    cache: CacheOutcome,
    /// Keeps the code loaded.
    _module: Module,
}

impl Kernels {
    /// Compiles for `device`, or reads what an earlier run compiled from the cache.
    pub fn new(
        device: &Device,
        libraries: &Libraries,
        options: &DeviceOptions,
    ) -> Result<Self, DeviceError> {
        let DeviceOptions { shape, checks, ref source, .. } = *options;
        let compiler = CompilerApi::load(libraries.vendor, &libraries.compiler)?;
        let target = Target { vendor: device.vendor(), processor: device.processor() };
        let flags = target.flags(shape, checks);
        let version = compiler_version(&compiler)?;
        let name = || file_name(source, &flags, version, device.name());
        let file = options.cache.as_ref().map(|dir| dir.join(name()));
        let (code, cache) = if let Some(code) = file.as_deref().and_then(read_cached) {
            (code, CacheOutcome::Hit)
        } else {
            let code = compile(&compiler, source, &flags)?;
            let cache =
                file.map_or(CacheOutcome::Unused, |file| match write_cached(&file, &code) {
                    Ok(()) => CacheOutcome::Written,
                    Err(error) => CacheOutcome::Failed(format!("{}: {error}", file.display())),
                });
            (code, cache)
        };
        let module = device.module(&code)?;
        Ok(Self {
            copy: module.kernel(c"statepages_copy")?,
            copy_argued: module.kernel(c"statepages_copy_argued")?,
            direct: module.kernel(c"statepages_direct")?,
            direct_argued: module.kernel(c"statepages_direct_argued")?,
            relocate: module.kernel(c"statepages_relocate")?,
            relocate_argued: module.kernel(c"statepages_relocate_argued")?,
            fill: module.kernel(c"statepages_fill")?,
            digest: module.kernel(c"statepages_digest")?,
            hold: module.kernel(c"statepages_hold")?,
            shape,
            checks,
            cache,
            _module: module,
        })
    }

    /// What became of the cache on disk.
    pub fn cache(&self) -> &CacheOutcome {
        &self.cache
    }

    /// Keeps a stream busy for a while, so that what is timed behind it is enqueued before it runs.
    /// `scratch` has at least 8 bytes.
    pub fn hold(
        &self,
        stream: &Stream,
        rounds: u64,
        scratch: &Allocation,
    ) -> Result<(), DeviceError> {
        assert!(scratch.bytes().get() >= 8, "scratch for one word");
        let (mut rounds, mut out) = (rounds, scratch.address());
        let mut arguments = [argument(&mut rounds), argument(&mut out)];
        // SAFETY: the kernel's arguments; freeing the scratch waits.
        unsafe { stream.launch(&self.hold, (1, 1, 1), 1, &mut arguments) }
    }
}

/// Compiles the kernels for a processor, with no device at hand: for compile checks.
pub fn compile_for(
    libraries: &Libraries,
    processor: Processor,
    shape: KernelShape,
    checks: Checks,
) -> Result<Vec<u8>, DeviceError> {
    let compiler = CompilerApi::load(libraries.vendor, &libraries.compiler)?;
    let target = Target { vendor: libraries.vendor, processor: Some(processor) };
    compile(&compiler, KERNEL_SOURCE, &target.flags(shape, checks))
}

struct Target {
    vendor: Vendor,
    processor: Option<Processor>,
}

impl Target {
    fn flags(&self, shape: KernelShape, checks: Checks) -> Vec<String> {
        let mut flags = vec![
            format!("-DTHREADS={}u", shape.threads()),
            format!("-DVECTORS={}u", shape.vectors()),
            format!("-DRESIDENT={}", shape.resident()),
        ];
        if let (Vendor::Cuda, Some(Processor { major, minor })) = (self.vendor, self.processor) {
            flags.push(format!("--gpu-architecture=sm_{major}{minor}"));
        }
        if checks == Checks::HostAndKernel {
            flags.push("-DSTATEPAGES_CHECKED".into());
        }
        flags
    }
}

fn compiler_version(compiler: &CompilerApi) -> Result<(c_int, c_int), DeviceError> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: writes two integers.
    let status = unsafe { (compiler.compiler.version)(&raw mut major, &raw mut minor) };
    accept(status, String::new)?;
    Ok((major, minor))
}

fn accept(status: Status, log: impl FnOnce() -> String) -> Result<(), DeviceError> {
    if status == 0 {
        return Ok(());
    }
    Err(DeviceError::Compile { log: format!("status {status}. {}", log()) })
}

/// A program being compiled; destroyed however that ends.
struct Program<'a> {
    api: &'a Compiler,
    handle: Handle,
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once. Failure leaks a few bytes and has nobody to tell.
        unsafe { (self.api.destroy)(&raw mut self.handle) };
    }
}

fn compile(compiler: &CompilerApi, source: &str, flags: &[String]) -> Result<Vec<u8>, DeviceError> {
    let api = &compiler.compiler;
    let source = CString::new(source).expect("the source holds no zero byte");
    let flags: Vec<CString> = flags
        .iter()
        .map(|flag| CString::new(flag.as_str()).expect("flags hold no zero byte"))
        .collect();
    let pointers: Vec<*const c_char> = flags.iter().map(|flag| flag.as_ptr()).collect();
    let mut program = Program { api, handle: Handle::NONE };
    // SAFETY: writes one handle; the source and the name end in zero, and there are no headers.
    let status = unsafe {
        (api.create)(
            &raw mut program.handle,
            source.as_ptr(),
            c"copy.cu".as_ptr(),
            0,
            std::ptr::null(),
            std::ptr::null(),
        )
    };
    accept(status, String::new)?;
    // SAFETY: as many flags as pointers, each ending in zero and alive.
    let status =
        unsafe { (api.compile)(program.handle, pointers.len() as c_int, pointers.as_ptr()) };
    accept(status, || log(&program))?;
    let mut size = 0;
    // SAFETY: writes one size.
    let status = unsafe { (api.code_size)(program.handle, &raw mut size) };
    accept(status, String::new)?;
    let mut code = vec![0u8; size];
    // SAFETY: writes as many bytes as it has just said.
    let status = unsafe { (api.code)(program.handle, code.as_mut_ptr().cast::<c_char>()) };
    accept(status, String::new)?;
    Ok(code)
}

fn log(program: &Program<'_>) -> String {
    let mut size = 0;
    // SAFETY: writes one size.
    let status = unsafe { (program.api.log_size)(program.handle, &raw mut size) };
    let mut log = vec![0u8; size];
    if status != 0 || size == 0 {
        return "the compiler left no log".into();
    }
    // SAFETY: writes as many bytes as it has just said, the last of them zero.
    let status = unsafe { (program.api.log)(program.handle, log.as_mut_ptr().cast::<c_char>()) };
    if status != 0 {
        return "the compiler's log cannot be read".into();
    }
    log.pop();
    String::from_utf8_lossy(&log).into_owned()
}

fn file_name(source: &str, flags: &[String], version: (c_int, c_int), device: &str) -> PathBuf {
    let mut hasher = blake3::Hasher::new();
    let version = format!("{}.{}", version.0, version.1);
    // Lengths between the parts, so that no two lists of parts read alike.
    for part in flags.iter().map(String::as_str).chain([&*version, device, source]) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    format!("kernels-{}.bin", &hasher.finalize().to_hex()[..32]).into()
}

/// The code of a sound cache file. Any other is as good as none.
fn read_cached(file: &Path) -> Option<Vec<u8>> {
    let bytes = fs::read(file).ok()?;
    let (digest, code) = bytes.split_first_chunk::<32>()?;
    (blake3::hash(code).as_bytes() == digest).then(|| code.to_vec())
}

/// Writes beside the file and renames, so that no reader meets half of it.
fn write_cached(file: &Path, code: &[u8]) -> std::io::Result<()> {
    let dir = file.parent().expect("a file lies in a folder");
    fs::create_dir_all(dir)?;
    let beside = file.with_extension(format!("{}.new", std::process::id()));
    let mut bytes = blake3::hash(code).as_bytes().to_vec();
    bytes.extend_from_slice(code);
    fs::write(&beside, bytes)?;
    fs::rename(&beside, file)
}
