//! The image folder of a job: what is in it, and its manifest at the coordinator.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use ringtune_shared::ids::ContentHash;
use serde::Serialize;

use crate::client::{Client, Content};

/// The media type of each file extension that counts as an image.
const IMAGE_TYPES: [(&str, &str); 4] =
    [("jpg", "image/jpeg"), ("jpeg", "image/jpeg"), ("png", "image/png"), ("webp", "image/webp")];
/// More images than anyone wants for one concept.
const MOST_IMAGES: usize = 10_000;
/// Bytes of one image.
const LARGEST_IMAGE: u64 = 64 << 20;
/// Stray files that are named one by one.
const STRAY_FILES_NAMED: usize = 10;

/// An image folder that a job cannot use.
#[derive(Debug, thiserror::Error)]
pub enum ImageFolderError {
    /// It cannot be read.
    #[error("data.images: cannot read the folder {}: {source}", folder.display())]
    Unreadable {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Nothing in it can be trained on.
    #[error(
        "data.images: the folder {} holds no images{}; jpg, jpeg, png and webp files are used",
        folder.display(), only_stray(stray)
    )]
    NoImages {
        /// The folder.
        folder: PathBuf,
        /// What is there instead.
        stray: Vec<String>,
    },
    /// Too many images.
    #[error("data.images: the folder {} holds {count} images; at most {MOST_IMAGES} are allowed", folder.display())]
    TooMany {
        /// The folder.
        folder: PathBuf,
        /// How many.
        count: usize,
    },
    /// One image is too large.
    #[error("data.images: {} has {size} bytes; an image may have at most {LARGEST_IMAGE}", path.display())]
    TooLarge {
        /// The image.
        path: PathBuf,
        /// Its bytes.
        size: u64,
    },
    /// A name that cannot travel.
    #[error("data.images: the file name {} is not valid UTF-8; rename it", path.display())]
    Name {
        /// The image.
        path: PathBuf,
    },
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
    folder: PathBuf,
    images: Vec<Image>,
    stray: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Image {
    name: String,
    media_type: &'static str,
}

/// The file that stands for a folder of images: which file has which content.
#[derive(Debug, Serialize)]
struct Manifest {
    version: u32,
    files: Vec<ManifestFile>,
}

#[derive(Debug, Serialize)]
struct ManifestFile {
    name: String,
    sha256: String,
    size: u64,
}

impl ImageFolder {
    /// Lists `folder`. Everything that is not a jpg, jpeg, png or webp file is set aside as stray.
    pub fn scan(folder: &Path) -> Result<Self, ImageFolderError> {
        let unreadable = |source| ImageFolderError::Unreadable { folder: folder.to_owned(), source };
        let (mut images, mut stray) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(folder).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            let shown = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // Follows links: a link to a picture is a picture.
            let metadata = fs::metadata(&path).ok().filter(fs::Metadata::is_file);
            let (Some(metadata), Some(media_type)) = (metadata, media_type(&path)) else {
                stray.push(shown);
                continue;
            };
            if metadata.len() > LARGEST_IMAGE {
                return Err(ImageFolderError::TooLarge { path, size: metadata.len() });
            }
            let Some(name) = path.file_name().and_then(|name| name.to_str()).map(str::to_owned) else {
                return Err(ImageFolderError::Name { path });
            };
            images.push(Image { name, media_type });
        }
        images.sort_by(|left, right| left.name.cmp(&right.name));
        stray.sort();
        let folder = folder.to_owned();
        match images.len() {
            0 => Err(ImageFolderError::NoImages { folder, stray }),
            count if count > MOST_IMAGES => Err(ImageFolderError::TooMany { folder, count }),
            _ => Ok(Self { folder, images, stray }),
        }
    }

    /// How many images there are: at least one.
    pub fn count(&self) -> usize {
        self.images.len()
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
    ///
    /// `uploaded` is told how many images are there after each one.
    pub async fn upload(
        &self,
        client: &Client,
        mut uploaded: impl FnMut(usize),
    ) -> Result<String, crate::error::Error> {
        let mut files = Vec::with_capacity(self.images.len());
        for (index, image) in self.images.iter().enumerate() {
            let path = self.folder.join(&image.name);
            let bytes = match tokio::fs::read(&path).await {
                Ok(bytes) => Bytes::from(bytes),
                Err(source) => return Err(crate::error::Error::File { doing: "cannot read", path, source }),
            };
            files.push(ManifestFile {
                name: image.name.clone(),
                sha256: ContentHash::of(&bytes).to_string(),
                size: bytes.len() as u64,
            });
            client.upload(&Content { bytes, media_type: image.media_type }).await?;
            uploaded(index + 1);
        }
        let manifest = serde_json::to_vec(&Manifest { version: 1, files }).map_err(io::Error::from)?;
        Ok(client.upload(&Content { bytes: manifest.into(), media_type: "application/json" }).await?)
    }
}

fn media_type(path: &Path) -> Option<&'static str> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    IMAGE_TYPES.iter().find(|(known, _)| *known == extension).map(|(_, media_type)| *media_type)
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
        let folder = folder_of(&["b.PNG", "a.jpeg", "notes.txt", "c.webp", "Thumbs.db"]);
        fs::create_dir(folder.path().join("d.png")).expect("a folder that looks like a picture");
        let scanned = ImageFolder::scan(folder.path()).expect("scanned");
        let found: Vec<&str> = scanned.images.iter().map(|image| image.name.as_str()).collect();
        assert_eq!(found, ["a.jpeg", "b.PNG", "c.webp"]);
        assert_eq!(scanned.stray, ["Thumbs.db", "d.png", "notes.txt"]);
        assert!(scanned.stray_files_warning().is_some_and(|text| text.contains("notes.txt")));
    }

    #[test]
    fn folders_without_images_are_refused() {
        let empty = folder_of(&[]);
        assert!(
            matches!(ImageFolder::scan(empty.path()), Err(ImageFolderError::NoImages { stray, .. }) if stray.is_empty())
        );
        let stray = folder_of(&["notes.txt", "x.gif"]);
        let error = ImageFolder::scan(stray.path()).expect_err("no images");
        assert!(error.to_string().contains("only notes.txt, x.gif"), "{error}");
        let missing = ImageFolder::scan(Path::new("/no/such/folder")).expect_err("missing");
        assert!(matches!(missing, ImageFolderError::Unreadable { .. }));
    }

    #[test]
    fn a_picture_beyond_the_limit_is_refused_by_name() {
        let folder = folder_of(&["a.png"]);
        let large = fs::File::create(folder.path().join("big.png")).expect("created");
        large.set_len(LARGEST_IMAGE + 1).expect("sparse");
        let error = ImageFolder::scan(folder.path()).expect_err("too large");
        assert!(error.to_string().contains("big.png"), "{error}");
    }

    #[test]
    fn long_lists_of_stray_files_are_cut() {
        let many: Vec<String> = (0..13).map(|index| format!("f{index}")).collect();
        assert!(names(&many).ends_with("f9 and 3 more"));
    }
}
