//! The image folder of a job: what is in it, and its manifest at the coordinator.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use ringtune_shared::{
    files::name_left_out,
    ids::ContentHash,
    manifest::{LARGEST_IMAGE_FILE, MOST_FILES, Manifest, ManifestError, ManifestFile, is_image_name},
};
use ringtune_tables::captions::{CaptionFileError, FolderCaptions, caption_file_names, open_regular};

use crate::client::{Client, ClientError, Content};

/// Stray files that are named one by one.
const STRAY_FILES_NAMED: usize = 10;

/// An image folder that a job cannot use.
#[derive(Debug, thiserror::Error)]
pub enum ImageFolderError {
    /// It cannot be read.
    #[error("{field}: cannot read the folder {}: {source}", folder.display())]
    Unreadable {
        /// The job's field that names the folder.
        field: String,
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Nothing in it can be trained on.
    #[error(
        "{field}: the folder {} holds no images{}; jpg, jpeg, png and webp files are used",
        folder.display(), only_stray(stray)
    )]
    NoImages {
        /// The job's field that names the folder.
        field: String,
        /// The folder.
        folder: PathBuf,
        /// What is there instead.
        stray: Vec<String>,
    },
    /// Too many images.
    #[error("{field}: the folder {} holds {count} images; at most {MOST_FILES} are allowed", folder.display())]
    TooMany {
        /// The job's field that names the folder.
        field: String,
        /// The folder.
        folder: PathBuf,
        /// How many.
        count: usize,
    },
    /// One image is empty or too large.
    #[error("{field}: {} has {size} bytes; allowed: 1 to {LARGEST_IMAGE_FILE}", path.display())]
    Size {
        /// The job's field that names the folder.
        field: String,
        /// The image.
        path: PathBuf,
        /// Its bytes.
        size: u64,
    },
    /// A caption cannot be used.
    #[error("{field}: {source}")]
    Caption {
        /// The job's field that names the folder.
        field: String,
        /// Which, and why.
        source: CaptionFileError,
    },
    /// The images have changed since they were listed, or have names that cannot travel.
    #[error("{field}: {source}")]
    Manifest {
        /// The job's field that names the folder.
        field: String,
        /// Why.
        source: ManifestError,
    },
}

/// Why the images of a folder are not all at the coordinator.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// The folder cannot be used.
    #[error(transparent)]
    Folder(#[from] ImageFolderError),
    /// The coordinator did not take them in, or a file cannot be read.
    #[error(transparent)]
    Client(#[from] ClientError),
}

fn only_stray(stray: &[String]) -> String {
    if stray.is_empty() { " (it is empty)".to_owned() } else { format!(", only {}", names(stray)) }
}

/// The first of `names`, and how many more there are.
fn names(names: &[String]) -> String {
    let mut text = names.iter().take(STRAY_FILES_NAMED).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > STRAY_FILES_NAMED {
        text.push_str(&format!(" and {} more", names.len() - STRAY_FILES_NAMED));
    }
    text
}

/// The images of a folder, sorted by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageFolder {
    field: String,
    folder: PathBuf,
    images: Vec<String>,
    /// Of each image; empty where the job uses none.
    captions: Vec<Vec<String>>,
    /// Files that would be captions, where the job uses none.
    unused_captions: Vec<String>,
    stray: Vec<String>,
}

