//! Learned rows from files, and what they mean in a prompt.

use std::path::Path;

use safetensors::{Dtype, SafeTensors};

use super::Error;
use crate::data::{ClipTokenizer, Placeholders};

/// No learned embedding is larger: 64 rows of the widest text encoder are 512 KiB.
const MOST_FILE_BYTES: u64 = 16 << 20;
/// As in a job file.
const MOST_VECTORS: usize = 64;

/// Embeddings that a tokenizer has been taught, in the order of their ids.
#[derive(Debug, Default)]
pub(super) struct Embeddings {
    known: Vec<Placeholders>,
    /// [all vectors, text_width], the row of the lowest id first.
    pub rows: Vec<f32>,
}

impl Embeddings {
    /// Reads `learned_embeds.safetensors` files and adds their tokens to `tokenizer`.
    ///
    /// `width`: floats of a row, the text encoder's hidden size.
    ///
    /// # Errors
    /// A file that is not what a job writes, or made for a text encoder of another width; a token that the
    /// vocabulary has.
    pub(super) fn open(
        files: &[impl AsRef<Path>],
        width: usize,
        tokenizer: &mut ClipTokenizer,
    ) -> Result<Self, Error> {
        let mut embeddings = Self::default();
        for file in files {
            let (token, rows) = read(file.as_ref(), width)?;
            embeddings.known.push(tokenizer.add_placeholders(&token, rows.len() / width)?);
            embeddings.rows.extend(rows);
        }
        Ok(embeddings)
    }

    /// The prompt with every token of several vectors written out, as diffusers' `maybe_convert_prompt` does:
    /// "a <cat>" becomes "a <cat> <cat>_1".
    pub(super) fn expand(&self, prompt: &str) -> String {
        let several = self.known.iter().filter(|placeholders| placeholders.tokens.len() > 1);
        several.fold(prompt.to_owned(), |prompt, placeholders| {
            prompt.replace(&placeholders.tokens[0], &placeholders.text())
        })
    }
}

/// The token and its rows, [vectors, width].
fn read(file: &Path, width: usize) -> Result<(String, Vec<f32>), Error> {
    let wrong = |problem: String| Error::Embeds { file: file.to_path_buf(), problem };
    let size = std::fs::metadata(file).map_err(|error| wrong(error.to_string()))?.len();
    if size > MOST_FILE_BYTES {
        return Err(wrong(format!("is {size} bytes long, at most {MOST_FILE_BYTES} are allowed")));
    }
    let bytes = std::fs::read(file).map_err(|error| wrong(error.to_string()))?;
    let tensors = SafeTensors::deserialize(&bytes)
        .map_err(|error| wrong(format!("is not a safetensors file: {error}")))?;
    let [(token, tensor)] = tensors.tensors().try_into().map_err(|all: Vec<_>| {
        wrong(format!("holds {} tensors, one is allowed: that of the placeholder token", all.len()))
    })?;
    let vectors = match *tensor.shape() {
        [columns] if columns == width => 1,
        [vectors, columns] if columns == width && (1..=MOST_VECTORS).contains(&vectors) => vectors,
        ref other => {
            let allowed =
                format!("[1 to {MOST_VECTORS}, {width}] is what this checkpoint's text encoder takes");
            return Err(wrong(format!("'{token}' has shape {other:?}: {allowed}")));
        }
    };
    if tensor.dtype() != Dtype::F32 {
        return Err(wrong(format!("'{token}' is stored as {:?}, allowed is F32", tensor.dtype())));
    }
    let (floats, _) = tensor.data().as_chunks::<4>();
    let rows: Vec<f32> = floats.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    if rows.len() != vectors * width || !rows.iter().all(|value| value.is_finite()) {
        return Err(wrong(format!("'{token}' holds values that are not finite")));
    }
    Ok((token, rows))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use safetensors::tensor::TensorView;

    use super::*;

    fn file_with(tensors: &[(&str, Vec<usize>)]) -> tempfile::NamedTempFile {
        let data = vec![0u8; 4096];
        let views: HashMap<String, TensorView<'_>> = tensors
            .iter()
            .map(|(name, shape)| {
                let bytes = shape.iter().product::<usize>() * 4;
                let view = TensorView::new(Dtype::F32, shape.clone(), &data[..bytes]).unwrap();
                ((*name).to_owned(), view)
            })
            .collect();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), safetensors::serialize(&views, None).unwrap()).unwrap();
        file
    }

    #[test]
    fn one_tensor_of_the_right_width_is_read() {
        let file = file_with(&[("<cat>", vec![2, 8])]);
        assert_eq!(read(file.path(), 8).unwrap(), ("<cat>".to_owned(), vec![0.0; 16]));
    }

    #[test]
    fn every_other_file_is_refused_by_name() {
        let wide = file_with(&[("<cat>", vec![1, 9])]);
        let two = file_with(&[("<cat>", vec![1, 8]), ("<dog>", vec![1, 8])]);
        let none = tempfile::NamedTempFile::new().unwrap();
        for file in [&wide, &two, &none] {
            let error = read(file.path(), 8).unwrap_err();
            assert!(matches!(&error, Error::Embeds { file: named, .. } if named == file.path()), "{error}");
        }
    }

    #[test]
    fn tokens_of_several_vectors_are_written_out() {
        let known = vec![Placeholders {
            tokens: vec!["<cat>".to_owned(), "<cat>_1".to_owned()],
            ids: vec![49_408, 49_409],
        }];
        let embeddings = Embeddings { known, rows: vec![0.0; 16] };
        assert_eq!(embeddings.expand("a <cat> on a mat"), "a <cat> <cat>_1 on a mat");
    }
}
