//! The learned embeddings' files: the same rows and the same metadata under two keys.

use std::path::Path;

use super::{EmbeddingFacts, Error, Learned, TensorFile, read_back};

/// kohya's key (github.com/kohya-ss/sd-scripts, train_textual_inversion.py).
pub use ringtune_shared::embedding::EMB_PARAMS_KEY;

/// Writes the learned rows, [num_vectors, width] in fp32, under the placeholder token as the only key, so that
/// diffusers' `load_textual_inversion` loads them (several vectors as `token`, `token_1`, …), and reads them back.
///
/// # Errors
/// The rows do not divide into `num_vectors` or are not finite; the file cannot be written, or holds something else
/// than was written.
pub fn write(file: &Path, learned: &Learned<'_>, facts: &EmbeddingFacts) -> Result<(), Error> {
    write_under(&learned.concept.placeholder_token, file, learned, facts)
}

/// As above under the key `emb_params`, for loaders that take the word from the file's name.
///
/// # Errors
/// See [`write`].
pub fn write_emb_params(file: &Path, learned: &Learned<'_>, facts: &EmbeddingFacts) -> Result<(), Error> {
    write_under(EMB_PARAMS_KEY, file, learned, facts)
}

fn write_under(key: &str, file: &Path, learned: &Learned<'_>, facts: &EmbeddingFacts) -> Result<(), Error> {
    let metadata = facts.metadata(learned);
    let tensors = TensorFile::new().with_f32(key, &learned.shape(), learned.rows)?;
    read_back::check_finite(file, learned)?;
    let add = |tensors: TensorFile, (key, text): (&String, &String)| tensors.with_metadata(key, text);
    metadata.iter().fold(tensors, add).write(file)?;
    read_back::check_embedding(file, key, learned, &metadata)
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensors;

    use super::{
        super::facts::tests::{example, learned},
        *,
    };

    const ROWS: [f32; 6] = [1.0, 2.0, 3.0, 4.0, 5.0, -0.0];

    #[test]
    fn both_files_hold_the_same_rows_and_facts_under_one_key() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["a.safetensors", "b.safetensors"].map(|name| folder.path().join(name));
        write(&paths[0], &learned(&ROWS), &example()).unwrap();
        write_emb_params(&paths[1], &learned(&ROWS), &example()).unwrap();
        for (path, key) in paths.iter().zip(["<a>", "emb_params"]) {
            let bytes = std::fs::read(path).unwrap();
            let read = SafeTensors::deserialize(&bytes).unwrap();
            assert_eq!(read.names(), [key]);
            assert_eq!(read.tensor(key).unwrap().shape(), [2, 3]);
            assert_eq!(read.tensor(key).unwrap().data(), ROWS.map(f32::to_le_bytes).concat());
            let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
            let metadata = header.metadata().clone().unwrap();
            assert_eq!(metadata, example().metadata(&learned(&ROWS)).into_iter().collect());
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn rows_that_do_not_divide_or_are_not_finite_leave_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x");
        assert!(matches!(write(&file, &learned(&[0.0; 5]), &example()), Err(Error::Shape { .. })));
        let broken = write(&file, &learned(&[0.0, 1.0, 2.0, 3.0, f32::NAN, f32::INFINITY]), &example());
        let Err(Error::NotFinite { count: 2, vector: 1, column: 1, .. }) = broken else {
            panic!("{broken:?}");
        };
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
