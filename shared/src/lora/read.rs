//! Reading a LoRA's file.

use std::{borrow::Cow, collections::BTreeMap};

use safetensors::Dtype;

use super::{
    Base, Factor, Format, LARGEST_FILE, LoraError, LoraFile, MOST_RANK, Pair,
    adapter::{self, Adapter},
    error::first_few,
    keys::{Meaning, ModelLayers, Part, in_our_spelling},
    modules::Layer,
};
use crate::{
    files::check_bytes,
    floats::FloatKind,
    ids::ContentHash,
    state::{Header, Metadata, TensorInfo},
};

/// Parts of keys that only models of other kinds have.
const OTHER_MODELS: [(&str, &str); 8] = [
    ("lora_te2_", "Stable Diffusion XL"),
    ("text_encoder_2.", "Stable Diffusion XL"),
    ("transformer_blocks_1_", "Stable Diffusion XL"),
    ("transformer_blocks.1.", "Stable Diffusion XL"),
    ("lora_unet_double_blocks_", "Flux"),
    ("lora_unet_joint_blocks_", "Stable Diffusion 3"),
    ("lora_transformer_", "a transformer, such as Flux or Stable Diffusion 3"),
    ("transformer.", "a transformer, such as Flux or Stable Diffusion 3"),
];
/// Parts of the keys of a LoRA's factors.
const FACTORS: [&str; 3] = ["lora_A", "lora_down", ".down.weight"];
/// What its layers see of a prompt in Stable Diffusion XL.
const WIDTH_OF_XL: u64 = 2048;

/// A tensor in the file.
struct Tensor<'a> {
    info: TensorInfo,
    bytes: &'a [u8],
}

/// The tensors of a module by their parts.
type Parts<'t, 'a> = BTreeMap<Part, &'t Tensor<'a>>;

impl<'a> LoraFile<'a> {
    /// Reads the bytes of a file for Stable Diffusion 1 or 2. Its family and its base are told by its keys and widths.
    ///
    /// # Errors
    /// It is damaged, not a LoRA, one of another model, or something in it has no meaning.
    pub fn from_bytes(bytes: &'a [u8]) -> Result<Self, LoraError> {
        let (tensors, metadata, adapter) = stored(bytes)?;
        let of = |base| modules(&tensors, ModelLayers::of(base), adapter.as_ref());
        let is_second =
            metadata.get("ss_base_model_version").is_some_and(|version| version.starts_with("sd_v2"));
        let (base, (format, modules)) = match (of(Base::Sd1), of(Base::Sd2)) {
            (Ok(found), second) if !is_second || second.is_err() => (Base::Sd1, found),
            (_, Ok(found)) => (Base::Sd2, found),
            // What is wrong in the base that it fits says more than why it does not fit the other.
            (Err(error), Err(other)) if error.is_of_another_model() => {
                return Err(if other.is_of_another_model() { error } else { other });
            }
            (Err(error), _) | (_, Err(error)) => return Err(error),
        };
        Self { base, format, modules, metadata }.checked()
    }

    /// Reads the bytes of a file for this model.
    ///
    /// # Errors
    /// As [`LoraFile::from_bytes`]; one for Stable Diffusion that this model is not.
    pub fn for_model(bytes: &'a [u8], model: &ModelLayers) -> Result<Self, LoraError> {
        let (tensors, metadata, adapter) = stored(bytes)?;
        match modules(&tensors, model, adapter.as_ref()) {
            Ok((format, modules)) => Self { base: model.base, format, modules, metadata }.checked(),
            Err(error) if error.is_of_another_model() => Err(match Self::from_bytes(bytes) {
                Ok(file) => LoraError::OtherBase { base: file.base.title(), model: model.title.clone() },
                Err(_) => error,
            }),
            Err(error) => Err(error),
        }
    }

    /// Checks what can be known of a file without its model: it is whole, and has pairs of factors.
    ///
    /// # Errors
    /// It is damaged, not a LoRA, or one of another kind of model.
    pub fn check(bytes: &'a [u8]) -> Result<(), LoraError> {
        match Self::from_bytes(bytes) {
            // A model may have other widths and fewer layers than those that were published.
            Err(error) if error.is_of_another_model() => {
                let (tensors, ..) = stored(bytes)?;
                let is_factor =
                    |tensor: &Tensor<'_>| FACTORS.iter().any(|part| tensor.info.name().contains(part));
                if tensors.iter().any(is_factor) { Ok(()) } else { Err(error) }
            }
            checked => checked.map(drop),
        }
    }

    /// All its numbers are finite.
    fn checked(self) -> Result<Self, LoraError> {
        for (module, pair) in &self.modules {
            for factor in [Some(&pair.down), Some(&pair.up), pair.dora_scale.as_ref()].into_iter().flatten() {
                let numbers = factor.kind.widened(&factor.bytes);
                if let Some(wrong) = numbers.iter().find(|number| !number.is_finite()) {
                    let problem = format!("it holds {wrong}: its training diverged");
                    return Err(LoraError::tensor(module, problem));
                }
            }
        }
        Ok(self)
    }
}