impl ImageFolder {
    /// Lists `folder`, which the job's `field` names. Everything that is not a jpg, jpeg, png or webp file, nor has their
    /// captions, is set aside as stray. `captions`: their column, where they are used.
    pub fn scan(field: &str, folder: &Path, captions: Option<&str>) -> Result<Self, ImageFolderError> {
        let field = field.to_owned();
        let unreadable =
            |source| ImageFolderError::Unreadable { field: field.clone(), folder: folder.to_owned(), source };
        let (mut images, mut stray) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(folder).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // Follows links: a link to a picture is a picture.
            match fs::metadata(&path).ok().filter(fs::Metadata::is_file) {
                Some(metadata) if is_image_name(&name) => match metadata.len() {
                    1..=LARGEST_IMAGE_FILE => images.push(name),
                    size => return Err(ImageFolderError::Size { field, path, size }),
                },
                found => stray.push(name_left_out(&name, found.is_none() && !path.exists())),
            }
        }
        images.sort();
        stray.sort();
        let folder = folder.to_owned();
        match images.len() {
            0 => return Err(ImageFolderError::NoImages { field, folder, stray }),
            count if count > MOST_FILES => return Err(ImageFolderError::TooMany { field, folder, count }),
            _ => {}
        }
        let names = caption_file_names(images.iter().map(String::as_str));
        let (beside, stray) = stray.into_iter().partition(|name| names.contains(name));
        let read = |column: &str| -> Result<Vec<_>, CaptionFileError> {
            let open = |name: &str| open_regular(&folder.join(name));
            let found = FolderCaptions::new(&folder, images.iter().map(String::as_str), column, &open)?;
            images.iter().map(|image| found.of(image)).collect()
        };
        let (read, unused_captions) =
            captions.map_or((Ok(Vec::new()), beside), |column| (read(column), Vec::new()));
        let captions = read.map_err(|source| ImageFolderError::Caption { field: field.clone(), source })?;
        Ok(Self { field, folder, images, captions, unused_captions, stray })
    }

    /// How many images there are: at least one.
    pub fn count(&self) -> usize {
        self.images.len()
    }

    /// What to tell the user about captions that are there and not used, or used and not there.
    pub fn captions_warning(&self) -> Option<String> {
        let folder = self.folder.display();
        if !self.unused_captions.is_empty() {
            let unused = names(&self.unused_captions);
            return Some(format!(
                "captions in {folder} ({unused}) are not used: no template has [caption] in it"
            ));
        }
        let without = self.images.iter().zip(&self.captions).filter(|(_, captions)| captions.is_empty());
        let missing: Vec<String> = without.map(|(image, _)| image.clone()).collect();
        (!missing.is_empty())
            .then(|| format!("in {folder}, {} without a caption: {}", missing.len(), names(&missing)))
    }

    /// What to tell the user about the files that are not images, if there are any.
    pub fn stray_files_warning(&self) -> Option<String> {
        if self.stray.is_empty() {
            return None;
        }
        let verb = if self.stray.len() == 1 { "is not an image" } else { "are not images" };
        Some(format!("{} in {} {verb} and will be skipped", names(&self.stray), self.folder.display()))
    }

    /// Uploads every image and then the manifest; returns the manifest's address.
    pub async fn upload(&self, client: &Client) -> Result<String, UploadError> {
        let mut files = Vec::with_capacity(self.images.len());
        for name in &self.images {
            let path = self.folder.join(name);
            let bytes = match tokio::fs::read(&path).await {
                Ok(bytes) => Bytes::from(bytes),
                Err(source) => return Err(ClientError::File { doing: "cannot read", path, source }.into()),
            };
            let (sha256, size) = (ContentHash::of(&bytes), bytes.len() as u64);
            client.upload(&Content { bytes, sha256, media_type: media_type(name) }).await?;
            files.push((sha256, size));
        }
        let bytes = self.manifest(files)?;
        let sha256 = ContentHash::of(&bytes);
        Ok(client.upload(&Content { bytes, sha256, media_type: "application/json" }).await?)
    }

    /// The hash of the manifest that an upload would make. Reads all images.
    pub fn hash(&self) -> Result<ContentHash, ImageFolderError> {
        let read = |name: &String| {
            let bytes = fs::read(self.folder.join(name))?;
            Ok((ContentHash::of(&bytes), bytes.len() as u64))
        };
        let files = self.images.iter().map(read).collect::<io::Result<Vec<_>>>();
        let unreadable = |source| ImageFolderError::Unreadable {
            field: self.field.clone(),
            folder: self.folder.clone(),
            source,
        };
        Ok(ContentHash::of(&self.manifest(files.map_err(unreadable)?)?))
    }

    /// Of images with these hashes and sizes.
    fn manifest(&self, files: Vec<(ContentHash, u64)>) -> Result<Bytes, ImageFolderError> {
        let captions = self.captions.iter().cloned().chain(std::iter::repeat(Vec::new()));
        let files = self.images.iter().zip(captions).zip(files);
        let files = files.map(|((name, captions), (sha256, size))| {
            ManifestFile::new(name.clone(), sha256, size, captions)
        });
        let manifest = Manifest::new(files.collect()).and_then(|manifest| manifest.to_json());
        let unusable = |source| ImageFolderError::Manifest { field: self.field.clone(), source };
        Ok(Bytes::from(manifest.map_err(unusable)?))
    }
}

