//! Compile checks without a device: AMD code objects whose disassembly is read, and NVRTC.
//!
//! The compilers are wheels that continuous integration unpacks into `target/tools`:
//! `ziglang==0.15.2` (clang 20 and lld) and `nvidia-cuda-nvrtc==13.0.88`. Without them the tests say
//! so and check nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use statepages_cuda::{
    Checks, KERNEL_SOURCE, KernelShape, Libraries, Processor, Vendor, compile_for,
};

const PROCESSORS: [&str; 2] = ["gfx942", "gfx950"];
const KERNELS: usize = 9;

fn tools() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools");
    std::env::var_os("STATEPAGES_TOOLS").map_or(root, PathBuf::from)
}

fn zig() -> Option<PathBuf> {
    let zig = tools().join("ziglang/zig");
    if zig.is_file() {
        return Some(zig);
    }
    eprintln!("skipped: no clang for AMD at {} (ziglang==0.15.2)", zig.display());
    None
}

/// Runs a tool in a folder of the test's own; panics with what it said where it fails.
fn run(zig: &Path, arguments: &[&str]) {
    let output = Command::new(zig).args(arguments).output().expect("zig can be started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "zig {}: {said}", arguments.join(" "));
}

fn path(name: &str) -> String {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name).display().to_string()
}

/// Compiles device code alone, without ROCm's headers or libraries, to assembly.
fn assemble(
    zig: &Path,
    source: &str,
    processor: &str,
    shape: KernelShape,
    checks: Checks,
) -> String {
    let name = format!("{processor}-{}-{}-{checks:?}", shape.threads(), shape.vectors());
    let (input, listing) = (path(&format!("{name}.hip")), path(&format!("{name}.s")));
    fs::write(&input, source).unwrap();
    let (arch, threads, vectors) = (
        format!("--offload-arch={processor}"),
        format!("-DTHREADS={}u", shape.threads()),
        format!("-DVECTORS={}u", shape.vectors()),
    );
    let mut arguments = vec![
        "clang",
        "-x",
        "hip",
        "--cuda-device-only",
        "-nogpulib",
        "-nogpuinc",
        "-O3",
        "-Werror",
        &arch,
        &threads,
        &vectors,
        "-DRESIDENT=1",
        "-S",
        "-o",
        &listing,
        &input,
    ];
    if checks == Checks::HostAndKernel {
        arguments.push("-DSTATEPAGES_CHECKED");
    }
    run(zig, &arguments);
    fs::read_to_string(&listing).unwrap()
}

/// What must not be in a listing, line by line: memory accesses without an address space, and any
/// use of scratch.
fn findings(listing: &str) -> Vec<String> {
    let forbidden = |line: &str| {
        let code = line.split(';').next().unwrap_or_default().trim();
        [
            "flat_load",
            "flat_store",
            "flat_atomic",
            "scratch_load",
            "scratch_store",
            "buffer_load",
            "buffer_store",
        ]
        .iter()
        .any(|instruction| code.starts_with(instruction))
    };
    // In the metadata that a loader reads, one line a kernel.
    let nonzero = |line: &str| {
        [".private_segment_fixed_size:", ".vgpr_spill_count:", ".sgpr_spill_count:"]
            .iter()
            .filter_map(|key| line.trim().strip_prefix(key))
            .any(|value| value.trim() != "0")
    };
    let lines = listing.lines().filter(|line| forbidden(line) || nonzero(line));
    lines.map(|line| line.trim().to_owned()).collect()
}

#[test]
fn amd_code_uses_no_scratch_and_no_flat_access() {
    let Some(zig) = zig() else { return };
    let shapes = [KernelShape::MEASURED, KernelShape::new(512, 8, 1).unwrap()];
    for processor in PROCESSORS {
        for shape in shapes {
            for checks in [Checks::Host, Checks::HostAndKernel] {
                let listing = assemble(&zig, KERNEL_SOURCE, processor, shape, checks);
                let context = format!("{processor} {shape:?} {checks:?}");
                assert_eq!(findings(&listing), Vec::<String>::new(), "{context}");
                let kernels = listing.matches(".private_segment_fixed_size:").count();
                assert_eq!(kernels, KERNELS, "kernels of {context}");
                for wide in ["global_load_dwordx4", "global_store_dwordx4"] {
                    let count = listing.matches(wide).count();
                    assert!(count >= shape.vectors() as usize, "{count} {wide} in {context}");
                }
            }
        }
    }
}

