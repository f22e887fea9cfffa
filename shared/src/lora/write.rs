//! Writing a LoRA's file.

use std::{
    borrow::Cow,
    io::{self, Write},
};

use safetensors::Dtype;

use super::{
    Base, Format, LayerKind, LoraError, LoraFile, Pair, adapter,
    error::first_few,
    keys::{Part, key},
};
use crate::{
    floats::FloatKind,
    state::{
        ChunkPlace, Encoder, FromTensors, Hashing, Metadata, StateError, TensorInfo, TensorList, transfer,
    },
};

/// Hashes of a file's tensors as kohya's scripts store them, which are no longer true in another family.
const HASHES: &str = "sshs_";
/// The entries of kohya's metadata for the rank and alpha of all modules.
pub(super) const NETWORK_RANK: &str = "ss_network_dim";
pub(super) const NETWORK_ALPHA: &str = "ss_network_alpha";
/// The hash of all tensors, by which A1111 knows a LoRA again.
const MODEL_HASH: &str = "sshs_model_hash";

/// A tensor and its bytes.
type Stored<'a> = (TensorInfo, Cow<'a, [u8]>);

impl LoraFile<'_> {
    /// Writes it in this family: the same numbers, to the bit. Equal files have equal bytes.
    ///
    /// # Errors
    /// The family has no place for some module; the writer's.
    pub fn write(&self, format: Format, writer: impl Write) -> Result<(), LoraError> {
        // 1. The tensors, in the order of their bytes.
        let no_place = |module: &&str| key(format, module, Part::Down).is_none();
        let names: Vec<&str> = self.modules.keys().map(String::as_str).filter(no_place).collect();
        if !names.is_empty() {
            let (count, first) = (names.len(), first_few(&names));
            return Err(LoraError::NoPlace { format, count, first });
        }
        let mut tensors = self.tensors(format).map_err(LoraError::Unwritten)?;
        tensors.sort_by(|(one, _), (other, _)| one.canonical_order(other));
        // 2. What the header says.
        let mut metadata = self.metadata.clone();
        metadata.retain(|key, _| !key.starts_with(HASHES));
        metadata.entry("format".to_owned()).or_insert("pt".to_owned());
        if format == Format::Kohya {
            let mut hashing = Hashing::new(io::sink());
            let hashed = tensors.iter().try_for_each(|(_, bytes)| hashing.write_all(bytes));
            hashed.map_err(|error| LoraError::Unwritten(error.into()))?;
            metadata.insert(MODEL_HASH.to_owned(), hashing.hash().to_string());
            self.add_facts_of_kohya(&mut metadata);
        } else {
            metadata.insert(adapter::ENTRY.to_owned(), adapter::written(self));
        }
        // 3. Everything.
        let (infos, bytes): (Vec<_>, Vec<_>) = tensors.into_iter().unzip();
        let fill = |place: ChunkPlace, into: &mut [u8]| {
            let start = place.offset as usize;
            into.copy_from_slice(&bytes[place.tensor][start..start + place.length]);
            Ok(())
        };
        let list = TensorList::new(infos).map_err(LoraError::Unwritten)?;
        transfer(&mut FromTensors::new(list, fill), &mut Encoder::new(metadata, writer))
            .map_err(LoraError::Unwritten)
    }

    fn tensors(&self, format: Format) -> Result<Vec<Stored<'_>>, StateError> {
        let mut all = Vec::new();
        for (module, pair) in &self.modules {
            let mut put = |part, dtype, shape: &[usize], bytes| {
                // Every part of a module that has a place has a key.
                let name = key(format, module, part).unwrap_or_default();
                let shape = shape.iter().map(|side| *side as u64).collect();
                all.push((TensorInfo::new(name, dtype, shape)?, bytes));
                Ok::<_, StateError>(())
            };
            // A convolution's factors are convolutions, and their readers go by that; a matrix' are matrices.
            let (side, is_matrix) = (pair.kind.side(), pair.kind == LayerKind::Linear);
            let dimensions = if is_matrix { 2 } else { 4 };
            let rank = pair.rank;
            let (inputs, outputs) = (pair.down.numbers() / (rank * side * side), pair.up.numbers() / rank);
            let (down, up) = ([rank, inputs, side, side], [outputs, rank, 1, 1]);
            put(Part::Down, pair.down.kind.dtype(), &down[..dimensions], Cow::Borrowed(&*pair.down.bytes))?;
            put(Part::Up, pair.up.kind.dtype(), &up[..dimensions], Cow::Borrowed(&*pair.up.bytes))?;
            if format == Format::Kohya {
                let (dtype, bytes) = alpha_bytes(pair);
                put(Part::Alpha, dtype, &[], Cow::Owned(bytes))?;
            }
            if let Some(scale) = &pair.dora_scale {
                let (column, of_conv) = ([outputs, 1, 1, 1], [1, outputs, 1, 1]);
                let shape = match (format, is_matrix) {
                    (Format::Kohya, _) => &column[..dimensions],
                    (_, true) => &column[..1],
                    (_, false) => &of_conv[..],
                };
                put(Part::DoraScale, scale.kind.dtype(), shape, Cow::Borrowed(&*scale.bytes))?;
            }
        }
        Ok(all)
    }

    /// What other programs look for in kohya's files, where this one does not say it yet.
    fn add_facts_of_kohya(&self, metadata: &mut Metadata) {
        let of_all = |text: fn(&Pair<'_>) -> String| {
            let mut texts = self.modules.values().map(text);
            let first = texts.next().unwrap_or_default();
            if texts.all(|text| text == first) { first } else { "Dynamic".to_owned() }
        };
        let (second, version) = match self.base {
            Base::Sd1 => ("False", "sd_v1"),
            Base::Sd2 => ("True", "sd_v2"),
        };
        for (key, text) in [
            ("ss_v2", second.to_owned()),
            ("ss_base_model_version", version.to_owned()),
            ("ss_network_module", "networks.lora".to_owned()),
            (NETWORK_RANK, of_all(|pair| pair.rank.to_string())),
            (NETWORK_ALPHA, of_all(|pair| pair.alpha.to_string())),
        ] {
            metadata.entry(key.to_owned()).or_insert(text);
        }
    }
}

/// Alpha as the module's factors are stored, if it is exact so.
fn alpha_bytes(pair: &Pair<'_>) -> (Dtype, Vec<u8>) {
    for kind in [pair.down.kind, FloatKind::F32] {
        let bytes = kind.narrowed(&[pair.alpha as f32]);
        if kind.widened(&bytes).first().is_some_and(|stored| f64::from(*stored) == pair.alpha) {
            return (kind.dtype(), bytes);
        }
    }
    (Dtype::F64, pair.alpha.to_le_bytes().to_vec())
}
