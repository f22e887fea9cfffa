//! A file with a model's weights, and the same file with LoRAs in them: header, types and order stay to the bit.

use std::{
    fs::{self, File},
    io::{self, BufReader, BufWriter, Read, Seek as _, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::Weak,
    time::{Duration, Instant},
};

use ringtune_shared::{
    files::{NewFile, lfs_pointer},
    floats::FloatKind,
    lora::{LoraFile, MergedLayer, Place},
    state::{Hashing, Header},
};

use crate::{error::Error, output::remark};

/// How often a long calculation says how far it is.
const PACE: Duration = Duration::from_secs(2);
/// Bytes that are read or written at once.
const CHUNK: usize = 1 << 20;

/// LoRAs that were read for a model, each with its weight.
pub(super) type Loras<'a> = [(LoraFile<'a>, f64)];

/// An opened file of weights.
pub(super) struct Weights {
    /// Its path below the model's folder; of a single file its whole path.
    pub(super) name: PathBuf,
    path: PathBuf,
    file: File,
    header: Header,
    /// By tensor, in the order of the header's.
    places: Vec<Vec<Place>>,
}

/// How far it is, on stderr.
pub(super) struct Progress {
    done: u64,
    all: u64,
    told: Instant,
    wanted: Weak<()>,
}

impl Progress {
    /// Of so many bytes, until nobody holds what `wanted` points to.
    pub(super) fn new(all: u64, wanted: Weak<()>) -> Self {
        Self { done: 0, all, told: Instant::now(), wanted }
    }

    fn passed(&mut self, bytes: usize) -> Result<(), Error> {
        if self.wanted.strong_count() == 0 {
            return Err(Error::Interrupted("stopped; nothing was written".to_owned()));
        }
        self.done += bytes as u64;
        if self.told.elapsed() >= PACE {
            self.told = Instant::now();
            remark(&format!("{} % merged", self.done * 100 / self.all.max(1)));
        }
        Ok(())
    }
}

impl Weights {
    /// Opens `folder`/`name`. `places`: the layers that each tensor is the weight of, in the header's order.
    ///
    /// # Errors
    /// No file, or not a safetensors file; that of `places`.
    pub(super) fn open(
        folder: &Path,
        name: &Path,
        places: impl FnOnce(&Header) -> Result<Vec<Vec<Place>>, String>,
    ) -> Result<Self, Error> {
        let path = folder.join(name);
        let mut file = File::open(&path).map_err(failed("cannot read", &path))?;
        let size = file.metadata().map_err(failed("cannot read", &path))?.len();
        let unusable = |problem: String| Error::Usage(format!("{}: {problem}", path.display()));
        // 1. What stands for a file.
        let mut start = Vec::new();
        (&file).take(64).read_to_end(&mut start).map_err(failed("cannot read", &path))?;
        if let Some(problem) = lfs_pointer(&start) {
            return Err(unusable(problem.to_owned()));
        }
        // 2. The header.
        file.seek(SeekFrom::Start(0)).map_err(failed("cannot read", &path))?;
        let header = Header::read(&mut BufReader::new(&file), Some(size)).map_err(|error| {
            unusable(format!(
                "it is not a whole safetensors file: {error}. Pickles (.ckpt, .bin) are not read"
            ))
        })?;
        let places = places(&header).map_err(unusable)?;
        Ok(Self { name: name.to_owned(), path, file, header, places })
    }

    /// Bytes of the file.
    pub(super) fn bytes(&self) -> u64 {
        self.header.size()
    }

    /// Layers that LoRAs can change.
    pub(super) fn places(&self) -> impl Iterator<Item = &Place> {
        self.places.iter().flatten()
    }

