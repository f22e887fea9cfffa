//! Compiles the native shim in `csrc/` and hands libtorch's library folder on.
//!
//! torch-sys finds libtorch (`LIBTORCH`, or what deploy/install-libtorch.sh wrote into .cargo) and tells this
//! script the folder. This crate's own tests and examples get it as an rpath here; a crate with a binary
//! reads it from `DEP_RINGTUNE_MODEL_LIBTORCH_LIB` in its own build script, since an rpath does not travel.

use std::path::{Path, PathBuf};

const SOURCES: [&str; 6] = [
    "csrc/shim.cpp",
    "csrc/attention.cpp",
    "csrc/attention_backward.cpp",
    "csrc/attention_blocks.cpp",
    "csrc/attention_forward.cpp",
    "csrc/attention_gemm.cpp",
];

/// For processors with bfloat16 instructions; chosen at run time.
const BF16_KERNELS: &str = "csrc/bf16_kernels_avx512.cpp";
const BF16_FLAGS: [&str; 5] = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16"];

fn main() -> Result<(), String> {
    println!("cargo::rerun-if-changed=csrc");
    println!("cargo::rerun-if-env-changed=LIBTORCH_INCLUDE");
    println!("cargo::rerun-if-env-changed=LIBTORCH_CXX11_ABI");
    let reported = std::env::var("DEP_TCH_LIBTORCH_LIB").map_err(|_| {
        "torch-sys did not say where libtorch is: run `make setup` (or deploy/install-libtorch.sh) first"
            .to_string()
    })?;
    // The real folder, so that the binaries go on working when a link on the way is moved.
    let libraries = Path::new(&reported).canonicalize().map_err(|error| {
        format!(
            "libtorch's library folder {reported} cannot be read ({error}): run `make setup` (or \
             deploy/install-libtorch.sh), or correct LIBTORCH"
        )
    })?;
    let root = match std::env::var_os("LIBTORCH_INCLUDE") {
        Some(folder) => PathBuf::from(folder),
        None => libraries.join(".."),
    };
    let abi = std::env::var("LIBTORCH_CXX11_ABI").unwrap_or_else(|_| "1".to_string());
    let with_bf16_kernels = compile_bf16_kernels()?;
    let mut shim = base_build();
    if with_bf16_kernels {
        shim.define("RINGTUNE_AVX512_BF16", None);
    }
    shim.include(root.join("include"))
        .include(root.join("include/torch/csrc/api/include"))
        .define("_GLIBCXX_USE_CXX11_ABI", abi.as_str())
        .define("AT_PARALLEL_OPENMP", "1")
        .flag("-fopenmp")
        .files(SOURCES)
        .try_compile("ringtune_model_shim")
        .map_err(|error| format!("the native shim in worker/model/csrc did not compile: {error}"))?;
    if with_bf16_kernels {
        // After the shim, which calls into it.
        println!("cargo::rustc-link-lib=static=ringtune_model_kernels");
    }
    println!("cargo::rustc-link-arg=-Wl,-rpath,{}", libraries.display());
    println!("cargo::metadata=libtorch_lib={}", libraries.display());
    Ok(())
}

fn base_build() -> cc::Build {
    let mut build = cc::Build::new();
    build.cpp(true).std("c++20").opt_level(3).debug(false).warnings(false);
    build
}

/// A library of its own, since its instructions must not leak into code that every processor runs.
/// Returns whether compiler and target have them.
fn compile_bf16_kernels() -> Result<bool, String> {
    let x86 = std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|target| target == "x86_64");
    let mut build = base_build();
    if !x86 || !build.is_flag_supported("-mavx512bf16").unwrap_or(false) {
        println!(
            "cargo::warning=this compiler has no avx512bf16: attention falls back to libtorch's slower one"
        );
        return Ok(false);
    }
    build
        .flags(BF16_FLAGS)
        .file(BF16_KERNELS)
        .try_compile("ringtune_model_kernels")
        .map_err(|error| format!("{BF16_KERNELS} did not compile: {error}"))?;
    Ok(true)
}
