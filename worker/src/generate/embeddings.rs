//! Learned rows from files, and what they mean in a prompt.

use std::path::Path;

use safetensors::{Dtype, SafeTensors};

use super::Error;
use crate::{
    data::{self, ClipTokenizer, Placeholders},
    output::{embeds::EMB_PARAMS_KEY, facts::PLACEHOLDER_ENTRY},
};

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
    /// Reads embeddings' files and adds their tokens to `tokenizer`: diffusers' (the key is the token) and kohya's
    /// (the key is `emb_params`; the token is in the metadata, or else it is the file's name without its ending).
    ///
    /// `width`: floats of a row, the text encoder's hidden size.
    ///
    /// # Errors
    /// A file that is neither, or made for a text encoder of another width; a token that the vocabulary or another
    /// file has.
    pub(super) fn open(
        files: &[impl AsRef<Path>],
        width: usize,
        tokenizer: &mut ClipTokenizer,
    ) -> Result<Self, Error> {
        let mut embeddings = Self::default();
        for file in files {
            let (token, rows) = read(file.as_ref(), width)?;
            let placeholders = tokenizer.add_placeholders(&token, rows.len() / width);
            embeddings.known.push(placeholders.map_err(|error| refused(file.as_ref(), error))?);
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

/// A token that cannot be added, as the error of the file that asks for it and not of a job's field.
fn refused(file: &Path, error: data::Error) -> Error {
    let problem = match error {
        data::Error::PlaceholderTaken { token } => format!(
            "its token {token:?} is in the checkpoint's vocabulary, or in another --embeds; a file with the key \
             '{EMB_PARAMS_KEY}' that names no token can be renamed: its name is the token"
        ),
        data::Error::PlaceholderUnusable { token, problem } => {
            format!("its token {token:?} cannot be used: {problem}")
        }
        other => return other.into(),
    };
    Error::Embeds { file: file.to_path_buf(), problem }
}

/// The word that a file with the key `emb_params` teaches: what its metadata says, else its name without the
/// ending, which is what AUTOMATIC1111 and kohya's scripts go by. None: it has no name in UTF-8.
fn token_of_emb_params(file: &Path, bytes: &[u8]) -> Option<String> {
    let (_, header) = SafeTensors::read_metadata(bytes).ok()?;
    let entries = header.metadata().as_ref();
    let entry = |key: &str| entries.and_then(|entries| entries.get(key)).filter(|text| !text.is_empty());
    let named = entry(PLACEHOLDER_ENTRY).or_else(|| entry("name")).cloned();
    named.or_else(|| file.file_stem()?.to_str().map(str::to_owned))
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
    let [(key, tensor)] = tensors.tensors().try_into().map_err(|all: Vec<_>| {
        let allowed = format!("one is allowed, under the placeholder token or '{EMB_PARAMS_KEY}'");
        wrong(format!("holds {} tensors, {allowed}", all.len()))
    })?;
    let vectors = match *tensor.shape() {
        [columns] if columns == width => 1,
        [vectors, columns] if columns == width && (1..=MOST_VECTORS).contains(&vectors) => vectors,
        ref other => {
            let allowed =
                format!("[1 to {MOST_VECTORS}, {width}] is what this checkpoint's text encoder takes");
            return Err(wrong(format!("'{key}' has shape {other:?}: {allowed}")));
        }
    };
    if tensor.dtype() != Dtype::F32 {
        return Err(wrong(format!("'{key}' is stored as {:?}, allowed is F32", tensor.dtype())));
    }
    let (floats, _) = tensor.data().as_chunks::<4>();
    let rows: Vec<f32> = floats.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    if rows.len() != vectors * width || !rows.iter().all(|value| value.is_finite()) {
        return Err(wrong(format!("'{key}' holds values that are not finite")));
    }
    if key != EMB_PARAMS_KEY {
        return Ok((key, rows));
    }
    let nameless = || wrong("its name is not valid UTF-8, and its metadata names no token".to_owned());
    Ok((token_of_emb_params(file, &bytes).ok_or_else(nameless)?, rows))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use safetensors::tensor::TensorView;

    use super::*;
    use crate::output::{
        TensorFile, embeds,
        facts::tests::{example, learned},
    };

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

    /// A file with the key `emb_params`, 2 rows of 8, in a folder of its own.
    fn emb_params(name: &str, metadata: &[(&str, &str)]) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(name);
        let tensors = TensorFile::new().with_f32("emb_params", &[2, 8], &[0.5; 16]).unwrap();
        let add = |tensors: TensorFile, (key, text): &(&str, &str)| tensors.with_metadata(key, *text);
        metadata.iter().fold(tensors, add).write(&file).unwrap();
        (folder, file)
    }

    #[test]
    fn emb_params_are_named_by_their_metadata_or_else_their_file() {
        let cases: [(&[(&str, &str)], &str); 4] = [
            (&[("ringtune.placeholder_token", "<cat>"), ("name", "other")], "<cat>"),
            (&[("name", "sd-cat"), ("modelspec.title", "TextualInversion@1")], "sd-cat"),
            (&[("ringtune.placeholder_token", ""), ("format", "pt")], "my-cat"),
            (&[], "my-cat"),
        ];
        for (metadata, token) in cases {
            let (_folder, file) = emb_params("my-cat.safetensors", metadata);
            assert_eq!(read(&file, 8).unwrap(), (token.to_owned(), vec![0.5; 16]));
        }
    }

    #[test]
    fn a_jobs_two_files_are_the_same_embedding() {
        let folder = tempfile::tempdir().unwrap();
        let rows: Vec<f32> = (0..16).map(|number| number as f32 / 3.0).collect();
        let learned = learned(&rows);
        let files = ["a.safetensors", "b.safetensors"].map(|name| folder.path().join(name));
        embeds::write(&files[0], &learned, &example()).unwrap();
        embeds::write_emb_params(&files[1], &learned, &example()).unwrap();
        for file in &files {
            assert_eq!(read(file, 8).unwrap(), ("<a>".to_owned(), rows.clone()));
        }
    }

    #[test]
    fn a_token_that_is_taken_is_blamed_on_its_file() {
        let toy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/toy-sd/tokenizer");
        let tokenizer = || ClipTokenizer::open(&toy, 77).unwrap();
        let (_folder, star) = emb_params("star.safetensors", &[]);
        let (_other, mine) = emb_params("my-star.safetensors", &[]);
        let embeddings = Embeddings::open(&[&mine], 8, &mut tokenizer()).unwrap();
        assert_eq!(embeddings.expand("a my-star"), "a my-star my-star_1");
        for (files, token) in [([&star, &mine], "\"star\""), ([&mine, &mine], "\"my-star\"")] {
            let error = Embeddings::open(&files, 8, &mut tokenizer()).unwrap_err().to_string();
            assert!(error.starts_with("--embeds ") && error.contains(token), "{error}");
            assert!(!error.contains("train."), "{error}");
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