fn media_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase()).as_deref() {
        Some("png") => "image/png",
        Some("webp") => "image/webp",
        _ => "image/jpeg",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder_of(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("temporary folder");
        for name in names {
            fs::write(folder.path().join(name), name).expect("written");
        }
        folder
    }

    #[test]
    fn images_are_sorted_and_stray_files_are_named() {
        let folder = folder_of(&["b.PNG", "a.jpeg", "notes.txt", "c.webp", "Thumbs.db", "._a.jpeg"]);
        std::os::unix::fs::symlink("nowhere.png", folder.path().join("gone.png")).expect("a link");
        fs::create_dir(folder.path().join("d.png")).expect("a folder that looks like a picture");
        let scanned = ImageFolder::scan("data.images", folder.path(), None).expect("scanned");
        assert_eq!(scanned.images, ["a.jpeg", "b.PNG", "c.webp"]);
        let [macos, gone] =
            ["._a.jpeg (what macOS keeps of a file, not the file)", "gone.png (a link that leads nowhere)"];
        assert_eq!(scanned.stray, [macos, "Thumbs.db", "d.png", gone, "notes.txt"]);
        assert!(scanned.stray_files_warning().is_some_and(|text| text.contains("notes.txt")));
    }

    #[test]
    fn captions_are_read_where_they_are_used_and_named_where_not() {
        let folder = folder_of(&["a.png", "a.txt", "b.jpg", "c.txt"]);
        let scan = |captions: bool| ImageFolder::scan("data.images", folder.path(), captions.then_some(""));
        let used = scan(true).expect("scanned");
        assert_eq!(used.captions, [vec!["a.txt".to_owned()], vec![]]);
        assert_eq!(used.stray, ["c.txt"]);
        assert!(
            used.captions_warning().is_some_and(|text| text.contains("b.jpg") && !text.contains("a.png"))
        );
        let unused = scan(false).expect("scanned");
        assert_eq!((unused.captions.len(), &unused.stray), (0, &used.stray));
        assert!(
            unused
                .captions_warning()
                .is_some_and(|text| text.contains("a.txt") && text.contains("[caption]"))
        );
        let listed = folder_of(&["a.png", "b.jpg"]);
        let lines = "{\"file_name\": \"b.jpg\", \"words\": [\"red\", \"a cat\"]}\n";
        fs::write(listed.path().join("metadata.jsonl"), lines).expect("written");
        let several = ImageFolder::scan("data.images", listed.path(), Some("words")).expect("scanned");
        assert_eq!((&several.captions[0], several.captions[1].len(), several.stray.len()), (&vec![], 2, 0));
        let missing = ImageFolder::scan("data.images", listed.path(), Some("text")).expect_err("no column");
        assert!(missing.to_string().starts_with("data.images: the caption file"), "{missing}");
        fs::write(folder.path().join("a.txt"), b"\xff").expect("written");
        assert!(scan(true).expect_err("no text").to_string().contains("a.txt"));
        assert!(scan(false).is_ok());
    }

    #[test]
    fn folders_without_images_are_refused() {
        let empty = folder_of(&[]);
        assert!(
            matches!(ImageFolder::scan("data.images", empty.path(), None), Err(ImageFolderError::NoImages { stray, .. }) if stray.is_empty())
        );
        let stray = folder_of(&["notes.txt", "x.gif"]);
        let error = ImageFolder::scan("data.images", stray.path(), None).expect_err("no images");
        assert!(error.to_string().contains("only notes.txt, x.gif"), "{error}");
        let missing =
            ImageFolder::scan("data.images", Path::new("/no/such/folder"), None).expect_err("missing");
        assert!(matches!(missing, ImageFolderError::Unreadable { .. }));
    }

    #[test]
    fn empty_and_huge_pictures_are_refused_by_name() {
        for size in [0, LARGEST_IMAGE_FILE + 1] {
            let folder = folder_of(&["a.png"]);
            let odd = fs::File::create(folder.path().join("odd.png")).expect("created");
            odd.set_len(size).expect("sparse");
            let error = ImageFolder::scan("data.images", folder.path(), None).expect_err("wrong size");
            assert!(error.to_string().contains("odd.png"), "{error}");
        }
    }

    #[test]
    fn long_lists_of_stray_files_are_cut() {
        let many: Vec<String> = (0..13).map(|index| format!("f{index}")).collect();
        assert!(names(&many).ends_with("f9 and 3 more"));
    }
}
