//! The manifest of an uploaded image folder: which files it has, by name and content.
//!
//! The CLI uploads every image and then the manifest; a job's `data.images` is the manifest's
//! content URI; the workers fetch the manifest and then what it names. As JSON:
//! `{"version":1,"files":[{"name":"a.png","sha256":"…","size":123}]}`, files sorted by name; a file that has a
//! caption which the job uses has a fourth entry, `"caption":"…"`, or, with several, `"captions":["…","…"]`.

use serde::{Deserialize, Serialize};

use crate::captions::{CaptionError, MOST_CAPTIONS, check_caption};
use crate::files::{FileNameError, check_file_name};
pub use crate::files::{IMAGE_EXTENSIONS, is_image_name};
use crate::ids::{ContentHash, ContentHasher};

/// The only version there is.
pub const MANIFEST_VERSION: u32 = 1;
/// Files in a manifest.
pub const MOST_FILES: usize = 10_000;
/// Bytes of one image file.
pub const LARGEST_IMAGE_FILE: u64 = 64 << 20;
/// Bytes of all captions of a manifest together.
pub const MOST_CAPTION_BYTES: usize = 8 << 20;
/// Bytes of a manifest itself: all files with the longest names fit, and all captions, whose quotation marks and
/// backslashes take two bytes each, and three more for each of several.
pub const LARGEST_MANIFEST: usize = (8 << 20) + 2 * MOST_CAPTION_BYTES;

/// The files of an image folder, sorted by name; what it holds has been checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Manifest {
    version: u32,
    files: Vec<ManifestFile>,
}

/// One image file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestFile {
    /// A plain file name ending in one of [`IMAGE_EXTENSIONS`].
    pub name: String,
    /// The hash of its content.
    pub sha256: ContentHash,
    /// Bytes, at least 1 and at most [`LARGEST_IMAGE_FILE`].
    pub size: u64,
    /// Its caption (see [`crate::captions`]); None: it has none, or the job uses none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    caption: Option<String>,
    /// Instead: at least two of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    captions: Vec<String>,
}

impl ManifestFile {
    /// A file with these captions.
    pub fn new(name: String, sha256: ContentHash, size: u64, mut captions: Vec<String>) -> Self {
        let caption = if captions.len() == 1 { captions.pop() } else { None };
        Self { name, sha256, size, caption, captions }
    }

    /// Its captions: none where it has none, or the job uses none.
    pub fn captions(&self) -> impl Iterator<Item = &String> {
        self.caption.iter().chain(&self.captions)
    }
}

/// The hash of the manifest that files have, or would have if it could name so many: equal pictures with equal names and captions
/// have equal hashes, wherever they lie. `files`: in their order, which in a manifest is that of the names.
///
/// # Errors
/// [`ManifestError::Form`]: one cannot be written.
pub fn hash_of(files: impl Iterator<Item = ManifestFile>) -> Result<ContentHash, ManifestError> {
    let mut hasher = ContentHasher::new();
    hasher.update(format!("{{\"version\":{MANIFEST_VERSION},\"files\":[").as_bytes());
    for (number, file) in files.enumerate() {
        let json = serde_json::to_vec(&file).map_err(|error| ManifestError::Form(error.to_string()))?;
        hasher.update(if number == 0 { b"" } else { b"," });
        hasher.update(&json);
    }
    hasher.update(b"]}");
    Ok(hasher.finish())
}

/// A manifest that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// It is larger than [`LARGEST_MANIFEST`].
    #[error("the image manifest has {0} bytes; allowed: at most {LARGEST_MANIFEST}")]
    TooLarge(usize),
    /// It is not JSON of the right form.
    #[error("not an image manifest: {0}")]
    Form(String),
    /// It is from another time.
    #[error("the image manifest has version {0}; supported: {MANIFEST_VERSION}")]
    Version(u32),
    /// It names no file, or too many.
    #[error("the image manifest names {0} files; allowed: 1 to {MOST_FILES}")]
    FileCount(usize),
    /// A name is not a plain file name.
    #[error("image manifest: {0}")]
    FileName(#[from] FileNameError),
    /// A file is not an image by its name.
    #[error("image manifest: {0:?} does not have an image's name; allowed: .jpeg, .jpg, .png, .webp")]
    NotAnImage(String),
    /// A file is empty or too large.
    #[error("image manifest: {name:?} has {size} bytes; allowed: 1 to {LARGEST_IMAGE_FILE}")]
    FileSize {
        /// The file.
        name: String,
        /// Its size in bytes.
        size: u64,
    },
    /// A caption is not as it should be.
    #[error("image manifest: the caption of {name:?}: {source}")]
    Caption {
        /// The file.
        name: String,
        /// Why.
        source: CaptionError,
    },
    /// There is a list of captions where there is one or none.
    #[error("image manifest: {0:?} has a list of captions, and one beside it or no other in it")]
    CaptionList(String),
    /// The captions are too long together.
    #[error("the image manifest has {0} bytes of captions; allowed: at most {MOST_CAPTION_BYTES}")]
    CaptionBytes(usize),
    /// The names are not in order, or one is there twice.
    #[error("image manifest: {0:?} comes twice or is not in order")]
    Order(String),
}

