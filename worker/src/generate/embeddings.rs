//! Learned rows from files, and what they mean in a prompt.

use std::path::{Path, PathBuf};

use ringtune_shared::{
    embedding::{EmbeddingError, LearnedEmbedding, read_opened},
    ids::ContentHash,
};

use super::Error;
use crate::{
    access::ConfinedPath,
    data::{self, ClipTokenizer},
};

/// Embeddings that a tokenizer has been taught, in the order of their ids.
#[derive(Debug, Default)]
pub struct Embeddings {
    /// The token of each file, and the hash of the file.
    pub known: Vec<(String, ContentHash)>,
    /// `TOKEN`, `TOKEN_1`, … of every file: one for each row.
    pub tokens: Vec<String>,
    /// [all vectors, text_width], the row of the lowest id first.
    pub rows: Vec<f32>,
}

/// A file of learned rows, and what names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddingFile {
    /// Its path.
    pub place: ConfinedPath,
    /// Its name, which can be its token's: that of the path, unless it was fetched by content.
    pub name: String,
    /// Its token, whatever the file says; empty: what the file says.
    pub token: String,
}

impl EmbeddingFile {
    /// A file under its own name.
    pub fn at(path: &Path) -> Self {
        Self {
            place: ConfinedPath::at(path),
            name: path.to_string_lossy().into_owned(),
            token: String::new(),
        }
    }

    /// The files of `--embeds`, and the words of `--token` for the first of them.
    ///
    /// # Errors
    /// More words than files.
    pub fn given(embeds: &[PathBuf], tokens: &[String]) -> Result<Vec<Self>, Error> {
        if tokens.len() > embeds.len() {
            let problem = format!(
                "is given {} times for {} --embeds; allowed: once for each",
                tokens.len(),
                embeds.len()
            );
            return Err(Error::Option { option: "--token", problem });
        }
        let tokens = tokens.iter().map(String::as_str).chain(std::iter::repeat(""));
        Ok(embeds.iter().zip(tokens).map(|(file, token)| Self::at(file).with_token(token)).collect())
    }

    /// Sets its token; empty: the file's own.
    pub fn with_token(self, token: &str) -> Self {
        Self { token: token.to_owned(), ..self }
    }
}

impl Embeddings {
    /// Reads embeddings' files, of every form that [`LearnedEmbedding`] knows, and adds their tokens to `tokenizer`. A
    /// file that names no token teaches its own name without the ending.
    ///
    /// A token that is given with a file is its token, whatever the file says.
    ///
    /// `width`: floats of a row, the text encoder's hidden size.
    ///
    /// # Errors
    /// A file that is neither, or made for a text encoder of another width; a token that the vocabulary or another
    /// file has.
    pub fn open(files: &[EmbeddingFile], width: usize, tokenizer: &mut ClipTokenizer) -> Result<Self, Error> {
        let mut embeddings = Self::default();
        for file in files {
            let Learned { token, rows, hash } = read(file, width)?;
            let added = tokenizer.add_placeholders(&token, rows.len() / width);
            let added = added.map_err(|error| refused(file, error))?;
            embeddings.known.push((token, hash));
            embeddings.tokens.extend(added.tokens);
            embeddings.rows.extend(rows);
        }
        Ok(embeddings)
    }
}

/// A token that cannot be added, as the error of the file that asks for it and not of a job's field.
fn refused(file: &EmbeddingFile, error: data::Error) -> Error {
    let problem = match error {
        data::Error::PlaceholderTaken { token } => format!(
            "its token {token:?} is in the model's vocabulary, or in another embedding; give it another word: `--token`, or \
             generate.tokens of a job"
        ),
        data::Error::PlaceholderUnusable { token, problem } => {
            format!(
                "its token {token:?} cannot be used: {problem}; give it another word: `--token`, or generate.tokens of a job"
            )
        }
        other => return other.into(),
    };
    Error::Embeds { file: file.name.clone(), problem }
}

/// An embedding of a file.
#[derive(Debug, PartialEq)]
struct Learned {
    token: String,
    /// [vectors, width]
    rows: Vec<f32>,
    hash: ContentHash,
}

