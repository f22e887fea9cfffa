//! Compiles the native shim in `csrc/` and hands libtorch's library folder on.
//!
//! torch-sys finds libtorch (`LIBTORCH`, or what deploy/install-libtorch.sh wrote into .cargo) and tells this
//! script the folder. This crate's own tests get it as an rpath here; a crate with a binary
//! reads it from `DEP_RINGTUNE_MODEL_LIBTORCH_LIB` in its own build script, since an rpath does not travel.

use std::path::{Path, PathBuf};

const SOURCES: [&str; 23] = [
    "csrc/with_libtorch.cpp",
    "csrc/blocks.cpp",
    "csrc/dropout.cpp",
    "csrc/fused_kernels.cpp",
    "csrc/attention_amx.cpp",
    "csrc/attention_backward.cpp",
    "csrc/attention_blocks.cpp",
    "csrc/attention_forward.cpp",
    "csrc/attention_gemm.cpp",
    "csrc/attention_tiles.cpp",
    "csrc/attention_tiles_backward.cpp",
    "csrc/attention_tiles_forward.cpp",
    "csrc/direct_convolution.cpp",
    "csrc/few_rows.cpp",
    "csrc/float_kernels.cpp",
    "csrc/instructions.cpp",
    "csrc/language_kernels.cpp",
    "csrc/split_linear.cpp",
    "csrc/text_kernels.cpp",
    "csrc/tiled_product.cpp",
    "csrc/vector_layers.cpp",
    "csrc/vector_rows.cpp",
    "csrc/winograd.cpp",
];

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
    cc::Build::new()
        .cpp(true)
        .std("c++20")
        .opt_level(3)
        .debug(false)
        .warnings(true)
        .extra_warnings(true)
        // So that what is defined here and not declared in shim.h is seen.
        .flag("-Wmissing-declarations")
        // A root is the processor's own: nobody asks for errno. And of vectors that no register holds, which all stay
        // within one function, GCC says only that others would see them otherwise.
        .flag("-fno-math-errno")
        .flag_if_supported("-Wno-psabi")
        // libtorch's own headers are not ours to mend.
        .flag("-isystem")
        .flag(root.join("include"))
        .flag("-isystem")
        .flag(root.join("include/torch/csrc/api/include"))
        .define("_GLIBCXX_USE_CXX11_ABI", abi.as_str())
        .define("AT_PARALLEL_OPENMP", "1")
        // As libtorch was compiled: some of its classes are laid out otherwise without it.
        .define("NDEBUG", None)
        .flag("-fopenmp")
        .files(SOURCES)
        .try_compile("ringtune_model_shim")
        .map_err(|error| format!("the native shim in worker/model/csrc did not compile: {error}"))?;
    println!("cargo::rustc-link-arg=-Wl,-rpath,{}", libraries.display());
    println!("cargo::metadata=libtorch_lib={}", libraries.display());
    Ok(())
}
