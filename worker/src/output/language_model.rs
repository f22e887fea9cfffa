//! `model.safetensors` of a language model, as transformers loads it.

use std::path::Path;

use ringtune_shared::state::{Dtype, StateError, TensorInfo};

use super::{
    Error,
    weights_file::{self, ReadParameter},
};

/// The file's name, as transformers looks for it.
pub const FILE_NAME: &str = "model.safetensors";
/// The model's shape.
pub const CONFIG_NAME: &str = "config.json";
/// Tables without a bias.
const TABLES: [&str; 2] = ["wte.weight", "wpe.weight"];

/// Writes a model's parameters and reads them back: equal models are equal files. transformers knows no GPT-2 without biases:
/// of such a model they are zeros in the file. `provenance`: what the file says of itself.
///
/// # Errors
/// As [`weights_file::write`]'s.
pub fn write(
    file: &Path,
    parameters: &[TensorInfo],
    provenance: &str,
    read: &ReadParameter<'_>,
) -> Result<(), Error> {
    let problem = |error: StateError| Error::Format { file: file.to_path_buf(), problem: error.to_string() };
    let biases = missing_biases(parameters).map_err(problem)?;
    weights_file::write(file, parameters, &biases, provenance, read)
}

/// Biases that transformers expects beside these parameters.
fn missing_biases(parameters: &[TensorInfo]) -> Result<Vec<TensorInfo>, StateError> {
    let weights =
        parameters.iter().filter_map(|weight| Some((weight, weight.name().strip_suffix(".weight")?)));
    let with_bias = weights.filter(|(weight, _)| TABLES.iter().all(|table| !weight.name().ends_with(table)));
    let biases = with_bias.map(|(weight, name)| {
        TensorInfo::new(
            format!("{name}.bias"),
            Dtype::F32,
            weight.shape().last().copied().into_iter().collect(),
        )
    });
    let biases: Vec<TensorInfo> = biases.collect::<Result<_, _>>()?;
    Ok(biases.into_iter().filter(|bias| parameters.iter().all(|own| own.name() != bias.name())).collect())
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensors;

    use super::*;

    fn info(name: &str, shape: &[u64]) -> TensorInfo {
        TensorInfo::new(name, Dtype::F32, shape.to_vec()).unwrap()
    }

    #[test]
    fn a_model_is_read_by_the_formats_own_reader_with_zeros_for_biases_that_it_lacks() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE_NAME);
        let parameters = [
            info("transformer.wte.weight", &[5, 2]),
            info("transformer.h.0.attn.c_attn.weight", &[2, 6]),
            info("transformer.ln_f.weight", &[2]),
            info("transformer.ln_f.bias", &[2]),
        ];
        let read = |number: usize, offset: u64, into: &mut [u8]| {
            for (place, number_of) in into.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                *number_of = (number as f32 * 100.0 + (offset / 4) as f32 + place as f32).to_le_bytes();
            }
            Ok(())
        };
        write(&file, &parameters, "{}", &read).unwrap();
        let bytes = std::fs::read(&file).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(tensors.len(), 5);
        let zeros = tensors.tensor("transformer.h.0.attn.c_attn.bias").unwrap();
        assert_eq!((zeros.shape(), zeros.data()), (&[6][..], &[0; 24][..]));
        let factor = tensors.tensor("transformer.ln_f.bias").unwrap();
        assert_eq!(factor.data(), [300f32.to_le_bytes(), 301f32.to_le_bytes()].concat());
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
        let not_a_number = |_: usize, _: u64, into: &mut [u8]| {
            into.as_chunks_mut::<4>().0.iter_mut().for_each(|number| *number = f32::NAN.to_le_bytes());
            Ok(())
        };
        std::fs::remove_file(&file).unwrap();
        let refused = write(&file, &parameters, "{}", &not_a_number).unwrap_err();
        assert!(refused.to_string().contains("is not finite"), "{refused}");
        assert!(!file.exists());
    }
}
