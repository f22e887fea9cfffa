//! What is in the folders of a job.

use std::{collections::BTreeMap, path::Path};

use ringtune_shared::ids::{CONTENT_URI_PREFIX, ContentHash};
use ringtune_tables::captions::{FolderCaptions, caption_file_names};
use serde::Serialize;

use super::problem::Problem;
use crate::{access::ConfinedPath, data::images};

/// Where a job has pictures.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// The job's field.
    pub(super) field: String,
    /// What stands there.
    pub(super) place: String,
    /// The column of the pictures' captions, where prompts hold these.
    pub(super) captions: Option<String>,
}

/// One folder, or what takes its place.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct FolderReport {
    /// The job's field.
    pub(super) field: String,
    /// The folder, or where else the pictures are.
    pub(super) source: String,
    /// At the coordinator: not looked at here.
    pub(super) uploaded: bool,
    /// Pictures that are trained on.
    pub(super) used: usize,
    /// What else lies there.
    pub(super) skipped: Vec<String>,
    /// Groups of files with the same bytes.
    pub(super) duplicates: Vec<Vec<String>>,
    /// Where the job uses captions.
    pub(super) captions: Option<CaptionReport>,
    /// Pictures that cannot be read.
    pub(super) broken: Vec<BrokenPicture>,
    /// Why the folder cannot be used.
    pub(super) unusable: Option<String>,
}

/// The captions of a folder.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct CaptionReport {
    /// Pictures that have one.
    pub(super) found: usize,
    /// Pictures whose caption file is not there, or empty.
    pub(super) missing: Vec<String>,
    /// Caption files that cannot be used, each named.
    pub(super) unusable: Vec<String>,
}

/// A picture that ends the job.
#[derive(Clone, Debug, Serialize)]
pub(super) struct BrokenPicture {
    /// The file's name.
    pub(super) name: String,
    /// What is wrong with it.
    pub(super) problem: String,
}

impl FolderReport {
    pub(super) fn problems(&self) -> impl Iterator<Item = Problem> {
        let of = |problem: &str| Problem { field: self.field.clone(), problem: problem.to_owned() };
        let broken = self.broken.iter().map(|broken| broken.problem.as_str());
        let captions = self.captions.iter().flat_map(|captions| &captions.unusable);
        let texts = self.unusable.iter().chain(captions).map(String::as_str);
        texts.chain(broken).map(of).collect::<Vec<_>>().into_iter()
    }
}

/// Looks at every picture of every source. Blocks.
pub(super) fn inspect(sources: &[Source]) -> Vec<FolderReport> {
    let report = |source: &Source| {
        let Source { field, place, captions } = source;
        let mut report =
            FolderReport { field: field.clone(), source: place.clone(), ..FolderReport::default() };
        if place.starts_with(CONTENT_URI_PREFIX) {
            report.uploaded = true;
        } else {
            look(Path::new(place.strip_prefix("file://").unwrap_or(place)), captions.as_deref(), &mut report);
        }
        report
    };
    sources.iter().map(report).collect()
}

fn look(folder: &Path, captions: Option<&str>, report: &mut FolderReport) {
    let set = match images::scan(&ConfinedPath::at(folder)) {
        Ok(set) => set,
        Err(error) => {
            report.unusable = Some(error.to_string());
            return;
        }
    };
    report.skipped = set.skipped;
    let mut same: BTreeMap<[u8; 32], Vec<String>> = BTreeMap::new();
    for file in &set.images {
        match file.read().and_then(|bytes| {
            same.entry(ContentHash::of(&bytes).0).or_default().push(file.name.clone());
            images::decode(&file.name, &bytes)
        }) {
            Ok(_) => report.used += 1,
            Err(error) => {
                report.broken.push(BrokenPicture { name: file.name.clone(), problem: error.to_string() });
            }
        }
    }
    report.duplicates = same.into_values().filter(|names| names.len() > 1).collect();
    report.duplicates.sort();
    if let Some(column) = captions {
        let names: Vec<&str> = set.images.iter().map(|file| file.name.as_str()).collect();
        report.captions = Some(look_at_captions(folder, &names, column));
        let used_files = caption_file_names(names.into_iter());
        report.skipped.retain(|name| !used_files.contains(name));
    }
}

