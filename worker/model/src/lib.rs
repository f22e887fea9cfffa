//! Stable Diffusion on libtorch, as far as textual inversion and LoRA need it, and GPT-2, trained and continuing texts: the only crate that names tch.
//!
//! The way in is [`Runtime::initialise`], then [`StableDiffusion::open`], [`Gpt2::open`] or [`Gpt2Text::open`] and its methods; they take and return
//! plain data ([`api`], [`ringtune_engine`]). Every random draw is the caller's. The networks' blocks are public modules so that each
//! can be checked against the reference implementation: open a [`weights::Weights`], take a
//! [`weights::Scope`] of it, build the block, call `forward` with tensors.
//!
//! # The training step
//!
//! The VAE is loaded to encode pictures, and dropped before the step that shows them. In the UNet everything is
//! channels-last. The residual blocks' projections of the time embedding are computed at once. In bf16 these kernels,
//! in `csrc/`, are our own, each with a test against libtorch's operations:
//!
//! - Layers whose channels are multiples of 32 (`frozen_layers.cpp`): 3x3 and 1x1 convolutions that keep the size, and
//!   linear layers. With AMX they are multiplied on its tiles (`tiled_product.cpp`). Without, 3x3 convolutions go by
//!   Winograd's method in fp32 (`winograd.cpp`), those of the smallest pictures directly (`direct_convolution.cpp`),
//!   and rows by `vector_rows.cpp`. docs/performance.md has the measurements.
//! - The text encoder's products in fp32 beside a UNet in bf16 (`split_linear.cpp` with AMX, `few_rows.cpp` without).
//! - Attention, tiled and recomputed in the backward pass (`attention*.cpp`): on AMX tiles (`attention_tiles*.cpp`;
//!   with a causal mask or dropout the other kernels are used there too), by vdpbf16ps with AVX-512 bf16, and
//!   libtorch's elsewhere.
//! - Convolutions whose weights are packed once for the forward pass and once, when a gradient is first taken, for the
//!   backward pass (`convolution.cpp`): frozen weights need no reorder per call. They stay in their file until then
//!   (`packed_weights.rs`, `packing.cpp`), so that opening a model reads next to nothing. A training job has all of
//!   them packed while the model is hashed, by a walk through the layers that computes nothing (`lay_out`). Doubling
//!   the sides before a 3x3 convolution is one transposed convolution with summed weights, 4/9 of the products
//!   (`growing.rs`).
//! - Linear layers, packed in the same way except for the largest, with bias and residual in the same sweep
//!   (`linear.cpp`); queries, keys and values come from one product.
//! - Group norm with SiLU (also of two inputs, which are never concatenated), layer norm and GEGLU, each in one sweep
//!   (`group_norm.cpp`, `fused.cpp`). Norms return their input beside the result: if the residual continues with it,
//!   its gradient is added in the norm's own sweep.
//! - Memory that is kept for the next step (`blocks.cpp`), on huge pages; packed weights lie apart. It serves
//!   libtorch's tensors and oneDNN's scratch space (`allocator.cpp`), and our own kernels. After the first steps a step
//!   has next to no page faults. After a picture all kept memory goes back to the system in bf16, whose packed weights
//!   need the room; in fp32 only what live and kept blocks have beyond 3 GB. In fp32 no weights are packed while the
//!   model is hashed: the system clears meanwhile the memory that the first picture is encoded in.
//!
//! In fp32 with AVX2, 3x3 and 1x1 convolutions that keep the size and linear layers, both with channels that are
//! multiples of 16, attention, norms and GEGLU are our own (`float_layers.h`, `plain_convolution.cpp`; norms are the
//! sweeps of bf16). The same code is compiled for AVX-512, twice as wide (`float_kernels.cpp`, `lanes_eight.h`,
//! `lanes_sixteen.h`); there libtorch computes what `FASTER_WITH_AVX512` does not name: linear layers and 1x1 convolutions. Our own
//! read weights where they lie in the mapped file, forward and backward: nothing is packed or copied, and all workers
//! of a machine share a model's pages. 3x3 convolutions go by Winograd's method at points that lose little by rounding
//! (`float_winograd_body.h`).
//!
//! Which instructions kernels use is decided in one place (`csrc/instructions.h`): the best that the processor has, or
//! less by `compute.instruction_set`, which lowers libtorch too by the variables that it reads
//! (`worker/engine/src/instructions.rs`). So the set in use is part of the numerics class, and bf16 follows it.
//!
//! # Invariants
//!
//! - The order in which numbers are added depends on shapes and the number of threads at most, never on scheduling,
//!   addresses, or what was computed before. libtorch's fp32 kernels do choose by addresses, so weights that they
//!   compute with begin at multiples of 64 bytes, and are copied from the mapped file if they do not. oneDNN's do not:
//!   weights of linear layers (in fp32 most of the text encoder's) and of the time embedding stay on the mapped file
//!   where their type is the wanted one. So a model in one file gives the same bits as the same model in a folder.
//! - This crate alone names tch or torch-sys; plain data crosses its boundary. It hands libtorch's folder on through
//!   its `links` metadata, so that binaries find it by themselves.
//!
//! `make sanitize` runs the kernels without libtorch (`sanitize/`) under sanitizers, on shapes that fill no vector or
//! tile.

#![deny(clippy::disallowed_types)]

mod adapters;
pub mod api;
pub mod attention;
pub mod clip;
pub mod config;
pub mod convolution;
pub mod dropout;
mod error;
mod finite;
mod float_rates;
mod generate;
mod gpt2;
pub mod growing;
pub mod layers;
mod lora;
mod mapped_file;
pub mod min_snr;
pub mod model_files;
mod native;
mod packed_weights;
mod parameters;
mod probe;
pub mod profile;
mod rates;
pub mod resnet;
pub mod runtime;
pub mod samplers;
pub mod schedule;
mod single_file;
mod stable_diffusion;
mod textual_inversion;
pub mod time_projections;
mod tokens;
mod trained;
pub mod unet;
pub mod vae;
pub mod weights;
mod whole_unet;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#[path = "../tests/support/mod.rs"]
mod support;

pub use api::{GenerateRequest, Microbatch, NO_EXTRAS};
pub use error::{Error, Result};
pub use float_rates::{FloatRate, float_rates};
pub use gpt2::{Gpt2, Gpt2Config, Gpt2Text};
pub use parameters::{HeldTensors, Parameters};
pub use probe::{KERNELS_REVISION, probe};
pub use rates::machine_rates;
pub use ringtune_engine::{
    AdaptableLayer, Adapter, AlignedFloats, Applied, Attention, BucketSizes, Buckets, Dropout, EmbeddingRows,
    EngineError, Extras, FeedTokens, FirstValues, FixedAdapter, Gradient, HeldState, InstructionSet,
    LanguageModelFolder, LanguageModelInfo, LanguageModelSource, ModelInfo, ModelOptions, Moments,
    NewLanguageModel, OpenAdapters, OpenLanguageModel, OpenTextModel, OpenUnet, OptimizerStep,
    ParametersInfo, PassSummary, Piece, Pixels, Precision, PredictionType, RgbImage, SamplePlace,
    SamplerKind, Shares, Shows, StateTensor, TextContext, TextModelInfo, TokenBatch,
};
pub use runtime::{Runtime, RuntimeInfo};
pub use stable_diffusion::{StableDiffusion, check_folder, check_folder_with};
pub use whole_unet::unet_tensors;
