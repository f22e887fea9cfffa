//! Files of tokens, for whoever trains on them.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use ringtune_shared::{
    files::TOKENS_WITHOUT_MANIFEST,
    ids::{ContentHash, ContentHasher},
};

use crate::{
    Error,
    manifest::{FileFacts, MANIFEST_FILE, Manifest, TRAIN_FILE, VAL_FILE},
};

/// Bytes that are read at once, where all are. An even number.
const PIECE: usize = 1 << 20;

/// A file of 16-bit tokens, little-endian, as `prepare-text` and nanoGPT write them. It is read where it is needed, and not mapped: a file
/// that somebody shortens meanwhile is an error, which would end a process that has it mapped.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    file: File,
    tokens: u64,
}

/// A training and a validation file, and what they are.
#[derive(Debug)]
pub struct TokenFiles {
    /// The content of `meta.json`.
    pub manifest: Manifest,
    /// `train.bin`.
    pub train: TokenFile,
    /// `val.bin`.
    pub val: TokenFile,
}

impl TokenFile {
    /// Opens a file. Blocks for a moment.
    ///
    /// # Errors
    /// It cannot be read, is empty, or has an odd number of bytes.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::of_file(File::open(path).map_err(Error::io("read", path))?, path)
    }

    /// An open file; `path`: what it is called.
    fn of_file(file: File, path: &Path) -> Result<Self, Error> {
        let about = file.metadata().map_err(Error::io("read", path))?;
        if !about.is_file() {
            return Err(Error::unusable(path, "is no file; allowed: a file of tokens, such as train.bin"));
        }
        let problem = match about.len() {
            0 => "is empty; allowed: at least one token".to_owned(),
            size if size % 2 == 1 => format!("has {size} bytes; allowed: an even number, as a token has two"),
            _ => String::new(),
        };
        if !problem.is_empty() {
            return Err(Error::unusable(path, problem));
        }
        Ok(Self { path: path.to_owned(), file, tokens: about.len() / 2 })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of tokens, at least one.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Copies the tokens from `start` on into `tokens`, as many as it has room for. Blocks.
    ///
    /// # Errors
    /// The file has fewer, or can no longer be read.
    pub fn read(&self, start: u64, tokens: &mut [u16]) -> Result<(), Error> {
        let wanted = tokens.len();
        if start.checked_add(wanted as u64).is_none_or(|end| end > self.tokens) {
            let problem = format!("has {} tokens; {wanted} from {start} on were wanted", self.tokens);
            return Err(Error::unusable(&self.path, problem));
        }
        let mut bytes = vec![0; 2 * wanted];
        self.read_bytes(2 * start, &mut bytes)?;
        for (token, bytes) in tokens.iter_mut().zip(bytes.as_chunks().0) {
            *token = u16::from_le_bytes(*bytes);
        }
        Ok(())
    }

    fn read_bytes(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.file.read_exact_at(bytes, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                let problem =
                    format!("had {} tokens when it was opened, and has been shortened since", self.tokens);
                Error::unusable(&self.path, problem)
            }
            _ => Error::io("read", &self.path)(error),
        })
    }

    /// Reads it piece by piece.
    fn for_pieces<T>(&self, mut of_piece: impl FnMut(&[u8]) -> Option<T>) -> Result<Option<T>, Error> {
        let (mut offset, end) = (0, 2 * self.tokens);
        let mut piece = vec![0; PIECE];
        while offset < end {
            let bytes = usize::try_from(end - offset).map_or(PIECE, |left| left.min(PIECE));
            let piece = piece.get_mut(..bytes).unwrap_or_default();
            self.read_bytes(offset, piece)?;
            if let Some(found) = of_piece(piece) {
                return Ok(Some(found));
            }
            offset += bytes as u64;
        }
        Ok(None)
    }

    /// Refuses a file in which a sample of `block` tokens, with the one that follows them, has no room.
    ///
    /// # Errors
    /// The tokens that there are and that are needed.
    pub fn check_block(&self, block: u64) -> Result<(), Error> {
        if self.tokens() > block {
            return Ok(());
        }
        let problem = format!(
            "has {} tokens; a block of {block} needs at least {}",
            self.tokens(),
            block.saturating_add(1)
        );
        Err(Error::unusable(&self.path, problem))
    }

    /// Refuses a file with an id that a model of `vocabulary_size` tokens does not have. Reads all of it. Blocks.
    ///
    /// # Errors
    /// The first such id and its place.
    pub fn check_ids(&self, vocabulary_size: u32) -> Result<(), Error> {
        let mut before = 0;
        let wrong = self.for_pieces(|piece| {
            let ids = piece.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes));
            let found = (before..).zip(ids).find(|(_, id)| u32::from(*id) >= vocabulary_size);
            before += piece.len() / 2;
            found
        });
        match wrong? {
            None => Ok(()),
            Some((place, id)) => Err(Error::unusable(
                &self.path,
                format!(
                    "its token {place} (from 0) is {id}; allowed: ids below {vocabulary_size}, the model's vocabulary"
                ),
            )),
        }
    }

    /// The SHA-256 of its bytes. Reads all of it. Blocks.
    ///
    /// # Errors
    /// It can no longer be read.
    pub fn sha256(&self) -> Result<ContentHash, Error> {
        let mut hasher = ContentHasher::new();
        self.for_pieces(|piece| {
            hasher.update(piece);
            None::<()>
        })?;
        Ok(hasher.finish())
    }

    /// Refuses a file that is not the one that a manifest describes. Reads all of it. Blocks.
    fn check_facts(&self, facts: &FileFacts) -> Result<(), Error> {
        if self.tokens() != facts.tokens {
            let problem = format!("has {} tokens, and {} by meta.json", self.tokens(), facts.tokens);
            return Err(Error::unusable(&self.path, problem));
        }
        let found = self.sha256()?;
        if found != facts.sha256 {
            let problem =
                format!("has the SHA-256 {found}, and {} by meta.json: it was changed", facts.sha256);
            return Err(Error::unusable(&self.path, problem));
        }
        Ok(())
    }
}

