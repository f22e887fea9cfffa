//! Contents on their way from one folder to another.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write},
    path::Path,
};

use ringtune_shared::{files::NewFile, ids::ContentHash, state::Hashing};

use super::{CONTENTS, Error, content_path};

/// What became of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Copied {
    /// It is there, with so many bytes.
    Whole(u64),
    /// Its bytes are not those that its name says.
    Damaged,
    /// It is not there.
    Gone,
}

/// All contents in a folder's `contents`. Blocks.
pub(super) fn list(folder: &Path) -> Result<Vec<ContentHash>, Error> {
    let root = folder.join(CONTENTS).join("sha256");
    let mut found = Vec::new();
    let parts = match fs::read_dir(&root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        parts => parts.map_err(Error::at("read", &root))?,
    };
    for part in parts {
        let part = part.map_err(Error::at("read", &root))?.path();
        for entry in fs::read_dir(&part).map_err(Error::at("read", &part))? {
            let name = entry.map_err(Error::at("read", &part))?.file_name();
            found.extend(name.to_str().and_then(|name| name.parse::<ContentHash>().ok()));
        }
    }
    found.sort();
    Ok(found)
}

/// Copies all of a file; an error names the one of the two that failed. How many bytes it has. Blocks.
pub(super) fn transfer(
    source: &mut File,
    source_path: &Path,
    target: &mut impl Write,
    target_path: &Path,
) -> Result<u64, Error> {
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        let read = match source.read(&mut buffer) {
            Ok(0) => return Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read.map_err(Error::at("read", source_path))?,
        };
        target.write_all(&buffer[..read]).map_err(Error::at("write", target_path))?;
        bytes += read as u64;
    }
}

/// Copies a content, whole or not at all. Blocks.
pub(super) fn copy(hash: ContentHash, from: &Path, to: &Path) -> Result<Copied, Error> {
    let (source, target) = (content_path(from, hash), content_path(to, hash));
    let mut file = match File::open(&source) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Copied::Gone),
        opened => opened.map_err(Error::at("read", &source))?,
    };
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder).map_err(Error::at("create", folder))?;
    }
    let mut hashing = Hashing::new(NewFile::create(&target)?);
    let bytes = transfer(&mut file, &source, &mut hashing, &target)?;
    if hashing.hash() != hash {
        return Ok(Copied::Damaged);
    }
    hashing.into_inner().commit()?;
    Ok(Copied::Whole(bytes))
}
