//! Stable Diffusion for textual inversion on libtorch.
