//! A small fixed computation whose bits tell apart machines that would train differently.

use ringtune_engine::Precision;
use tch::{Kind, Tensor};

use crate::attention::{scaled_dot_product, self_attention};
use crate::convolution::{Conv2d, Conv2dConfig};
use crate::error::Result;
use crate::gpt2;
use crate::growing::DOUBLING;
use crate::layers::{from_tokens, to_tokens};
use crate::native::{self, ConvolutionArguments, ConvolutionGeometry, GroupNormArguments, Products};
use crate::runtime;
use crate::stable_diffusion::{kind_of, to_vec};

/// The revision of this crate's arithmetic. It is raised with every change that can move a bit of a gradient, a
/// posterior or a picture: of a kernel in `csrc/`, of the order of operations in a layer, of a library they call. It
/// is part of a worker's numerics class, so that two builds that differ never share a ring unseen.
pub const KERNELS_REVISION: u32 = 17;

const BATCH: i64 = 2;
/// Two heads of Stable Diffusion 1.x's narrowest width, in groups of ten channels as there.
const CHANNELS: i64 = 80;
/// Another number, for what changes it.
const OUTPUTS: i64 = 96;
/// A multiple of 32, which `CHANNELS` is not.
const WHOLE_TILES: i64 = 352;
const SIDE: i64 = 24;
const GROUPS: i64 = 8;
const EPSILON: f64 = 1e-5;
/// Queries, keys, heads and width of a head: SD 1.x's self-attention at its three sizes and SD 2.x's, over several
/// blocks of ours and with a block that is not full; cross-attention with one and with two prompts' tokens; and the
/// VAE's single wide head.
const ATTENTIONS: [[i64; 4]; 7] = [
    [SIDE * SIDE, SIDE * SIDE, 2, 40],
    [200, 200, 1, 80],
    [64, 64, 1, 160],
    [300, 300, 1, 64],
    [200, 77, 2, 40],
    [200, 154, 1, 64],
    [100, 100, 1, 256],
];

/// Hash (16 hexadecimal digits) of one small forward and backward pass through each kind of kernel that a training
/// step uses, in fp32 and, where the processor has it, in bf16, with the calling thread's number of compute threads.
/// Takes tenths of a second.
///
/// Each kernel is taken by itself, so that no rounding behind it hides a bit: convolutions (plain, with stride 2, with a residual,
/// packed of 3x3 and of 1x1, packed with a residual, packed with stride 2, of whole tiles, doubling), group norm (with and without SiLU
/// and what is added, of two inputs, and with its input gone on with), layer norm, products (plain, packed, packed with a
/// residual), GEGLU, attention at each of `ATTENTIONS` and where all comes from one product, the text encoder's causal attention
/// and activation, growing, and all that a language model computes with (`gpt2/probe.rs`).
///
/// Two workers whose probes differ would not train to the same bits. Equal probes are strong evidence, not proof: a
/// library may choose another kernel at another size. Compare processor model, instruction set, libtorch version,
/// [`KERNELS_REVISION`] and thread count too ([`crate::RuntimeInfo`]).
pub fn probe() -> Result<String> {
    let mut hash = Fnv::new();
    add_pass(kind_of(Precision::Fp32), &mut hash)?;
    // Without it no job computes in bf16 here, and oneDNN refuses to.
    if runtime::has_bf16() {
        add_pass(kind_of(Precision::Bf16), &mut hash)?;
    }
    Ok(format!("{:016x}", hash.0))
}

fn add_pass(kind: Kind, hash: &mut Fnv) -> Result<()> {
    add_convolutions(kind, hash)?;
    add_norms(kind, hash)?;
    add_products(kind, hash)?;
    add_attention(kind, hash)?;
    gpt2::probe::each_result(kind, pattern, |result| hash.add_values(result))
}

