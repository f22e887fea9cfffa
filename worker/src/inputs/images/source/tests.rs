//! The same pictures as a folder, a tar shard and a .parquet file.

use std::{fs, io::Cursor, os::unix::fs::symlink, path::Path, sync::Arc};

use image::{ImageFormat, Rgb, RgbImage};
use parquet::{
    data_type::{ByteArray, ByteArrayType},
    file::{properties::WriterProperties, writer::SerializedFileWriter},
    schema::parser::parse_message_type,
};
use ringtune_shared::{
    ids::{ContentHash, Epoch, JobId},
    manifest::Manifest,
};
use ringtune_sources::{CacheOptions, Environment, ModelSources, Patience};
use tempfile::TempDir;
use tokio::sync::mpsc;

use super::*;
use crate::{
    access::{AccessSettings, Rules},
    fault::{Blame as _, Fault},
    session::RankKey,
};

const COUNT: usize = 5;

fn picture(number: usize) -> Vec<u8> {
    let picture = RgbImage::from_pixel(8, 6, Rgb([number as u8; 3]));
    let mut bytes = Cursor::new(Vec::new());
    picture.write_to(&mut bytes, ImageFormat::Png).unwrap();
    bytes.into_inner()
}

/// Pictures with captions: names, and bytes.
fn files() -> Vec<(String, Vec<u8>)> {
    let of = |number: usize| {
        [
            (format!("{number}.png"), picture(number)),
            (format!("{number}.txt"), format!("toy {number}").into_bytes()),
        ]
    };
    (0..COUNT).flat_map(of).collect()
}

fn tar(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        archive.append_data(&mut header, name, bytes.as_slice()).unwrap();
    }
    archive.into_inner().unwrap()
}

/// As Hugging Face's datasets write them, with paths where no picture is given.
fn parquet(pictures: &[Option<Vec<u8>>]) -> Vec<u8> {
    let schema = "message rows { optional group image { optional binary bytes; optional binary path (UTF8); } \
        optional binary text (UTF8); }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties =
        WriterProperties::builder().set_data_page_row_count_limit(2).set_write_batch_size(1).build();
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::new(properties)).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let text = |number: usize| ByteArray::from(format!("toy {number}").into_bytes());
    let columns = [
        (
            pictures.iter().flatten().map(|bytes| ByteArray::from(bytes.clone())).collect::<Vec<_>>(),
            pictures.iter().map(|bytes| if bytes.is_some() { 2 } else { 1 }).collect::<Vec<i16>>(),
        ),
        (Vec::new(), vec![1; pictures.len()]),
        ((0..pictures.len()).map(text).collect(), vec![1; pictures.len()]),
    ];
    for (values, levels) in columns {
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
    bytes
}

struct Worker {
    folder: TempDir,
    access: Access,
}

impl Worker {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let access = Access::new(Rules::everything(), "", folder.path().join("views"));
        Self { folder, access }
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    async fn bring(&self, place: &str) -> Result<(Pictures, Vec<String>), Error> {
        let place = match place.contains("://") {
            true => place.to_owned(),
            false => self.folder.path().join(place).display().to_string(),
        };
        let cache = CacheOptions { folder: self.folder.path().join("cache"), most_bytes: 1 << 20 };
        let sources = ModelSources::new(Environment::default(), cache, Patience::default());
        let (events, mut said) = mpsc::channel(64);
        let journal = Journal::new(RankKey { job: JobId::new(), epoch: Epoch::FIRST }, Some(0), events);
        let source = Source { field: "data.source", place: &place, captions: Some("") };
        let brought = source.bring(&self.access, &sources, &journal).await;
        drop(journal);
        let mut warnings = Vec::new();
        while let Ok((_, event)) = said.try_recv() {
            if let RankEvent::Log(crate::session::Level::Warn, text) = event {
                warnings.push(text);
            }
        }
        brought.map(|pictures| (pictures, warnings)).map_err(|error| error.in_field("data.source"))
    }