fn look_at_captions(folder: &Path, pictures: &[&str], column: &str) -> CaptionReport {
    let mut report = CaptionReport::default();
    let open = |name: &str| ConfinedPath::at(folder).join(name).open();
    let captions = match FolderCaptions::new(folder, pictures.iter().copied(), column, &open) {
        Ok(captions) => captions,
        Err(error) => {
            report.unusable.push(error.to_string());
            return report;
        }
    };
    for &name in pictures {
        match captions.of(name) {
            Ok(found) if found.is_empty() => report.missing.push(name.to_owned()),
            Ok(_) => report.found += 1,
            Err(error) => report.unusable.push(error.to_string()),
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use image::RgbImage;

    use super::*;

    #[test]
    fn everything_about_a_folder_is_said_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let save = |name: &str, shade: u8| {
            let picture = RgbImage::from_pixel(4, 3, image::Rgb([shade; 3]));
            picture.save(folder.path().join(name)).unwrap();
        };
        save("a.png", 1);
        save("b.png", 2);
        save("c.png", 1);
        std::fs::write(folder.path().join("broken.jpg"), b"no picture").unwrap();
        std::fs::write(folder.path().join("cut.png"), b"\x89PNG\r\n\x1a\n").unwrap();
        std::fs::write(folder.path().join("notes.txt"), b"words").unwrap();
        let source = |path: &Path| Source {
            field: "data.images".to_owned(),
            place: path.to_str().unwrap().to_owned(),
            captions: None,
        };
        let uploaded = Source {
            field: "concepts[0].images".to_owned(),
            place: ContentHash::of(b"x").uri(),
            captions: None,
        };
        let nowhere = folder.path().join("nowhere");
        let reports = inspect(&[source(folder.path()), source(&nowhere), uploaded]);
        assert_eq!((reports[0].used, reports[0].skipped.as_slice()), (3, &["notes.txt".to_owned()][..]));
        assert_eq!(reports[0].duplicates, [["a.png", "c.png"]]);
        let broken: Vec<&str> = reports[0].broken.iter().map(|broken| broken.name.as_str()).collect();
        assert_eq!(broken, ["broken.jpg", "cut.png"]);
        assert_eq!(reports[0].problems().count(), 2);
        assert!(reports[1].problems().next().unwrap().problem.contains("nowhere"));
        assert!(reports[2].uploaded && reports[2].problems().next().is_none());
    }

    #[test]
    fn captions_are_counted_where_they_are_used() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.png", "b.png", "c.png", "d.png"] {
            RgbImage::new(2, 2).save(folder.path().join(name)).unwrap();
        }
        let texts: [(&str, &[u8]); 4] =
            [("a.txt", b"a cat"), ("b.txt", b" \n"), ("d.txt", &[0xff]), ("notes.txt", b"words")];
        for (name, text) in texts {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let place = folder.path().to_str().unwrap().to_owned();
        let of = |captions: Option<String>| {
            inspect(&[Source { field: "data.images".into(), place: place.clone(), captions }])
        };
        let used = &of(Some(String::new()))[0];
        let captions = used.captions.as_ref().unwrap();
        assert_eq!((captions.found, captions.missing.as_slice()), (1, &["b.png".into(), "c.png".into()][..]));
        assert!(used.problems().next().unwrap().problem.contains("d.txt"));
        assert_eq!(used.skipped, ["notes.txt"]);
        let unused = &of(None)[0];
        assert!(unused.captions.is_none() && unused.problems().next().is_none());
        assert_eq!(unused.skipped.len(), 4);
    }
}