fn add_convolutions(kind: Kind, hash: &mut Fnv) -> Result<()> {
    let image = image(CHANNELS, 1, kind)?;
    let filter = native::channels_last(&pattern(&[OUTPUTS, CHANNELS, 3, 3], 2, kind)?)?;
    let bias = pattern(&[OUTPUTS], 3, kind)?;
    for stride in [1i64, 2] {
        hash.add(&[&image], |leaf| {
            Ok(leaf[0].f_conv2d(&filter, Some(&bias), [stride; 2], [1, 1], [1, 1], 1)?)
        })?;
    }
    hash.add(&[&image], |leaf| Ok(leaf[0].f_upsample_nearest2d([2 * SIDE, 2 * SIDE], None, None)?))?;
    if kind != Kind::BFloat16 {
        return add_plain_convolutions(kind, hash);
    }
    add_whole_tiles(kind, hash)?;
    let residual = self::image(OUTPUTS, 4, kind)?;
    let keeping = |padding| ConvolutionGeometry { stride: 1, padding, transposed: false };
    for (filter, geometry) in
        [(&filter, keeping(1)), (&pattern(&[OUTPUTS, CHANNELS, 1, 1], 5, kind)?, keeping(0))]
    {
        let packed = Packed::of(filter, &image, geometry, SIDE)?;
        hash.add(&[&image], |leaf| packed.run(&leaf[0], &bias, None))?;
        hash.add(&[&image, &residual], |leaf| packed.run(&leaf[0], &bias, Some(&leaf[1])))?;
    }
    let halving = ConvolutionGeometry { stride: 2, padding: 1, transposed: false };
    let packed = Packed::of(&filter, &image, halving, SIDE / 2)?;
    hash.add(&[&image], |leaf| packed.run(&leaf[0], &bias, None))?;
    let spreading = pattern(&[CHANNELS, OUTPUTS, 4, 4], 15, kind)?;
    let packed = Packed::of(&spreading, &image, DOUBLING, 2 * SIDE)?;
    hash.add(&[&image], |leaf| packed.run(&leaf[0], &bias, None))
}

/// Layers whose weights nobody packs.
fn add_plain_convolutions(kind: Kind, hash: &mut Fnv) -> Result<()> {
    let image = image(WHOLE_TILES, 16, kind)?;
    let residual = self::image(OUTPUTS, 17, kind)?;
    let bias = pattern(&[OUTPUTS], 18, kind)?;
    for (side, number) in [(3, 19), (1, 20)] {
        let weight = pattern(&[OUTPUTS, WHOLE_TILES, side, side], number, kind)?;
        let config =
            Conv2dConfig { kernel: side, padding: side / 2, ..Conv2dConfig::same_3x3(WHOLE_TILES, OUTPUTS) };
        let layer = Conv2d::plain(&weight, bias.shallow_clone(), config)?;
        hash.add(&[&image, &residual], |leaf| layer.forward_added(&leaf[0], &leaf[1]))?;
    }
    Ok(())
}

/// Layers whose channels fill AMX's tiles, over several slabs of weights.
fn add_whole_tiles(kind: Kind, hash: &mut Fnv) -> Result<()> {
    let image = image(WHOLE_TILES, 16, kind)?;
    let residual = self::image(OUTPUTS, 17, kind)?;
    let bias = pattern(&[OUTPUTS], 18, kind)?;
    for (side, number) in [(3, 19), (1, 20)] {
        let filter = pattern(&[OUTPUTS, WHOLE_TILES, side, side], number, kind)?;
        let geometry = ConvolutionGeometry { stride: 1, padding: side / 2, transposed: false };
        let packed = Packed::of(&filter, &image, geometry, SIDE)?;
        hash.add(&[&image, &residual], |leaf| packed.run(&leaf[0], &bias, Some(&leaf[1])))?;
    }
    Ok(())
}

/// A convolution's weights packed for both ways.
struct Packed {
    forward: Tensor,
    backward: Tensor,
    geometry: ConvolutionGeometry,
}

impl Packed {
    /// `side`: of what it makes of `image`.
    fn of(filter: &Tensor, image: &Tensor, geometry: ConvolutionGeometry, side: i64) -> Result<Self> {
        let forward = native::pack_convolution(filter, &image.size(), geometry, false)?;
        let backward = native::pack_convolution(filter, &[BATCH, OUTPUTS, side, side], geometry, true)?;
        Ok(Packed { forward, backward, geometry })
    }

    fn run(&self, x: &Tensor, bias: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let Packed { forward, backward, geometry } = self;
        let (backward, geometry) = (Some(backward), *geometry);
        native::packed_convolution(x, ConvolutionArguments { forward, backward, bias, residual, geometry })
    }
}

