//! libtorch's process-wide settings and what it says of itself.

use ringtune_engine::{InstructionSet, Precision};

use crate::error::{Error, Result};
use crate::native;

/// Decides the last bits of a result, besides the model and the thread count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeInfo {
    /// libtorch's version, such as "2.13.0".
    pub libtorch_version: String,
    /// The instruction set of ATen's kernels: "AVX512", "AVX2" or "DEFAULT".
    pub cpu_capability: String,
    /// The best matrix instructions in use here: "amx_bf16", "avx512_bf16", "avx512", "avx2" or "sse".
    pub matrix_instructions: String,
    /// The best set of instructions that our own kernels use.
    pub instructions: InstructionSet,
    /// Whether bfloat16 products have instructions of their own.
    pub has_bf16: bool,
    /// Compute threads.
    pub threads: usize,
}

/// libtorch, set up once.
#[derive(Debug)]
pub struct Runtime;

impl Runtime {
    /// Sets one inter-operation thread, `threads` compute threads, the process' limit of instructions, and an allocator that keeps
    /// large blocks for the next step. Call it first, on the thread that will compute: OpenMP keeps the number per calling thread.
    ///
    /// # Errors
    /// The environment limits the instructions to no set that there is; not 1 to 4096 threads; libtorch's.
    pub fn initialise(threads: usize) -> Result<RuntimeInfo> {
        if let Some(given) = InstructionSet::unknown_limit() {
            let allowed = InstructionSet::ALL.map(InstructionSet::name).join(", ");
            return Err(Error::argument(InstructionSet::VARIABLE, given, allowed));
        }
        // Fails when it was set before, by a test or an earlier call: then it already is as it shall be.
        let _already_set = native::set_interop_threads(1);
        native::limit_instructions(InstructionSet::limit());
        native::install_allocator()?;
        Self::set_threads(threads)?;
        Ok(Self::info())
    }

    /// Changes the compute threads of the calling thread (a job's threads_per_rank).
    pub fn set_threads(threads: usize) -> Result<()> {
        match i32::try_from(threads) {
            Ok(count) if (1..=4096).contains(&count) => native::set_threads(count),
            _ => Err(Error::argument("threads", threads, "1 to 4096")),
        }
    }

    /// From here on each compute thread of the calling thread runs on its own one of these processors, and whatever they
    /// start on any of them. While there are more threads than processors they run wherever the calling thread was allowed
    /// before; an empty list changes nothing. No bit depends on it.
    ///
    /// # Errors
    /// The system does not allow it: then they stay where they are.
    pub fn place_threads(processors: &[usize]) -> Result<()> {
        let numbers = processors.iter().map(|processor| i32::try_from(*processor));
        let numbers: Vec<i32> = numbers
            .collect::<std::result::Result<_, _>>()
            .map_err(|_| Error::argument("processors", format!("{processors:?}"), "numbers of processors"))?;
        native::place_threads(&numbers)
    }

    /// Puts compute threads in their places that were started since the last call, which libgomp does where operations
    /// use different numbers of threads. Cheap.
    pub fn settle_threads() -> Result<()> {
        native::settle_threads()
    }

    /// Returns the memory of freed tensors to the system, before tensors of other sizes are allocated.
    pub fn release_memory() -> Result<()> {
        native::release_memory()
    }

    /// The current settings.
    pub fn info() -> RuntimeInfo {
        RuntimeInfo {
            libtorch_version: native::libtorch_version(),
            cpu_capability: native::cpu_capability(),
            matrix_instructions: matrix_instructions().to_string(),
            instructions: native::instruction_set(),
            has_bf16: has_bf16(),
            threads: native::threads(),
        }
    }
}

/// AMX with bf16 comes with AVX-512 BF16 in every processor that has it.
pub(crate) fn has_bf16() -> bool {
    native::instruction_set() >= InstructionSet::Avx512Bf16
}

/// Checks that this processor supports the precision: without its instructions oneDNN refuses bf16, half-way through a model.
pub(crate) fn check_precision(precision: Precision) -> Result<()> {
    if precision == Precision::Bf16 && !has_bf16() {
        let allowed = "fp32: this processor has no bf16 instructions (avx512_bf16)";
        return Err(Error::argument("precision", precision, allowed));
    }
    Ok(())
}

/// As numerics classes have it, which are older than [`InstructionSet`].
fn matrix_instructions() -> &'static str {
    match native::instruction_set() {
        InstructionSet::Amx | InstructionSet::Auto => "amx_bf16",
        InstructionSet::Avx512Bf16 => "avx512_bf16",
        InstructionSet::Avx512 => "avx512",
        InstructionSet::Avx2 => "avx2",
        InstructionSet::Portable => "sse",
    }
}

/// Whether a test of bf16 has to be left out, which it says.
#[cfg(test)]
#[allow(clippy::print_stderr, reason = "whoever runs the tests is to know")]
pub(crate) fn skips_bf16() -> bool {
    native::limit_instructions(InstructionSet::limit());
    let skips = !has_bf16();
    if skips {
        eprintln!("SKIPPED: this processor has no bf16 instructions");
    }
    skips
}

/// The same of kernels of our own in fp32, which are used from here on wherever there are any.
#[cfg(test)]
#[allow(clippy::print_stderr, reason = "whoever runs the tests is to know")]
pub(crate) fn skips_own_fp32() -> bool {
    native::limit_instructions(InstructionSet::limit());
    native::use_floats_with_avx512(true);
    let skips = native::instruction_set() < InstructionSet::Avx2;
    if skips {
        eprintln!("SKIPPED: fp32 has no kernels of our own without AVX2");
    }
    skips
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that lesser machines do, in processes of their own: libtorch looks at its limits once.
    #[test]
    fn with_fewer_instructions_our_kernels_pass_the_same_tests() {
        if InstructionSet::limit() != InstructionSet::Auto {
            return;
        }
        let run = |set: &str, kernels: &[&str], more: &[(&str, &str)]| {
            let mut tests = std::process::Command::new(std::env::current_exe().unwrap());
            // One after the other: numbers are drawn from the process's one generator.
            tests
                .arg("--test-threads=1")
                .args(kernels)
                .env(InstructionSet::VARIABLE, set)
                .envs(more.iter().copied());
            let ended = tests.output().unwrap();
            (ended.status.success(), String::from_utf8_lossy(&ended.stdout).into_owned())
        };
        let kernels = ["attention", "convolution", "native", "product_tests", "layer_tests"];
        for set in InstructionSet::ALL.into_iter().filter(|set| *set < native::instruction_set()) {
            let (passed, said) = run(set.name(), &kernels, set.variables());
            assert!(passed, "{set}: {said}");
        }
        let (passed, said) = run("avx3", &["product_tests"], &[]);
        assert!(!passed && said.contains("\"avx3\", allowed: \"portable, avx2, "), "{said}");
    }
}