impl TokenFiles {
    /// Opens the files that `prepare-text` has left in a folder, and makes sure that they are those. Reads all of both. Blocks.
    ///
    /// # Errors
    /// A file is missing, or not what `meta.json` says: the error names it.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        Self::open_with(folder, |name| File::open(folder.join(name)))
    }

    /// As above, for files that `open` finds by their names in the folder.
    ///
    /// # Errors
    /// As [`TokenFiles::open`].
    pub fn open_with(folder: &Path, open: impl Fn(&str) -> io::Result<File>) -> Result<Self, Error> {
        let opened = |name: &str| {
            let path = folder.join(name);
            open(name).map_err(Error::io("read", &path)).map(|file| (file, path))
        };
        let (meta, path) = match open(MANIFEST_FILE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && open(TRAIN_FILE).is_ok() => {
                return Err(Error::unusable(folder, TOKENS_WITHOUT_MANIFEST));
            }
            _ => opened(MANIFEST_FILE)?,
        };
        let manifest = Manifest::of_file(meta, &path)?;
        let [train, val] = [TRAIN_FILE, VAL_FILE]
            .map(|name| opened(name).and_then(|(file, path)| TokenFile::of_file(file, &path)));
        let (train, val) = (train?, val?);
        train.check_facts(&manifest.train)?;
        val.check_facts(&manifest.val)?;
        Ok(Self { manifest, train, val })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn file(bytes: &[u8]) -> (tempfile::TempDir, Result<TokenFile, Error>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train.bin");
        fs::write(&path, bytes).unwrap();
        let opened = TokenFile::open(&path);
        (folder, opened)
    }

    #[test]
    fn tokens_without_a_manifest_are_refused_with_the_way_out() {
        let folder = tempfile::tempdir().unwrap();
        let gone = TokenFiles::open(folder.path()).unwrap_err();
        assert!(matches!(gone, Error::Io { .. }), "{gone}");
        fs::write(folder.path().join(TRAIN_FILE), [1, 0]).unwrap();
        let error = TokenFiles::open(folder.path()).unwrap_err();
        assert!(matches!(error, Error::Unusable { .. }), "not the node's fault: {error}");
        assert!(error.to_string().contains("prepare-text"), "{error}");
    }

    #[test]
    fn tokens_are_little_endian() {
        let (_folder, file) = file(&[1, 0, 2, 1, 255, 255]);
        let file = file.unwrap();
        let mut tokens = [0; 2];
        file.read(1, &mut tokens).unwrap();
        assert_eq!((file.tokens(), tokens), (3, [258, 65_535]));
        for start in [2, 3, u64::MAX, u64::MAX / 2] {
            assert!(file.read(start, &mut tokens).unwrap_err().to_string().contains("has 3 tokens"));
        }
    }

    #[test]
    fn a_file_that_is_shortened_while_it_is_read_is_an_error() {
        let (folder, file) = file(&[1; 8192]);
        let file = file.unwrap();
        file.read(4000, &mut [0; 96]).unwrap();
        fs::write(folder.path().join("train.bin"), [1; 100]).unwrap();
        let mut tokens = [0; 50];
        file.read(0, &mut tokens).unwrap();
        for refused in [file.read(10, &mut tokens), file.check_ids(500), file.sha256().map(drop)] {
            let refused = refused.unwrap_err().to_string();
            assert!(
                refused.contains("had 4096 tokens when it was opened, and has been shortened"),
                "{refused}"
            );
        }
    }

    #[test]
    fn what_is_no_file_of_tokens_is_refused() {
        assert!(file(&[]).1.unwrap_err().to_string().contains("is empty"));
        assert!(file(&[1, 2, 3]).1.unwrap_err().to_string().contains("has 3 bytes; allowed: an even number"));
        let folder = tempfile::tempdir().unwrap();
        assert!(TokenFile::open(folder.path()).unwrap_err().to_string().contains("is no file"));
        assert!(
            TokenFile::open(&folder.path().join("none.bin")).unwrap_err().to_string().contains("none.bin")
        );
    }

    #[test]
    fn ids_and_blocks_have_limits() {
        let (_folder, file) = file(&[5, 0, 9, 0, 7, 0, 9, 0]);
        let file = file.unwrap();
        file.check_ids(10).unwrap();
        let refused = file.check_ids(9).unwrap_err().to_string();
        assert!(refused.contains("token 1 (from 0) is 9") && refused.contains("below 9"), "{refused}");
        file.check_block(3).unwrap();
        let refused = file.check_block(4).unwrap_err().to_string();
        assert!(refused.contains("has 4 tokens; a block of 4 needs at least 5"), "{refused}");
    }
}
