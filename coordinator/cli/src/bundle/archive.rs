//! The file itself: texts without secrets, in a compressed archive of bounded size.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::SystemTime,
};

use flate2::{Compression, write::GzEncoder};
use tar::{Builder, EntryType, Header};
use tempfile::NamedTempFile;

use super::scrub::scrub;

/// Most bytes of all texts together, before compression.
pub(super) const MOST_BYTES: u64 = 200 << 20;

/// An archive that has its name only when it is whole.
pub(super) struct Archive {
    builder: Builder<GzEncoder<NamedTempFile>>,
    target: PathBuf,
    /// The one folder in it.
    folder: String,
    made: u64,
    left: u64,
    written: Vec<String>,
}

impl Archive {
    /// Begins one that is to be at `target`, which must not exist.
    pub(super) fn begin(target: &Path, folder: &str, now: SystemTime) -> io::Result<Self> {
        if target.symlink_metadata().is_ok() {
            let text = "it is there already: name another with -o, or remove it";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        let beside =
            target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // For its owner alone, as temporary files are.
        let file = NamedTempFile::new_in(beside)?;
        Ok(Self {
            builder: Builder::new(GzEncoder::new(file, Compression::default())),
            target: target.to_owned(),
            folder: folder.to_owned(),
            made: now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            left: MOST_BYTES,
            written: Vec::new(),
        })
    }

    /// Adds a text without its secrets. False: there is no room for it.
    pub(super) fn add(&mut self, name: &str, text: &str) -> io::Result<bool> {
        let text = scrub(text);
        let size = text.len() as u64;
        if size > self.left {
            return Ok(false);
        }
        self.left -= size;
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_size(size);
        header.set_mode(0o600);
        header.set_mtime(self.made);
        // A name may come from outside, as a unit's.
        let name: String = scrub(name).chars().map(|c| if c.is_ascii_graphic() { c } else { '_' }).collect();
        let name =
            name.split('/').filter(|part| !part.is_empty() && *part != "..").collect::<Vec<_>>().join("/");
        self.builder.append_data(&mut header, format!("{}/{name}", self.folder), text.as_bytes())?;
        self.written.push(name);
        Ok(true)
    }

    /// What is in it so far.
    pub(super) fn written(&self) -> &[String] {
        &self.written
    }

    /// Ends it and gives it its name. How large it is.
    pub(super) fn finish(self) -> io::Result<u64> {
        let mut file = self.builder.into_inner()?.finish()?;
        file.flush()?;
        file.as_file().sync_all()?;
        let size = fs::metadata(file.path())?.len();
        file.persist_noclobber(&self.target).map_err(|error| error.error)?;
        Ok(size)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, io::Read as _};

    use super::*;

    fn unpacked(file: &Path) -> BTreeMap<String, String> {
        let mut archive =
            tar::Archive::new(flate2::read::GzDecoder::new(fs::File::open(file).expect("a file")));
        let mut files = BTreeMap::new();
        for entry in archive.entries().expect("an archive") {
            let mut entry = entry.expect("an entry");
            let name = entry.path().expect("a name").to_string_lossy().into_owned();
            let mut text = String::new();
            entry.read_to_string(&mut text).expect("a text");
            files.insert(name, text);
        }
        files
    }

    #[test]
    fn an_archive_has_clean_texts_and_its_name_in_the_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("b.tar.gz");
        let mut archive = Archive::begin(&target, "b", SystemTime::now()).expect("begins");
        assert!(archive.add("a/b.txt", "x rta1.abc y").expect("written"));
        assert!(archive.add("../../etc/hf_abcdefghijklmnopqrst", "").expect("written"));
        assert!(!target.exists(), "not before it is whole");
        assert_eq!(archive.written(), ["a/b.txt", "etc/[removed]"]);
        archive.finish().expect("finishes");
        let files = unpacked(&target);
        assert_eq!(files["b/a/b.txt"], "x [removed] y");
        assert!(files.contains_key("b/etc/[removed]"), "{files:?}");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing is left beside it");
        let error = Archive::begin(&target, "b", SystemTime::now()).err().expect("refused");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn an_archive_is_bounded_and_leaves_nothing_when_it_is_dropped() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut archive = Archive::begin(&folder.path().join("b"), "b", SystemTime::now()).expect("begins");
        archive.left = 10;
        assert!(archive.add("a", "12345678").expect("written"));
        assert!(!archive.add("b", "12345678").expect("refused"));
        assert!(archive.add("c", "12").expect("written"));
        drop(archive);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }
}
