//! The tokens of one part of the inputs, in a file.
//!
//! ```text
//! tokens         16 bits each
//! lengths        32 bits each: the tokens of each document, its end-of-text token included
//! documents, tokens, skipped, checksum    64 bits each; the checksum is CRC-32C of all before it
//! magic          8 bytes
//! ```
//!
//! All numbers are little-endian. The file has its name only when all of it is on the disk.

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Read, Seek as _, SeekFrom, Write as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use crc_fast::{CrcAlgorithm, Digest};
use ringtune_shared::files::NewFile;

use crate::Error;

const MAGIC: [u8; 8] = *b"RTTOKEN1";
const FOOTER: u64 = 40;
const BUFFER: usize = 1 << 18;

/// A file of tokens that is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) path: PathBuf,
    pub(crate) documents: u64,
    pub(crate) tokens: u64,
    /// Documents that could not be read.
    pub(crate) skipped: u64,
}

impl Chunk {
    /// Opens a file and reads all of it; none if it is not there, or not as it was written. Blocks.
    pub(crate) fn find(path: &Path) -> Result<Option<Self>, Error> {
        match File::open(path) {
            Ok(file) => Self::checked(file, path).map_err(Error::io("read", path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io("read", path)(error)),
        }
    }

    fn checked(mut file: File, path: &Path) -> io::Result<Option<Self>> {
        let size = file.metadata()?.len();
        let Some(before) = size.checked_sub(FOOTER) else { return Ok(None) };
        let mut footer = [0; FOOTER as usize];
        file.read_exact_at(&mut footer, before)?;
        let number = |place: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&footer[8 * place..8 * place + 8]);
            u64::from_le_bytes(bytes)
        };
        let [documents, tokens, skipped, checksum] = [0, 1, 2, 3].map(number);
        let expected =
            tokens.checked_mul(2).zip(documents.checked_mul(4)).and_then(|(a, b)| a.checked_add(b));
        if !footer.ends_with(&MAGIC) || expected != Some(before) {
            return Ok(None);
        }
        file.seek(SeekFrom::Start(0))?;
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        let mut reader = BufReader::with_capacity(BUFFER, file.take(before + 24));
        let mut buffer = vec![0; BUFFER];
        loop {
            let read = reader.read(&mut buffer)?;
            if read == 0 {
                break;
            }
            digest.update(&buffer[..read]);
        }
        let whole = digest.finalize() == checksum;
        Ok(whole.then(|| Self { path: path.to_owned(), documents, tokens, skipped }))
    }

    /// Gives the tokens of each document, in order. Blocks.
    pub(crate) fn lengths(&self, mut each: impl FnMut(u32)) -> Result<(), Error> {
        let failed = || Error::io("read", &self.path);
        let mut file = File::open(&self.path).map_err(failed())?;
        file.seek(SeekFrom::Start(2 * self.tokens)).map_err(failed())?;
        let mut reader = BufReader::with_capacity(BUFFER, file);
        let mut length = [0; 4];
        for _ in 0..self.documents {
            reader.read_exact(&mut length).map_err(failed())?;
            each(u32::from_le_bytes(length));
        }
        Ok(())
    }
}

/// A file of tokens that is being written. Dropped before its end it leaves nothing.
pub(crate) struct ChunkWriter {
    file: BufWriter<NewFile>,
    path: PathBuf,
    digest: Digest,
    bytes: Vec<u8>,
    lengths: Vec<u32>,
    tokens: u64,
}

impl ChunkWriter {
    pub(crate) fn create(path: PathBuf) -> Result<Self, Error> {
        let file = BufWriter::with_capacity(BUFFER, NewFile::create(&path)?);
        let digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        Ok(Self { file, path, digest, bytes: Vec::new(), lengths: Vec::new(), tokens: 0 })
    }

    /// Adds a document: all its tokens.
    pub(crate) fn document(&mut self, tokens: &[u16]) -> Result<(), Error> {
        // No document has more bytes than 32 bits can say, and each has at most one token for each of them.
        self.lengths.push(tokens.len() as u32);
        self.tokens += tokens.len() as u64;
        self.bytes.clear();
        self.bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        self.write()
    }

    fn write(&mut self) -> Result<(), Error> {
        self.digest.update(&self.bytes);
        self.file.write_all(&self.bytes).map_err(Error::io("write", &self.path))
    }

    /// Gives the file its name.
    pub(crate) fn finish(mut self, skipped: u64) -> Result<Chunk, Error> {
        let documents = self.lengths.len() as u64;
        self.bytes.clear();
        self.bytes.extend(self.lengths.iter().flat_map(|length| length.to_le_bytes()));
        self.bytes.extend([documents, self.tokens, skipped].iter().flat_map(|number| number.to_le_bytes()));
        self.write()?;
        self.bytes.clear();
        self.bytes.extend(self.digest.finalize().to_le_bytes());
        self.bytes.extend(MAGIC);
        let failed = || Error::io("write", &self.path);
        self.file.write_all(&self.bytes).map_err(failed())?;
        let file = self.file.into_inner().map_err(|error| failed()(error.into_error()))?;
        file.commit()?;
        Ok(Chunk { path: self.path, documents, tokens: self.tokens, skipped })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn written(path: &Path) -> Chunk {
        let mut writer = ChunkWriter::create(path.to_owned()).unwrap();
        for tokens in [&[1u16, 2, 65_535][..], &[7], &[]] {
            writer.document(tokens).unwrap();
        }
        writer.finish(4).unwrap()
    }

    #[test]
    fn what_is_written_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tokens");
        assert_eq!(Chunk::find(&path).unwrap(), None);
        let chunk = written(&path);
        assert_eq!((chunk.documents, chunk.tokens, chunk.skipped), (3, 4, 4));
        assert_eq!(Chunk::find(&path).unwrap(), Some(chunk.clone()));
        assert_eq!(fs::read(&path).unwrap()[..8], [1, 0, 2, 0, 255, 255, 7, 0]);
        let mut lengths = Vec::new();
        chunk.lengths(|length| lengths.push(length)).unwrap();
        assert_eq!(lengths, [3, 1, 0]);
    }

    #[test]
    fn damage_of_any_byte_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tokens");
        written(&path);
        let whole = fs::read(&path).unwrap();
        for place in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[place] ^= 0x10;
            fs::write(&path, &damaged).unwrap();
            assert_eq!(Chunk::find(&path).unwrap(), None, "byte {place}");
            fs::write(&path, &whole[..place]).unwrap();
            assert_eq!(Chunk::find(&path).unwrap(), None, "cut to {place} bytes");
        }
    }

    #[test]
    fn a_half_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = ChunkWriter::create(folder.path().join("a.tokens")).unwrap();
        writer.document(&[1; 1000]).unwrap();
        drop(writer);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