fn add_norms(kind: Kind, hash: &mut Fnv) -> Result<()> {
    let image = image(CHANNELS, 6, kind)?;
    // fp32 whatever the input is, as in the layers.
    let (weight, bias) = (pattern(&[CHANNELS], 7, Kind::Float)?, pattern(&[CHANNELS], 8, Kind::Float)?);
    let added = pattern(&[BATCH, CHANNELS], 9, Kind::Float)?;
    for (silu, added) in [(false, None), (true, None), (true, Some(&added))] {
        let norm = GroupNormArguments {
            weight: &weight,
            bias: &bias,
            ends: [None, None],
            groups: GROUPS,
            epsilon: EPSILON,
            silu,
        };
        hash.add(&[&image], |leaf| native::group_norm(&leaf[0], added, norm))?;
    }
    // Whose input is gone on with.
    let norm = GroupNormArguments {
        weight: &weight,
        bias: &bias,
        ends: [None, None],
        groups: GROUPS,
        epsilon: EPSILON,
        silu: true,
    };
    hash.add(&[&image], |leaf| {
        let [normal, x] = native::group_norm_keeping(&leaf[0], None, norm)?;
        Ok(normal.f_add(&x)?)
    })?;
    let halves = [image.f_narrow(1, 0, CHANNELS / 4)?, image.f_narrow(1, CHANNELS / 4, CHANNELS * 3 / 4)?];
    hash.add(&[&halves[0], &halves[1]], |leaf| {
        let [normal, x, skip] = native::group_norm_of_two(&leaf[0], &leaf[1], norm)?;
        Ok(normal.f_add(&Tensor::f_cat(&[&x, &skip], 1)?)?)
    })?;
    hash.add(&[&to_tokens(&image)?], |leaf| {
        let [normal, x] = native::layer_norm(&leaf[0], [&weight, &bias], [None, None], EPSILON)?;
        Ok(normal.f_add(&x)?)
    })
}

fn add_products(kind: Kind, hash: &mut Fnv) -> Result<()> {
    let tokens = to_tokens(&image(CHANNELS, 10, kind)?)?;
    let residual = to_tokens(&image(OUTPUTS, 11, kind)?)?;
    let (weight, bias) = (pattern(&[OUTPUTS, CHANNELS], 12, kind)?, pattern(&[OUTPUTS], 13, kind)?);
    for bias in [None, Some(&bias)] {
        for products in [Products::Exact, Products::Halves] {
            hash.add(&[&tokens], |leaf| native::linear(&leaf[0], &weight, bias, products))?;
        }
    }
    if kind == Kind::BFloat16 {
        let forward = native::pack_linear(&weight, false)?;
        let backward = native::pack_linear(&weight, true)?;
        for bias in [None, Some(&bias)] {
            let layer = native::PackedLinear { forward: &forward, backward: Some(&backward), bias };
            hash.add(&[&tokens], |leaf| native::packed_linear(&leaf[0], layer, None))?;
            hash.add(&[&tokens, &residual], |leaf| native::packed_linear(&leaf[0], layer, Some(&leaf[1])))?;
        }
    }
    hash.add(&[&tokens], |leaf| native::geglu(&leaf[0]))?;
    hash.add(&[&tokens], |leaf| Ok(leaf[0].f_mul(&leaf[0].f_mul_scalar(1.702)?.f_sigmoid()?)?))?;
    hash.add(&[&tokens], |leaf| from_tokens(&leaf[0].f_gelu("none")?, SIDE, SIDE))
}

fn add_attention(kind: Kind, hash: &mut Fnv) -> Result<()> {
    for (number, [queries, keys, heads, width]) in ATTENTIONS.into_iter().enumerate() {
        let stream = 20 + 3 * number as u32;
        let query = pattern(&[BATCH, queries, heads, width], stream, kind)?;
        let [key, value] =
            [stream + 1, stream + 2].map(|stream| pattern(&[BATCH, keys, heads, width], stream, kind));
        hash.add(&[&query, &key?, &value?], |leaf| scaled_dot_product(&leaf[0], &leaf[1], &leaf[2]))?;
    }
    // Where they come from one product.
    let together = pattern(&[BATCH, 200, 3, 2, 40], 45, kind)?;
    hash.add(&[&together], |leaf| self_attention(&leaf[0]))?;
    if kind != Kind::Float {
        return Ok(());
    }
    // The text encoder, which is fp32 in every job.
    let query = pattern(&[BATCH, 2, 77, 64], 50, kind)?;
    hash.add(&[&query], |leaf| {
        let no_mask: Option<Tensor> = None;
        let x = &leaf[0];
        Ok(Tensor::f_scaled_dot_product_attention(x, x, x, no_mask, 0.0, true, None, false)?)
    })
}

/// [BATCH, channels, SIDE, SIDE], channels-last.
fn image(channels: i64, stream: u32, kind: Kind) -> Result<Tensor> {
    native::channels_last(&pattern(&[BATCH, channels, SIDE, SIDE], stream, kind)?)
}