    async fn refused(&self, place: &str) -> String {
        let error = self.bring(place).await.map(|_| ()).unwrap_err();
        assert_eq!(error.fault(), Fault::Job, "{error}");
        let text = error.to_string();
        assert!(text.starts_with("data.source: "), "{text}");
        text
    }
}

fn names(pictures: &Pictures) -> Vec<&str> {
    pictures.files.iter().map(|image| image.file.name.as_str()).collect()
}

#[tokio::test]
async fn the_same_pictures_are_found_in_every_form() {
    let worker = Worker::new();
    for (name, bytes) in files() {
        worker.write(&format!("folder/{name}"), &bytes);
    }
    // In another order: a tar file's is not that of its names.
    let backwards: Vec<_> = files().into_iter().rev().collect();
    worker.write("one/toys.tar", &tar(&backwards));
    worker.write("two/a/1.tar", &tar(&files()[4..]));
    worker.write("two/0.tar", &tar(&files()[..4]));
    let pictures: Vec<_> = (0..COUNT).map(|number| Some(picture(number))).collect();
    worker.write("tables/data/train-0.parquet", &parquet(&pictures));
    worker.write("tables/data/test-0.parquet", b"held back");
    let (folder, warnings) = worker.bring("folder").await.unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    for place in ["folder", "one", "one/toys.tar", "two", "tables", "tables/data/train-0.parquet"] {
        let (found, warnings) = worker.bring(place).await.unwrap();
        assert_eq!((found.captions.len(), found.repeats.len()), (COUNT, COUNT));
        let captions: Vec<String> = (0..COUNT).map(|number| format!("toy {number}")).collect();
        assert_eq!(found.captions.concat(), captions, "{place}");
        let hashes: Vec<ContentHash> = (0..COUNT).map(|number| ContentHash::of(&picture(number))).collect();
        assert!(found.files.iter().map(|image| image.sha256).eq(hashes), "{place}");
        // Any of them is read when it is wanted.
        for number in [3, 0, 4] {
            assert_eq!(found.files[number].read().unwrap(), picture(number), "{place}");
        }
        let is_one = place.starts_with("folder") || place.starts_with("one");
        assert_eq!(found.hash == folder.hash, is_one, "{place}");
        assert_eq!(warnings.len(), usize::from(place == "tables"), "{warnings:?}");
    }
    assert_eq!(names(&worker.bring("two").await.unwrap().0)[1..3], ["0.tar/1.png", "a/1.tar/2.png"]);
    let (tables, warnings) = worker.bring("tables").await.unwrap();
    assert_eq!(names(&tables)[4], "data/train-0.parquet row 5");
    assert!(warnings[0].contains("data/test-0.parquet"), "{warnings:?}");
    // What a folder's manifest says, wherever the pictures lie.
    let entry = |(image, captions): (&data::ListedImage, &Vec<String>)| {
        let size = image.read().unwrap().len() as u64;
        ringtune_shared::manifest::ManifestFile::new(
            image.file.name.clone(),
            image.sha256,
            size,
            captions.clone(),
        )
    };
    let manifest = Manifest::new(folder.files.iter().zip(&folder.captions).map(entry).collect()).unwrap();
    assert_eq!(ContentHash::of(&manifest.to_json().unwrap()), folder.hash);
}

#[tokio::test]
async fn a_difference_in_any_byte_or_word_is_another_source() {
    let worker = Worker::new();
    let mut hashes = Vec::new();
    for change in 0..4 {
        let mut files = files();
        match change {
            1 => files[2].1 = picture(7),
            2 => files[3].1 = b"another toy".to_vec(),
            3 => drop(files.pop()),
            _ => {}
        }
        worker.write(&format!("{change}/a.tar"), &tar(&files));
        hashes.push(worker.bring(&change.to_string()).await.unwrap().0.hash);
    }
    assert!((1..4).all(|change| !hashes[..change].contains(&hashes[change])), "{hashes:?}");
}

