//! The text encoder's weights with more rows in the token table, in fp32; streamed, for they are large.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufWriter, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

use half::f16;
use safetensors::{Dtype, tensor::Metadata};
use serde_json::{Map, Value, json};

use super::error::{Error, failed_at, unusable};
use crate::base_model::is_weights;

/// The stem of the weights' files.
const STEM: &str = "model";
/// Legacy names have no `text_model.` in front.
const TABLE: &str = "embeddings.token_embedding.weight";
/// As the safetensors library has it.
const LARGEST_HEADER: u64 = 100_000_000;
/// Bytes that are converted at once; a multiple of every type's size.
const CHUNK: usize = 1 << 20;

/// A tensor and its place in a file.
#[derive(Debug)]
struct Stored {
    file: PathBuf,
    dtype: Dtype,
    shape: Vec<usize>,
    /// Bytes from the start of the file.
    start: u64,
    bytes: u64,
}

/// A text encoder's weights, one file or several.
#[derive(Debug)]
pub(super) struct TokenTable {
    folder: PathBuf,
    tensors: BTreeMap<String, Stored>,
    table: String,
    rows: usize,
    width: usize,
}

impl TokenTable {
    /// Reads the headers of the weights in `folder`.
    pub(super) fn open(folder: &Path) -> Result<Self, Error> {
        let mut files: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(folder).map_err(failed_at(folder))? {
            let entry = entry.map_err(failed_at(folder))?;
            if entry.file_name().to_str().is_some_and(|name| is_weights(name, STEM)) {
                files.push(entry.path());
            }
        }
        files.sort();
        let mut tensors = BTreeMap::new();
        for file in &files {
            read_header(file, &mut tensors)?;
        }
        let is_table = |name: &&String| *name == TABLE || **name == format!("text_model.{TABLE}");
        let Some(table) = tensors.keys().find(is_table).cloned() else {
            return Err(unusable(folder, format!("has no {STEM}.safetensors with {TABLE:?}")));
        };
        let &[rows, width] = tensors[&table].shape.as_slice() else {
            return Err(unusable(folder, format!("its {table:?} is not a table")));
        };
        Ok(Self { folder: folder.to_owned(), tensors, table, rows, width })
    }

    /// Tokens that it has rows for.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Leaves out the rows behind the first `rows`, which no token has.
    pub(super) fn cut(&mut self, rows: usize) {
        let Some(stored) = self.tensors.get_mut(&self.table) else { return };
        if rows < self.rows {
            stored.bytes = stored.bytes / self.rows as u64 * rows as u64;
            stored.shape[0] = rows;
            self.rows = rows;
        }
    }

    /// Floats of a row.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Bytes of the weights with `more` rows.
    pub(super) fn bytes_with(&self, more: usize) -> u64 {
        let all: u64 = self.tensors.values().map(Stored::written_bytes).sum();
        all + (more * self.width * 4) as u64
    }