/// Values in [-0.5, 0.5) that depend on place and `stream` alone.
fn pattern(shape: &[i64], stream: u32, kind: Kind) -> Result<Tensor> {
    let count = shape.iter().product::<i64>() as u32;
    let values: Vec<f32> = (0..count)
        .map(|index| {
            let mixed = (index ^ (stream << 24)).wrapping_mul(0x9e37_79b9);
            let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x85eb_ca6b);
            (mixed >> 8) as f32 / (1u32 << 24) as f32 - 0.5
        })
        .collect();
    Ok(Tensor::f_from_slice(&values)?.f_view(shape)?.f_to_kind(kind)?)
}

/// FNV-1a with 64 bits, over the bits of all results.
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    /// The result of `operation` on `inputs`, and all their gradients where the mean square of it is the loss.
    fn add(&mut self, inputs: &[&Tensor], operation: impl Fn(&[Tensor]) -> Result<Tensor>) -> Result<()> {
        let leaves: Vec<Tensor> = inputs
            .iter()
            .map(|input| Ok(input.f_detach()?.f_set_requires_grad(true)?))
            .collect::<Result<_>>()?;
        let output = operation(&leaves)?;
        let loss = output.f_to_kind(Kind::Float)?.f_square()?.f_mean(Kind::Float)?;
        let gradients = Tensor::f_run_backward(&[&loss], &leaves, false, false)?;
        for tensor in [output.f_detach()?, loss.f_detach()?.f_view([1])?].iter().chain(&gradients) {
            self.add_values(tensor)?;
        }
        Ok(())
    }

    fn add_values(&mut self, tensor: &Tensor) -> Result<()> {
        to_vec(tensor)?.iter().for_each(|value| self.add_word(value.to_bits()));
        Ok(())
    }

    fn add_word(&mut self, word: u32) {
        for byte in word.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash_of(pass: impl Fn(&mut Fnv) -> Result<()>) -> Result<u64> {
        let mut hash = Fnv::new();
        pass(&mut hash).map(|()| hash.0)
    }

    #[test]
    fn says_the_same_each_time_and_tells_kinds_apart() -> Result<()> {
        let first = probe()?;
        assert_eq!(first, probe()?);
        assert_eq!(first.len(), 16);
        if runtime::has_bf16() {
            let of_kind = |kind| hash_of(|hash| add_pass(kind, hash));
            assert_ne!(of_kind(Kind::Float)?, of_kind(Kind::BFloat16)?);
        }
        Ok(())
    }

    #[test]
    fn every_kernel_that_takes_tensors_is_run() {
        // What is declared at the boundary; attention is reached through the choice of its kernel.
        let boundaries = [
            (include_str!("native/mod.rs"), include_str!("probe.rs"), 7),
            (include_str!("gpt2/native.rs"), include_str!("gpt2/probe.rs"), 14),
        ];
        for (boundary, source, least) in boundaries {
            // Functions, not methods.
            let wrappers = boundary.split("\npub(crate) fn ").skip(1).filter_map(|rest| {
                let (name, rest) = rest.split_once('(')?;
                let takes = rest.split_once('{')?.0;
                // What is forgotten is computed from nothing.
                let computes = takes.contains("Tensor") && !name.starts_with("tensor") && name != "forget";
                computes.then_some(name)
            });
            let wrappers: Vec<&str> = wrappers.collect();
            assert!(wrappers.len() >= least, "{wrappers:?}");
            for name in wrappers {
                let call = match name {
                    "attention" => "scaled_dot_product(".to_owned(),
                    "self_attention" => "self_attention(".to_owned(),
                    name => format!("native::{name}("),
                };
                assert!(source.contains(&call), "{name}");
            }
        }
    }

    #[test]
    fn a_bit_of_an_output_or_of_any_gradient_shows() -> Result<()> {
        let (x, y) = (pattern(&[3, 4], 1, Kind::Float)?, pattern(&[3, 4], 2, Kind::Float)?);
        let factor = |factor: f64| {
            hash_of(|hash| {
                hash.add(&[&x, &y], |leaf| {
                    // The same output; of the second input another gradient.
                    let moved = leaf[1].f_mul_scalar(factor)?;
                    let same = leaf[1].f_add(&moved.f_sub(&moved.f_detach()?)?)?;
                    Ok(leaf[0].f_add(&same)?)
                })
            })
        };
        assert_eq!(factor(1.0)?, factor(1.0)?);
        assert_ne!(factor(1.0)?, factor(1.0 + 1e-5)?);
        Ok(())
    }
}