    /// The same file at `to` with the LoRAs in it: whole or not there, and read back. `progress` is told of twice its bytes.
    ///
    /// # Errors
    /// A layer of a type that is not read, or whose numbers become too large for it; the file system's.
    pub(super) fn write_merged(
        &self,
        loras: &Loras<'_>,
        to: &Path,
        progress: &mut Progress,
    ) -> Result<(), Error> {
        // 1. Written.
        let mut file =
            NewFile::create(to).map(Hashing::new).map_err(|error| failed("cannot write", to)(error.cause))?;
        let mut writer = BufWriter::with_capacity(CHUNK, &mut file);
        self.merge(loras, &mut writer, to, progress)?;
        writer.flush().map_err(failed("cannot write", to))?;
        drop(writer);
        let written = file.hash();
        file.into_inner().commit().map_err(|error| failed("cannot write", to)(error.cause))?;
        // 2. Read back.
        let mut found = Hashing::new(io::sink());
        let mut back = File::open(to).map_err(failed("cannot read back", to))?;
        pass(&mut back, &self.path, self.bytes(), &mut found, to, progress)?;
        let size = fs::metadata(to).map_err(failed("cannot read back", to))?.len();
        if found.hash() != written || size != self.bytes() {
            let problem = io::Error::other("it holds something else than was written");
            return Err(failed("cannot read back", to)(problem));
        }
        Ok(())
    }

    fn merge(
        &self,
        loras: &Loras<'_>,
        writer: &mut impl Write,
        to: &Path,
        progress: &mut Progress,
    ) -> Result<(), Error> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(0)).map_err(failed("cannot read", &self.path))?;
        let mut reader = BufReader::with_capacity(CHUNK, file);
        pass(&mut reader, &self.path, self.header.bytes, writer, to, progress)?;
        for (tensor, places) in self.header.tensors.tensors().iter().zip(&self.places) {
            let merged: Vec<(&Place, MergedLayer)> = places
                .iter()
                .filter_map(|place| Some((place, MergedLayer::of(&place.module, loras)?)))
                .collect();
            if merged.is_empty() {
                pass(&mut reader, &self.path, tensor.bytes(), writer, to, progress)?;
                continue;
            }
            let wrong = |problem: String| {
                Error::Usage(format!("{}: tensor {:?}: {problem}", self.path.display(), tensor.name()))
            };
            let unread = || wrong(format!("it is stored as {}; allowed: F32, F16, BF16", tensor.dtype()));
            let kind = FloatKind::of(tensor.dtype()).ok_or_else(unread)?;
            // A place is made of rows, so that there is one.
            let rows = tensor.shape().first().copied().unwrap_or(1) as usize;
            let mut row = vec![0; tensor.bytes() as usize / rows.max(1)];
            for index in 0..rows {
                reader.read_exact(&mut row).map_err(failed("cannot read", &self.path))?;
                if let Some((place, layer)) = merged.iter().find(|(place, _)| place.rows.contains(&index)) {
                    row = layer.merged(index - place.rows.start, kind, &row).map_err(|number| {
                        let kind = kind.dtype();
                        wrong(format!("a number of it becomes {number:e}, which {kind} has no place for: give lower weights"))
                    })?;
                }
                writer.write_all(&row).map_err(failed("cannot write", to))?;
                progress.passed(row.len())?;
            }
        }
        Ok(())
    }
}

/// Hands on so many bytes.
fn pass(
    reader: &mut impl Read,
    from: &Path,
    mut left: u64,
    writer: &mut impl Write,
    to: &Path,
    progress: &mut Progress,
) -> Result<(), Error> {
    let mut chunk = vec![0; CHUNK.min(left as usize)];
    while left > 0 {
        let count = chunk.len().min(left as usize);
        reader.read_exact(&mut chunk[..count]).map_err(failed("cannot read", from))?;
        writer.write_all(&chunk[..count]).map_err(failed("cannot write", to))?;
        left -= count as u64;
        progress.passed(count)?;
    }
    Ok(())
}

pub(super) fn failed(doing: &'static str, path: &Path) -> impl Fn(io::Error) -> Error {
    move |source| Error::File { doing, path: path.to_owned(), source }
}