/// The hash of a file's tensors without its header, by which AUTOMATIC1111 knows a LoRA.
pub fn hash_of_tensors(bytes: &[u8]) -> ContentHash {
    let header = bytes.first_chunk().map_or(u64::MAX, |length| u64::from_le_bytes(*length).saturating_add(8));
    let start = usize::try_from(header).unwrap_or(usize::MAX);
    ContentHash::of(bytes.get(start..).unwrap_or_default())
}

/// What a file holds.
type Stored<'a> = (Vec<Tensor<'a>>, Metadata, Option<Adapter>);

/// The tensors of a file, and what its header says.
fn stored(bytes: &[u8]) -> Result<Stored<'_>, LoraError> {
    // 1. The header, which is not trusted, and where each tensor lies.
    check_bytes(bytes, LARGEST_FILE)?;
    let header = Header::read(&mut &*bytes, Some(bytes.len() as u64)).map_err(LoraError::Safetensors)?;
    let mut start = header.bytes as usize;
    let mut tensors = Vec::new();
    for info in header.tensors.tensors() {
        let end = start + info.bytes() as usize;
        tensors.push(Tensor { info: info.clone(), bytes: bytes.get(start..end).unwrap_or_default() });
        start = end;
    }
    if let Some(title) = other_model(&tensors) {
        return Err(LoraError::OtherModel(title));
    }
    // 2. What it says of alphas.
    let mut metadata = header.metadata;
    let adapter = metadata.remove(adapter::ENTRY).map(|text| Adapter::parse(&text)).transpose()?;
    Ok((tensors, metadata, adapter))
}