    /// `count` rows from row `first` on, which is stored in fp32.
    pub(super) fn read_rows(&self, first: usize, count: usize) -> Result<Vec<f32>, Error> {
        let stored = &self.tensors[&self.table];
        if stored.dtype != Dtype::F32 || first + count > self.rows {
            return Err(unusable(&stored.file, "holds other rows than were written"));
        }
        let mut bytes = vec![0; count * self.width * 4];
        let mut file = File::open(&stored.file).map_err(failed_at(&stored.file))?;
        let start = stored.start + (first * self.width * 4) as u64;
        file.seek(SeekFrom::Start(start)).map_err(failed_at(&stored.file))?;
        file.read_exact(&mut bytes).map_err(failed_at(&stored.file))?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    /// Writes configuration and weights to `folder`, with `rows` ([more, width]) behind the table's own.
    pub(super) fn write(&self, folder: &Path, rows: &[f32]) -> Result<(), Error> {
        fs::create_dir_all(folder).map_err(failed_at(folder))?;
        let more = rows.len() / self.width;
        self.write_config(folder, self.rows + more)?;
        let file = folder.join(format!("{STEM}.safetensors"));
        let failed = failed_at(&file);
        let mut writer = BufWriter::new(File::create(&file).map_err(&failed)?);
        let header = self.header(more).to_string();
        let padded = header.len().next_multiple_of(8);
        writer.write_all(&(padded as u64).to_le_bytes()).map_err(&failed)?;
        write!(writer, "{header:padded$}").map_err(&failed)?;
        for (name, stored) in self.in_order() {
            stored.copy_to(&mut writer, &file)?;
            if *name == self.table {
                for value in rows {
                    writer.write_all(&value.to_le_bytes()).map_err(&failed)?;
                }
            }
        }
        let written = writer.into_inner().map_err(|error| failed(error.into_error()))?;
        written.sync_all().map_err(&failed)
    }

    /// Integers first, for they are aligned to 8 bytes.
    fn in_order(&self) -> impl Iterator<Item = (&String, &Stored)> {
        let of = |floats: bool| self.tensors.iter().filter(move |(_, stored)| stored.is_float() == floats);
        of(false).chain(of(true))
    }

    fn header(&self, more: usize) -> Value {
        let mut entries = Map::from_iter([("__metadata__".to_owned(), json!({"format": "pt"}))]);
        let mut offset = 0;
        for (name, stored) in self.in_order() {
            let (mut shape, mut bytes) = (stored.shape.clone(), stored.written_bytes());
            if *name == self.table {
                shape[0] += more;
                bytes += (more * self.width * 4) as u64;
            }
            let dtype = if stored.is_float() { "F32" } else { "I64" };
            entries.insert(
                name.clone(),
                json!({"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + bytes]}),
            );
            offset += bytes;
        }
        Value::Object(entries)
    }

    fn write_config(&self, folder: &Path, rows: usize) -> Result<(), Error> {
        let source = self.folder.join("config.json");
        let text = fs::read_to_string(&source).map_err(failed_at(&source))?;
        let Ok(Value::Object(mut config)) = serde_json::from_str(&text) else {
            return Err(unusable(&source, "is not a JSON object"));
        };
        config.insert("vocab_size".to_owned(), Value::from(rows));
        // transformers 5 writes "dtype" where it wrote "torch_dtype".
        for key in ["dtype", "torch_dtype"] {
            if let Some(kind) = config.get_mut(key) {
                *kind = Value::from("float32");
            }
        }
        let target = folder.join("config.json");
        fs::write(&target, format!("{:#}\n", Value::Object(config))).map_err(failed_at(&target))
    }
}

/// Adds the tensors of one file.
fn read_header(path: &Path, tensors: &mut BTreeMap<String, Stored>) -> Result<(), Error> {
    let failed = failed_at(path);
    let mut file = File::open(path).map_err(&failed)?;
    let file_bytes = file.metadata().map_err(&failed)?.len();
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(&failed)?;
    let header_bytes = u64::from_le_bytes(length);
    if header_bytes > LARGEST_HEADER || header_bytes.saturating_add(8) > file_bytes {
        return Err(unusable(path, "is not a safetensors file: its header is longer than it is"));
    }
    let mut header = vec![0; header_bytes as usize];
    file.read_exact(&mut header).map_err(&failed)?;
    // Checks that the tensors lie one behind the other and are as long as their shapes say.
    let metadata: Metadata = serde_json::from_slice(&header)
        .map_err(|error| unusable(path, format!("is not a safetensors file: {error}")))?;
    for (name, about) in BTreeMap::from_iter(metadata.tensors()) {
        let (from, to) = about.data_offsets;
        let stored = Stored {
            file: path.to_owned(),
            dtype: about.dtype,
            shape: about.shape.clone(),
            start: 8 + header_bytes + from as u64,
            bytes: (to - from) as u64,
        };
        if stored.start.saturating_add(stored.bytes) > file_bytes {
            return Err(unusable(path, format!("ends before its tensor {name:?}")));
        }
        if !matches!(stored.dtype, Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::I64) {
            return Err(unusable(path, format!("has {name:?} in {:?}, which is not known", stored.dtype)));
        }
        if tensors.insert(name.clone(), stored).is_some() {
            return Err(unusable(path, format!("has {name:?}, which another file has too")));
        }
    }
    Ok(())
}

impl Stored {
    fn is_float(&self) -> bool {
        self.dtype != Dtype::I64
    }

    /// Bytes in fp32, or of integers as they are.
    fn written_bytes(&self) -> u64 {
        match self.dtype {
            Dtype::F16 | Dtype::BF16 => self.bytes * 2,
            _ => self.bytes,
        }
    }

    fn copy_to(&self, writer: &mut impl std::io::Write, target: &Path) -> Result<(), Error> {
        let failed = failed_at(&self.file);
        let mut file = File::open(&self.file).map_err(&failed)?;
        file.seek(SeekFrom::Start(self.start)).map_err(&failed)?;
        let mut left = self.bytes;
        let mut chunk = vec![0; CHUNK];
        while left > 0 {
            let count = left.min(CHUNK as u64) as usize;
            file.read_exact(&mut chunk[..count]).map_err(&failed)?;
            left -= count as u64;
            let halves = || chunk[..count].as_chunks::<2>().0.iter().map(|bytes| u16::from_le_bytes(*bytes));
            let bytes: Vec<u8> = match self.dtype {
                Dtype::F16 => halves().flat_map(|half| f16::from_bits(half).to_f32().to_le_bytes()).collect(),
                Dtype::BF16 => halves().flat_map(|half| (u32::from(half) << 16).to_le_bytes()).collect(),
                _ => chunk[..count].to_vec(),
            };
            writer.write_all(&bytes).map_err(failed_at(target))?;
        }
        Ok(())
    }
}
