//! Gives this crate's binaries and tests the way to libtorch: `ringtune-model` knows the folder.

fn main() {
    if let Ok(folder) = std::env::var("DEP_RINGTUNE_MODEL_LIBTORCH_LIB") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{folder}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