/// The other kind of model that a file is for.
fn other_model(tensors: &[Tensor<'_>]) -> Option<&'static str> {
    tensors.iter().find_map(|Tensor { info, .. }| {
        let (key, width) = (info.name(), info.shape().get(1));
        let is_wide = key.contains("attn2") && key.contains("to_k") && width == Some(&WIDTH_OF_XL);
        let named = OTHER_MODELS.iter().find(|(part, _)| key.contains(part)).map(|(_, title)| *title);
        named.or(is_wide.then_some("Stable Diffusion XL"))
    })
}

/// The family and the modules, if all fit this model.
fn modules<'a>(
    tensors: &[Tensor<'a>],
    model: &ModelLayers,
    adapter: Option<&Adapter>,
) -> Result<(Format, BTreeMap<String, Pair<'a>>), LoraError> {
    // 1. What each key means.
    let mut found: BTreeMap<&str, (Layer, Parts<'_, 'a>)> = BTreeMap::new();
    let (mut unknown, mut formats) = (Vec::new(), Vec::new());
    for tensor in tensors {
        let key = tensor.info.name();
        let Some(Meaning { format, module, layer, part }) = model.meanings.get(&in_our_spelling(key)) else {
            unknown.push(key);
            continue;
        };
        formats.push((*format, key));
        let parts = &mut found.entry(module.as_str()).or_insert((*layer, BTreeMap::new())).1;
        if parts.insert(*part, tensor).is_some() {
            return Err(LoraError::tensor(key, "it is there twice, in two spellings"));
        }
    }
    if !unknown.is_empty() {
        let (count, first) = (unknown.len(), first_few(&unknown));
        return Err(LoraError::UnknownKeys { count, all: tensors.len(), model: model.title.clone(), first });
    }
    let format = family(&formats)?;
    // 2. The pairs.
    let mut modules = BTreeMap::new();
    for (module, (layer, parts)) in found {
        modules.insert(module.to_owned(), pair(module, model, layer, &parts, adapter)?);
    }
    if modules.is_empty() { Err(LoraError::Empty) } else { Ok((format, modules)) }
}

/// The family by the keys that only one has. diffusers itself writes its own keys beside PEFT's in one file, and wrote them
/// beside those of attention processors: such a file is of the older of both.
fn family(formats: &[(Option<Format>, &str)]) -> Result<Format, LoraError> {
    let first = |format| formats.iter().find(|(of, _)| *of == Some(format));
    let other = formats.iter().find(|(of, _)| *of != Some(Format::Kohya));
    match (first(Format::Kohya), other) {
        (Some((_, kohya)), Some((_, other))) => {
            Err(LoraError::Mixed { kohya: (*kohya).to_owned(), other: (*other).to_owned() })
        }
        (Some(_), None) => Ok(Format::Kohya),
        (None, _) => {
            let by_age = [Format::AttentionProcessors, Format::Diffusers, Format::Peft];
            Ok(by_age.into_iter().find(|format| first(*format).is_some()).unwrap_or(Format::Diffusers))
        }
    }
}

fn pair<'a>(
    module: &str,
    model: &ModelLayers,
    layer: Layer,
    parts: &Parts<'_, 'a>,
    adapter: Option<&Adapter>,
) -> Result<Pair<'a>, LoraError> {
    // 1. Both factors, and their shapes.
    let half =
        |missing| LoraError::tensor(module, format!("`{missing}` is missing: half of a pair is no use"));
    let down = *parts.get(&Part::Down).ok_or_else(|| half("down"))?;
    let up = *parts.get(&Part::Up).ok_or_else(|| half("up"))?;
    let side = layer.kind.side() as u64;
    let (rank, inputs) = match *down.info.shape() {
        [rank, inputs] if side == 1 => (rank, inputs),
        [rank, inputs, high, wide] if (high, wide) == (side, side) => (rank, inputs),
        _ => return Err(misshaped(down, &format!("[rank, inputs, {side}, {side}]"))),
    };
    let (outputs, columns) = match *up.info.shape() {
        [outputs, columns] | [outputs, columns, 1, 1] => (outputs, columns),
        _ => return Err(misshaped(up, "[outputs, rank] or [outputs, rank, 1, 1]")),
    };
    let (rank, columns) = (rank as usize, columns as usize);
    if rank != columns || !(1..=MOST_RANK).contains(&rank) {
        let problem =
            format!("`down` has rank {rank}, `up` has rank {columns}; allowed: the same, 1 to {MOST_RANK}");
        return Err(LoraError::tensor(module, problem));
    }
    let (found, wanted) = ((inputs as usize, outputs as usize), (layer.inputs, layer.outputs));
    if found != wanted {
        return Err(LoraError::Widths {
            module: module.to_owned(),
            found,
            model: model.title.clone(),
            wanted,
        });
    }
    // 2. Alpha: its tensor, else what the metadata says, else the rank.
    let alpha = match (parts.get(&Part::Alpha), adapter) {
        (Some(tensor), _) => single_number(tensor)?,
        (None, Some(adapter)) => adapter.alpha(module)?.unwrap_or(rank as f64),
        (None, None) => rank as f64,
    };
    if alpha == 0.0 || !alpha.is_finite() {
        let problem = format!("its alpha is {alpha}; allowed: a finite number other than 0");
        return Err(LoraError::tensor(module, problem));
    }
    // 3. DoRA's lengths, of outputs: those of inputs are another form, which PEFT does not have.
    let dora_scale = parts.get(&Part::DoraScale).map(|tensor| {
        let right = match *tensor.info.shape() {
            [count] | [count, 1] | [count, 1, 1, 1] | [1, count, 1, 1] => count as usize == layer.outputs,
            _ => false,
        };
        if right { factor(tensor) } else { Err(misshaped(tensor, "[outputs] or [outputs, 1]")) }
    });
    let (down, up, dora_scale) = (factor(down)?, factor(up)?, dora_scale.transpose()?);
    Ok(Pair { kind: layer.kind, rank, alpha, down, up, dora_scale })
}

fn misshaped(tensor: &Tensor<'_>, allowed: &str) -> LoraError {
    let problem = format!("it has shape {:?}; allowed: {allowed}", tensor.info.shape());
    LoraError::tensor(tensor.info.name(), problem)
}

fn factor<'a>(tensor: &Tensor<'a>) -> Result<Factor<'a>, LoraError> {
    let dtype = tensor.info.dtype();
    let wrong = || format!("it is stored as {dtype}; allowed: F32, F16, BF16");
    let kind = FloatKind::of(dtype).ok_or_else(|| LoraError::tensor(tensor.info.name(), wrong()))?;
    Ok(Factor { kind, bytes: Cow::Borrowed(tensor.bytes) })
}

/// An alpha, which programs also store as whole numbers.
fn single_number(tensor: &Tensor<'_>) -> Result<f64, LoraError> {
    let (dtype, shape) = (tensor.info.dtype(), tensor.info.shape());
    let wrong = || {
        let problem =
            format!("it is {dtype} of shape {shape:?}; allowed: one number, F16, BF16, F32, F64 or I64");
        LoraError::tensor(tensor.info.name(), problem)
    };
    if shape.iter().any(|side| *side != 1) {
        return Err(wrong());
    }
    let eight = || <[u8; 8]>::try_from(tensor.bytes).map_err(|_| wrong());
    match dtype {
        Dtype::F64 => Ok(f64::from_le_bytes(eight()?)),
        Dtype::I64 => Ok(i64::from_le_bytes(eight()?) as f64),
        other => {
            let numbers = FloatKind::of(other).ok_or_else(wrong)?.widened(tensor.bytes);
            numbers.first().map(|number| f64::from(*number)).ok_or_else(wrong)
        }
    }
}