/// A code object that a loader takes: linked, for the machine of AMD's processors.
#[test]
fn amd_code_objects_link() {
    let Some(zig) = zig() else { return };
    for processor in PROCESSORS {
        assemble(
            &zig,
            KERNEL_SOURCE,
            processor,
            KernelShape::new(192, 4, 1).unwrap(),
            Checks::Host,
        );
        let name = format!("{processor}-192-4-Host");
        let (listing, object, linked) = (
            path(&format!("{name}.s")),
            path(&format!("{name}.o")),
            path(&format!("{name}.hsaco")),
        );
        let cpu = format!("-mcpu={processor}");
        let target = ["clang", "-target", "amdgcn-amd-amdhsa", &cpu, "-c", &listing, "-o", &object];
        run(&zig, &target);
        run(&zig, &["ld.lld", "-shared", &object, "-o", &linked]);
        let bytes = fs::read(&linked).unwrap();
        assert_eq!(bytes[..4], *b"\x7fELF");
        assert_eq!(u16::from_le_bytes([bytes[18], bytes[19]]), 224, "EM_AMDGPU");
        for kernel in [
            "copy",
            "copy_argued",
            "direct",
            "direct_argued",
            "relocate",
            "relocate_argued",
            "fill",
            "digest",
            "hold",
        ] {
            let name = format!("statepages_{kernel}.kd");
            let found = bytes.windows(name.len()).any(|window| window == name.as_bytes());
            assert!(found, "no kernel descriptor {name} for {processor}");
        }
    }
}

/// The reading of the disassembly sees what it is there to see.
#[test]
fn faults_in_amd_code_are_found() {
    let Some(zig) = zig() else { return };
    let head = "extern \"C\" __attribute__((global)) void fault(unsigned long long a, int n) {";
    let flat = format!("{head} *(int*)a = n; }}");
    let scratch = format!(
        "{head} volatile int kept[64]; for (int i = 0; i < 64; i++) kept[i] = n + i;
         *(__attribute__((address_space(1))) int*)a = kept[n & 63]; }}"
    );
    // A shape of their own, so that the listings are files of their own.
    for (threads, source, expected) in
        [(64, flat, "flat_store"), (128, scratch, ".private_segment_fixed_size:")]
    {
        let shape = KernelShape::new(threads, 1, 1).unwrap();
        let listing = assemble(&zig, &source, "gfx942", shape, Checks::Host);
        let found = findings(&listing);
        assert!(found.iter().any(|line| line.starts_with(expected)), "{expected}: {found:?}");
    }
}

/// NVRTC needs no driver: the machine code of three generations, plain and checked.
#[test]
fn nvrtc_compiles_without_local_memory() {
    let Some((_builtins, libraries)) = nvrtc() else { return };
    for (major, minor) in [(8, 0), (9, 0), (10, 0)] {
        for checks in [Checks::Host, Checks::HostAndKernel] {
            let processor = Processor { major, minor };
            let code = compile_for(&libraries, processor, KernelShape::MEASURED, checks).unwrap();
            assert_eq!(code[..4], *b"\x7fELF");
            let contains = |name: &[u8]| code.windows(name.len()).any(|window| window == name);
            assert!(contains(b"statepages_copy"), "{processor:?}");
            assert!(!contains(b".nv.local."), "{processor:?} {checks:?} uses local memory");
        }
    }
}

/// NVRTC's library, and the one that it looks for by name alone, which is therefore loaded first.
fn nvrtc() -> Option<(libloading::Library, Libraries)> {
    let dir = fs::read_dir(tools().join("nvidia")).ok().and_then(|dirs| {
        let folders = dirs.flatten().map(|entry| entry.path().join("lib"));
        folders.into_iter().find(|lib| lib.join("libnvrtc.so.13").is_file())
    });
    let Some(dir) = dir else {
        let place = tools().join("nvidia");
        eprintln!("skipped: no NVRTC in {} (nvidia-cuda-nvrtc==13.0.88)", place.display());
        return None;
    };
    let name = |file: &str| vec![dir.join(file).display().to_string()];
    // SAFETY: the library holds data for the compiler, and no initialisers.
    let builtins = unsafe { libloading::Library::new(dir.join("libnvrtc-builtins.so.13.0")) };
    let libraries = Libraries {
        vendor: Vendor::Cuda,
        driver: name("libcuda.so.1"),
        compiler: name("libnvrtc.so.13"),
    };
    Some((builtins.expect("a sound wheel"), libraries))
}
