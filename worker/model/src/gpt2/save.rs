//! Saving a GPT-2 as transformers loads it: config.json and model.safetensors, chunk by chunk.

use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::Gpt2;
use super::layout::Layout;
use crate::error::{Error, Result};

/// Bytes that are copied at once.
const CHUNK: usize = 1 << 20;
/// What a header's length is a multiple of, so that tensors are aligned in a mapped file.
const ALIGNMENT: usize = 8;

/// Writes both files into `folder`, which is there. Each has its name once it is whole; the config is last, and an earlier
/// one goes first: a folder with a config is a whole model.
///
/// # Errors
/// A file that cannot be written or removed; then the folder may be without a config.
pub(crate) fn save(model: &Gpt2, folder: &Path) -> Result<()> {
    let config = folder.join("config.json");
    if let Err(source) = std::fs::remove_file(&config)
        && source.kind() != ErrorKind::NotFound
    {
        return Err(Error::Io { file: config, source });
    }
    write(&folder.join("model.safetensors"), |file| write_tensors(model, file))?;
    write(&config, |file| Ok(file.write_all(model.config.text().as_bytes())?))?;
    // The names are on disk only once the folder is.
    File::open(folder)
        .and_then(|opened| opened.sync_all())
        .map_err(|source| Error::Io { file: folder.to_path_buf(), source })
}

/// What went wrong while a file was written.
enum Trouble {
    Io(std::io::Error),
    Model(Error),
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        Trouble::Io(error)
    }
}

/// A file by `body`, under another name until it is whole and on disk.
fn write(path: &Path, body: impl FnOnce(&mut dyn Write) -> std::result::Result<(), Trouble>) -> Result<()> {
    let partial = path.with_extension("partial");
    let written = || -> std::result::Result<(), Trouble> {
        let mut file = BufWriter::with_capacity(CHUNK, File::create(&partial)?);
        body(&mut file)?;
        file.flush()?;
        file.get_ref().sync_all()?;
        Ok(std::fs::rename(&partial, path)?)
    };
    written().map_err(|trouble| {
        let _ = std::fs::remove_file(&partial);
        match trouble {
            Trouble::Io(source) => Error::Io { file: path.to_path_buf(), source },
            Trouble::Model(error) => error,
        }
    })
}

/// transformers has biases in every GPT-2: of a model without, they are zeros.
fn file_layout(model: &Gpt2) -> Layout {
    Layout::new(&model.config.with_biases())
}

fn write_tensors(model: &Gpt2, file: &mut dyn Write) -> std::result::Result<(), Trouble> {
    let layout = file_layout(model);
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut end = 0;
    for parameter in &layout.parameters {
        let start = end;
        end += parameter.elements() * 4;
        let about = json!({"dtype": "F32", "shape": parameter.shape, "data_offsets": [start, end]});
        header.insert(parameter.name.clone(), about);
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(ALIGNMENT), b' ');
    file.write_all(&(text.len() as u64).to_le_bytes())?;
    file.write_all(&text)?;
    let mut chunk = vec![0; CHUNK];
    for parameter in &layout.parameters {
        let there = model.layout.parameters.contains(parameter);
        let bytes = parameter.elements() * 4;
        for first in (0..bytes).step_by(CHUNK) {
            let chunk = &mut chunk[..CHUNK.min(bytes - first)];
            chunk.fill(0);
            if there {
                let name = format!("model.{}", parameter.name);
                model.parameters.read_state(&name, first as u64, chunk).map_err(Trouble::Model)?;
            }
            file.write_all(chunk)?;
        }
    }
    Ok(())
}