#[tokio::test]
async fn what_is_wrong_is_named_by_field_and_file() {
    let worker = Worker::new();
    let whole = tar(&files());
    worker.write("cut/a.tar", &whole[..whole.len() / 2]);
    worker.write("twice/a.tar", &tar(&[files(), files()].concat()));
    let encoded: Vec<_> = files().into_iter().chain([("6.txt".to_owned(), b"\xe9".to_vec())]).collect();
    worker.write("encoding/a.tar", &tar(&encoded));
    worker.write("words/a.tar", &tar(&[("a.txt".to_owned(), b"words".to_vec())]));
    worker.write("without/a.parquet", &parquet(&[Some(picture(0)), None]));
    worker.write("broken/a.parquet", b"PAR1 is not whole");
    worker.write("both/a.tar", &whole);
    worker.write("both/a.png", &picture(0));
    worker.write("text/a.md", b"words");
    for (place, said) in [
        ("cut", &["cut/a.tar: ", "cut short"][..]),
        ("twice", &["twice/a.tar: 0.png: the tar file has two members of this name"]),
        ("encoding", &["encoding/a.tar: 6.txt: it is not UTF-8"]),
        ("words", &["words has no picture in its files"]),
        ("without", &["without/a.parquet: row 2: has no bytes of a picture"]),
        ("broken", &["broken/a.parquet: does not end as a .parquet file does"]),
        ("both", &["both has pictures (a.png) and .tar files (a.tar)"]),
        ("both/a.png", &["is a single picture"]),
        ("text", &["text has no pictures in it; it has a.md"]),
        ("hf://toys", &["allowed: hf://datasets/ORG/NAME"]),
    ] {
        let refused = worker.refused(place).await;
        assert!(said.iter().all(|part| refused.contains(part)), "{place}: {refused}");
    }
    // Nothing there is the machine's fault: another may have it.
    assert_eq!(worker.bring("nowhere").await.map(|_| ()).unwrap_err().fault(), Fault::Machine);
}

#[tokio::test]
async fn a_picture_that_changed_since_it_was_listed_is_not_read() {
    let worker = Worker::new();
    for (name, bytes) in
        [("a.tar", tar(&files())), ("b.parquet", parquet(&[Some(picture(0)), Some(picture(1))]))]
    {
        worker.write(name, &bytes);
        let (found, _) = worker.bring(name).await.unwrap();
        let path = worker.folder.path().join(name);
        let wanted = picture(1);
        let place = bytes.windows(wanted.len()).position(|window| window == wanted).unwrap();
        let mut changed = bytes.clone();
        changed[place + wanted.len() - 20] ^= 1;
        fs::write(&path, &changed).unwrap();
        let refused = found.files[1].read().unwrap_err().to_string();
        assert!(refused.contains("has changed since the job began"), "{name}: {refused}");
        fs::write(&path, &bytes[..40]).unwrap();
        assert!(found.files[1].read().is_err());
    }
}

#[tokio::test]
async fn a_source_stays_within_reach() {
    let mut worker = Worker::new();
    worker.write("inside/a.tar", &tar(&files()));
    worker.write("outside/a.tar", &tar(&files()));
    let root = worker.folder.path().canonicalize().unwrap();
    symlink(root.join("outside/a.tar"), root.join("inside/b.tar")).unwrap();
    let settings = AccessSettings {
        data_roots: vec![root.join("inside").display().to_string()],
        hubs: Vec::new(),
        buckets: Vec::new(),
        ..AccessSettings::default()
    };
    worker.access =
        Access::new(settings.rules(true, Path::new("/c")), "https://huggingface.co", root.join("views"));
    let inside = root.join("inside/a.tar").display().to_string();
    let refused = async |place: &str| worker.bring(place).await.map(|_| ()).unwrap_err();
    assert!(worker.bring(&inside).await.is_ok());
    let link = refused("inside").await.to_string();
    assert!(link.contains("b.tar") && link.contains("leads out of"), "{link}");
    for (place, setting) in [
        ("outside", "access.data_roots"),
        ("hf://datasets/acme/toys", "access.hubs"),
        ("s3://sets/toys", "access.buckets"),
    ] {
        let refused = refused(place).await;
        assert_eq!(refused.fault(), Fault::Access, "{refused}");
        assert!(refused.to_string().contains(setting), "{refused}");
    }
}