fn read(file: &EmbeddingFile, width: usize) -> Result<Learned, Error> {
    let wrong = |problem: String| Error::Embeds { file: file.name.clone(), problem };
    let unusable = |error: EmbeddingError| wrong(error.to_string());
    let bytes = read_opened(file.place.open()).map_err(unusable)?;
    let learned = LearnedEmbedding::from_bytes(&bytes).map_err(unusable)?;
    learned.check_width(width).map_err(unusable)?;
    // AUTOMATIC1111 and kohya's scripts go by the file's name without the ending.
    let of_name = || Path::new(&file.name).file_stem()?.to_str().map(str::to_owned);
    let nameless = || wrong("it has no name, and nothing in it names a token".to_owned());
    let given = Some(file.token.clone()).filter(|token| !token.is_empty());
    let token = given.or(learned.token).or_else(of_name).ok_or_else(nameless)?;
    Ok(Learned { token, rows: learned.rows, hash: learned.hash })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use safetensors::{Dtype, tensor::TensorView};

    use super::*;
    use crate::output::{
        TensorFile, embeds,
        facts::tests::{example, learned},
    };

    fn file_with(tensors: &[(&str, Vec<usize>)]) -> tempfile::NamedTempFile {
        let data = vec![0u8; 4096];
        let views: BTreeMap<String, TensorView<'_>> = tensors
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

    /// The token and the rows of a file for a text encoder of width 8.
    fn learned_from(file: &Path) -> (String, Vec<f32>) {
        let learned = read(&EmbeddingFile::at(file), 8).unwrap();
        assert_eq!(learned.hash, ContentHash::of(&std::fs::read(file).unwrap()));
        (learned.token, learned.rows)
    }

    #[test]
    fn one_tensor_of_the_right_width_is_read() {
        let file = file_with(&[("<cat>", vec![2, 8])]);
        assert_eq!(learned_from(file.path()), ("<cat>".to_owned(), vec![0.0; 16]));
    }

    #[test]
    fn every_other_file_is_refused_by_name() {
        let wide = file_with(&[("<cat>", vec![1, 9])]);
        let two = file_with(&[("<cat>", vec![1, 8]), ("<dog>", vec![1, 8])]);
        let none = tempfile::NamedTempFile::new().unwrap();
        for file in [&wide, &two, &none] {
            let file = EmbeddingFile::at(file.path());
            let error = read(&file, 8).unwrap_err();
            assert!(matches!(&error, Error::Embeds { file: named, .. } if *named == file.name), "{error}");
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
            assert_eq!(learned_from(&file), (token.to_owned(), vec![0.5; 16]));
        }
    }

    #[test]
    fn keys_that_say_nothing_leave_the_word_to_the_files_name() {
        for key in ["emp_params", "clip_l", "*"] {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("myface.safetensors");
            TensorFile::new().with_f32(key, &[2, 8], &[0.5; 16]).unwrap().write(&file).unwrap();
            assert_eq!(learned_from(&file).0, "myface", "{key}");
        }
    }

    #[test]
    fn a_word_that_is_given_is_taken_whatever_the_file_says() {
        let toy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/toy-sd/tokenizer");
        let star = file_with(&[("star", vec![2, 8])]);
        let file = |token: &str| EmbeddingFile::at(star.path()).with_token(token);
        let open = |file: EmbeddingFile| {
            let mut tokenizer = ClipTokenizer::open(&toy, 77).unwrap();
            Embeddings::open(&[file], 8, &mut tokenizer).map(|embeddings| embeddings.tokens)
        };
        let error = open(file("")).unwrap_err().to_string();
        assert!(error.contains("\"star\"") && error.contains("--token"), "{error}");
        assert_eq!(open(file("<my-star>")).unwrap(), ["<my-star>", "<my-star>_1"]);
        let error = open(file(" a ")).unwrap_err().to_string();
        assert!(error.contains("cannot be used"), "{error}");
    }

    #[test]
    fn files_of_other_programs_are_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/embeddings");
        let rows: Vec<f32> = (0..16u8).map(|number| f32::from(number) / 4.0 - 1.0).collect();
        for (name, token) in
            [("a1111.pt", "my-cat"), ("ldm-fp16.pt", "ldm-fp16"), ("learned_embeds-bf16.bin", "<cat>")]
        {
            assert_eq!(learned_from(&folder.join(name)), (token.to_owned(), rows.clone()));
        }
        let error = read(&EmbeddingFile::at(&folder.join("pickle-calls.bin")), 8).unwrap_err().to_string();
        assert!(error.contains("pickle-calls.bin") && error.contains("Nothing was run"), "{error}");
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
            assert_eq!(learned_from(file), ("<a>".to_owned(), rows.clone()));
        }
    }

    #[test]
    fn a_token_that_is_taken_is_blamed_on_its_file() {
        let toy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/toy-sd/tokenizer");
        let tokenizer = || ClipTokenizer::open(&toy, 77).unwrap();
        let (_folder, star) = emb_params("star.safetensors", &[]);
        let (_other, mine) = emb_params("my-star.safetensors", &[]);
        let [star, mine] = [&star, &mine].map(|file| EmbeddingFile::at(file));
        let mut taught = tokenizer();
        let embeddings = Embeddings::open(std::slice::from_ref(&mine), 8, &mut taught).unwrap();
        assert_eq!((embeddings.known[0].0.as_str(), embeddings.rows.len()), ("my-star", 16));
        assert_eq!(taught.write_out("a my-star").unwrap(), "a my-star my-star_1");
        for (files, token) in [([star, mine.clone()], "\"star\""), ([mine.clone(), mine], "\"my-star\"")] {
            let error = Embeddings::open(&files, 8, &mut tokenizer()).unwrap_err().to_string();
            assert!(error.starts_with("--embeds ") && error.contains(token), "{error}");
            assert!(!error.contains("train."), "{error}");
        }
    }
}