impl Manifest {
    /// A manifest of these files, in any order.
    pub fn new(mut files: Vec<ManifestFile>) -> Result<Self, ManifestError> {
        files.sort_by(|one, other| one.name.cmp(&other.name));
        Self::checked(files)
    }

    /// Reads what [`Manifest::to_json`] writes; nothing in it is trusted.
    pub fn parse(json: &[u8]) -> Result<Self, ManifestError> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Whole {
            #[serde(rename = "version")]
            _version: u32,
            files: Vec<ManifestFile>,
        }
        if json.len() > LARGEST_MANIFEST {
            return Err(ManifestError::TooLarge(json.len()));
        }
        let form = |error: serde_json::Error| ManifestError::Form(error.to_string());
        // First the version alone: another one may have another form.
        let Version { version } = serde_json::from_slice(json).map_err(form)?;
        if version != MANIFEST_VERSION {
            return Err(ManifestError::Version(version));
        }
        let Whole { files, .. } = serde_json::from_slice(json).map_err(form)?;
        Self::checked(files)
    }

    /// The files, sorted by name.
    pub fn files(&self) -> &[ManifestFile] {
        &self.files
    }

    /// Its bytes: equal folders give equal bytes.
    pub fn to_json(&self) -> Result<Vec<u8>, ManifestError> {
        serde_json::to_vec(self).map_err(|error| ManifestError::Form(error.to_string()))
    }

    fn checked(files: Vec<ManifestFile>) -> Result<Self, ManifestError> {
        if files.is_empty() || files.len() > MOST_FILES {
            return Err(ManifestError::FileCount(files.len()));
        }
        for file in &files {
            check_file_name(&file.name)?;
            if !is_image_name(&file.name) {
                return Err(ManifestError::NotAnImage(file.name.clone()));
            }
            if file.size == 0 || file.size > LARGEST_IMAGE_FILE {
                return Err(ManifestError::FileSize { name: file.name.clone(), size: file.size });
            }
            if file.captions.len() == 1 || file.caption.is_some() && !file.captions.is_empty() {
                return Err(ManifestError::CaptionList(file.name.clone()));
            }
            let many =
                (file.captions.len() > MOST_CAPTIONS).then_some(CaptionError::TooMany(file.captions.len()));
            let wrong = file.captions().find_map(|caption| check_caption(caption).err());
            if let Some(source) = many.or(wrong) {
                return Err(ManifestError::Caption { name: file.name.clone(), source });
            }
        }
        let caption_bytes = files.iter().flat_map(ManifestFile::captions).map(String::len).sum();
        if caption_bytes > MOST_CAPTION_BYTES {
            return Err(ManifestError::CaptionBytes(caption_bytes));
        }
        if let Some(pair) = files.windows(2).find(|pair| pair[0].name >= pair[1].name) {
            return Err(ManifestError::Order(pair[1].name.clone()));
        }
        Ok(Self { version: MANIFEST_VERSION, files })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(name: &str) -> ManifestFile {
        captioned(name, &[])
    }

    fn captioned(name: &str, captions: &[&str]) -> ManifestFile {
        let captions = captions.iter().map(|&caption| caption.to_owned()).collect();
        ManifestFile::new(name.into(), ContentHash::of(name.as_bytes()), 3, captions)
    }

    #[test]
    fn captions_are_kept_and_checked() {
        let manifest = Manifest::new(vec![captioned("a.png", &["a \"red\" cat"]), file("b.png")]).unwrap();
        let json = manifest.to_json().unwrap();
        assert_eq!(Manifest::parse(&json).unwrap(), manifest);
        assert_eq!(String::from_utf8_lossy(&json).matches("caption").count(), 1);
        let wrong = Manifest::new(vec![captioned("a.png", &["two\nlines"])]);
        assert!(matches!(wrong, Err(ManifestError::Caption { name, .. }) if name == "a.png"));
    }

    #[test]
    fn only_several_captions_are_a_list() {
        let manifest = Manifest::new(vec![captioned("a.png", &["red", "a cat"]), file("b.png")]).unwrap();
        let json = String::from_utf8(manifest.to_json().unwrap()).unwrap();
        assert!(json.contains(r#","captions":["red","a cat"]}"#) && !json.contains("\"caption\""), "{json}");
        assert_eq!(Manifest::parse(json.as_bytes()).unwrap(), manifest);
        assert!(manifest.files()[0].captions().eq(["red", "a cat"]));
        for list in [r#""captions":["red"]"#, r#""caption":"a","captions":["red","a cat"]"#] {
            let json = json.replace(r#""captions":["red","a cat"]"#, list);
            assert_eq!(Manifest::parse(json.as_bytes()), Err(ManifestError::CaptionList("a.png".into())));
        }
        for wrong in [vec!["a"; MOST_CAPTIONS + 1], vec!["a", ""]] {
            let wrong = Manifest::new(vec![captioned("a.png", &wrong)]);
            assert!(matches!(wrong, Err(ManifestError::Caption { .. })), "{wrong:?}");
        }
    }

    #[test]
    fn the_longest_captions_fit_a_manifest() {
        let caption = "\"".repeat(crate::captions::LONGEST_CAPTION);
        let fitting = MOST_CAPTION_BYTES / caption.len();
        let files = |count| {
            (0..count).map(|index| captioned(&format!("{index:0>251}.png"), &[caption.as_str()])).collect()
        };
        let json = Manifest::new(files(fitting)).unwrap().to_json().unwrap();
        assert!(json.len() + MOST_FILES * 400 <= LARGEST_MANIFEST, "{}", json.len());
        assert!(matches!(Manifest::new(files(fitting + 1)), Err(ManifestError::CaptionBytes(_))));
    }

    #[test]
    fn a_manifest_is_read_back_and_its_bytes_do_not_depend_on_the_order() {
        let one = Manifest::new(vec![file("b.PNG"), file("a.jpeg")]).unwrap();
        let other = Manifest::new(vec![file("a.jpeg"), file("b.PNG")]).unwrap();
        let json = one.to_json().unwrap();
        assert_eq!(json, other.to_json().unwrap());
        assert_eq!(Manifest::parse(&json).unwrap(), one);
        assert_eq!(hash_of(one.files().iter().cloned()).unwrap(), ContentHash::of(&json));
        let hash = ContentHash::of(b"a.jpeg");
        let begin = format!(r#"{{"version":1,"files":[{{"name":"a.jpeg","sha256":"{hash}","size":3}}"#);
        assert!(json.starts_with(begin.as_bytes()), "{}", String::from_utf8_lossy(&json));
    }

    #[test]
    fn wrong_manifests_are_refused() {
        assert_eq!(Manifest::new(Vec::new()), Err(ManifestError::FileCount(0)));
        assert_eq!(
            Manifest::new((0..=MOST_FILES).map(|index| file(&format!("{index}.png"))).collect()),
            Err(ManifestError::FileCount(MOST_FILES + 1))
        );
        assert_eq!(
            Manifest::new(vec![file("a.png"), file("a.png")]),
            Err(ManifestError::Order("a.png".into()))
        );
        assert!(matches!(Manifest::new(vec![file("../a.png")]), Err(ManifestError::FileName(_))));
        assert_eq!(Manifest::new(vec![file("a.gif")]), Err(ManifestError::NotAnImage("a.gif".into())));
        for size in [0, LARGEST_IMAGE_FILE + 1] {
            let files = vec![ManifestFile { size, ..file("a.png") }];
            assert_eq!(Manifest::new(files), Err(ManifestError::FileSize { name: "a.png".into(), size }));
        }
    }

    #[test]
    fn wrong_json_is_refused() {
        let hash = ContentHash::of(b"x");
        let entry = |name: &str| format!(r#"{{"name":"{name}","sha256":"{hash}","size":1}}"#);
        let whole = |files: &str| format!(r#"{{"version":1,"files":[{files}]}}"#);
        let parse = |json: &str| Manifest::parse(json.as_bytes());
        assert!(parse(&whole(&entry("a.png"))).is_ok());
        let unordered = whole(&format!("{},{}", entry("b.png"), entry("a.png")));
        assert_eq!(parse(&unordered), Err(ManifestError::Order("a.png".into())));
        assert_eq!(parse(r#"{"version":2,"other":0}"#), Err(ManifestError::Version(2)));
        for wrong in [
            "",
            "[]",
            "{}",
            r#"{"version":1}"#,
            &whole(&entry("a.png")).replace("\"size\":1", "\"size\":-1"),
            &whole(&entry("a.png")).replace("\"size\":1", "\"size\":1,\"more\":1"),
            &whole(&entry("a.png")).replace("}]}", "}],\"more\":1}"),
            &whole(&entry("a.png")).replace(&hash.to_string(), &hash.to_string().to_uppercase()),
        ] {
            assert!(matches!(parse(wrong), Err(ManifestError::Form(_))), "{wrong}");
        }
        let large = vec![b' '; LARGEST_MANIFEST + 1];
        assert_eq!(Manifest::parse(&large), Err(ManifestError::TooLarge(large.len())));
    }

    #[test]
    fn the_largest_allowed_folder_fits_a_manifest() {
        let files = (0..MOST_FILES).map(|index| file(&format!("{index:0>251}.png"))).collect();
        let json = Manifest::new(files).unwrap().to_json().unwrap();
        assert!(json.len() <= LARGEST_MANIFEST, "{}", json.len());
    }

    #[test]
    fn images_are_known_by_their_ending() {
        assert!(["a.png", "a.b.JPG", "é.webp", "a.JpEg"].into_iter().all(is_image_name));
        assert!(!["png", ".png", "a.gif", "a.png.txt", "a.", "", "._a.png"].into_iter().any(is_image_name));
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_and_never_a_panic(bytes in any::<Vec<u8>>()) {
            prop_assert!(Manifest::parse(&bytes).is_err());
        }
    }
}
