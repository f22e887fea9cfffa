//! The sets of instructions that processors have, and the most of them that this process uses.

use std::{fmt, sync::OnceLock};

use serde::{Deserialize, Serialize};

/// Sets of instructions, each with all before it: their one order, which `csrc/instructions.h` of the model library repeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InstructionSet {
    /// What every x86-64 processor has, and any other processor.
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, BW, VL and DQ: Skylake-SP, Cascade Lake, Ice Lake-SP.
    Avx512,
    /// AVX-512 with products of bf16: Cooper Lake, Zen 4.
    Avx512Bf16,
    /// Tiles of bf16: Sapphire Rapids and later.
    Amx,
    /// As the most that may be used: whatever there is.
    #[default]
    Auto,
}

/// Or what the environment has in its place.
static LIMIT: OnceLock<Result<InstructionSet, String>> = OnceLock::new();

impl InstructionSet {
    /// Where a process that was told nothing looks for its limit: examples and tests.
    pub const VARIABLE: &str = "RINGTUNE__COMPUTE__INSTRUCTION_SET";

    /// All of them, in their order.
    pub const ALL: [Self; 6] =
        [Self::Portable, Self::Avx2, Self::Avx512, Self::Avx512Bf16, Self::Amx, Self::Auto];

    /// As settings have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Bf16 => "avx512_bf16",
            Self::Amx => "amx",
            Self::Auto => "auto",
        }
    }

    fn decided() -> &'static Result<Self, String> {
        LIMIT.get_or_init(|| {
            let Some(given) = std::env::var_os(Self::VARIABLE) else { return Ok(Self::Auto) };
            let set = Self::ALL.into_iter().find(|set| given == set.name());
            set.ok_or_else(|| given.to_string_lossy().into_owned())
        })
    }

    /// The most that this process uses.
    pub fn limit() -> Self {
        Self::decided().clone().unwrap_or_default()
    }

    /// What stands in [`Self::VARIABLE`] and is no set, where this process was told nothing else.
    pub fn unknown_limit() -> Option<&'static str> {
        Self::decided().as_ref().err().map(String::as_str)
    }

    /// From here on this process uses it at most. The first call counts, and only before anything asked for the limit.
    pub fn limit_process(self) {
        let _first = LIMIT.set(Ok(self));
    }

    /// The variables of the environment by which ATen, oneDNN and MKL use it at most, with their values; none where that is
    /// all they know. They are read when something is computed for the first time.
    pub fn variables(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Portable => &[
                ("ATEN_CPU_CAPABILITY", "default"),
                ("ONEDNN_MAX_CPU_ISA", "SSE41"),
                ("MKL_ENABLE_INSTRUCTIONS", "SSE4_2"),
            ],
            Self::Avx2 => &[
                ("ATEN_CPU_CAPABILITY", "avx2"),
                ("ONEDNN_MAX_CPU_ISA", "AVX2"),
                ("MKL_ENABLE_INSTRUCTIONS", "AVX2"),
            ],
            Self::Avx512 => &[
                ("ATEN_CPU_CAPABILITY", "avx512"),
                ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE"),
                ("MKL_ENABLE_INSTRUCTIONS", "AVX512"),
            ],
            Self::Avx512Bf16 => {
                &[("ATEN_CPU_CAPABILITY", "avx512"), ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")]
            }
            Self::Amx | Self::Auto => &[],
        }
    }
}

impl fmt::Display for InstructionSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_set_has_all_before_it_and_its_own_name() {
        assert!(InstructionSet::ALL.is_sorted());
        let names: Vec<String> = InstructionSet::ALL.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["portable", "avx2", "avx512", "avx512_bf16", "amx", "auto"]);
        assert_eq!(InstructionSet::default(), InstructionSet::Auto);
    }
}
