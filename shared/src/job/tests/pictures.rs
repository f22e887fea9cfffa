//! Folders, and what is made of captions.

use super::*;
use crate::ids::ContentHash;

const FOLDERS: &str = "folders = [{ images = \"./a\", repeats = 2 }, { images = \"/b\" }]";

fn of_folders(line: &str) -> String {
    SMALLEST.replace("images = \"./pictures\"", line)
}

#[test]
fn several_folders_are_read_and_written_and_made_absolute() {
    let mut spec = parse_job_toml(&of_folders(FOLDERS)).unwrap();
    let folder = |images: &str, repeats| FolderSpec {
        images: images.to_owned(),
        repeats,
        caption_column: String::new(),
    };
    assert_eq!(spec.textual_inversion().unwrap().data.folders, [folder("./a", 2), folder("/b", 1)]);
    let repeats: Vec<u32> = spec.image_uses().iter().map(|used| used.repeats).collect();
    assert_eq!((spec.textual_inversion().unwrap().data.images.as_str(), repeats), ("", vec![2, 1]));
    assert_eq!(parse_job_toml(&spec.to_toml().unwrap()).unwrap(), spec);
    assert_eq!(JobSpec::from_stored(STORED_VERSION, &spec.to_stored().unwrap()).unwrap(), spec);
    let relative = spec.check_paths().unwrap_err();
    assert_eq!(relative.violations[0].field, "data.folders[0].images");
    spec.resolve_paths(Path::new("/jobs")).unwrap();
    assert_eq!(spec.textual_inversion().unwrap().data.folders[0].images, "/jobs/a");
    let fields: Vec<String> = spec.image_sources().into_iter().map(|(field, _)| field).collect();
    assert_eq!(fields, ["data.folders[0].images", "data.folders[1].images"]);
    assert_eq!(spec.textual_inversion().unwrap().concept_field(0, "folders[1].images"), fields[1]);
}

#[test]
fn a_folder_has_the_column_of_captions_that_stands_nearest() {
    let columns = |toml: &str| {
        let spec = parse_job_toml(toml).unwrap();
        assert_eq!(parse_job_toml(&spec.to_toml().unwrap()).unwrap(), spec);
        spec.image_uses().into_iter().map(|used| used.captions.unwrap()).collect::<Vec<_>>()
    };
    let captioned = |data: &str| of_folders(data) + "templates = [\"[name] [caption]\"]\n";
    assert_eq!(columns(&captioned("images = \"./a\"")), [""]);
    assert_eq!(columns(&captioned("images = \"./a\"\ncaption_column = \"words\"")), ["words"]);
    let own = FOLDERS.replace("repeats = 2", "caption_column = \"prompt\"");
    assert_eq!(columns(&captioned(&format!("{own}\ncaption_column = \"words\""))), ["prompt", "words"]);
    assert!(!parse_job_toml(&of_folders(FOLDERS)).unwrap().to_toml().unwrap().contains("caption_column"));
    let long = format!("images = \"./a\"\ncaption_column = \"{}\"", "x".repeat(257));
    assert_eq!(violation(&of_folders(&long)).field, "data.caption_column");
}

#[test]
fn folders_that_cannot_be_are_refused_by_their_fields() {
    for (line, field) in [
        ("folders = []", "data.folders"),
        ("folders = \"a\"", "data.folders"),
        ("folders = [\"a\"]", "data.folders[0]"),
        ("folders = [{ images = \"a\", repeats = 0 }]", "data.folders[0].repeats"),
        ("folders = [{ images = \"a\" }, { images = \"b\", repeats = 1001 }]", "data.folders[1].repeats"),
        ("folders = [{ images = \"a\", repeat = 2 }]", "data.folders[0].repeat"),
        ("folders = [{ images = \"a\" }, { repeats = 2 }]", "data.folders[1].images"),
        ("images = \"a\"\nfolders = [{ images = \"a\" }]", "data.images"),
    ] {
        let error = parse_job_toml(&of_folders(line)).unwrap_err();
        assert!(error.violations.iter().any(|violation| violation.field == field), "{line}: {error}");
    }
    let many = format!("folders = [{}]", "{ images = \"a\" },".repeat(65));
    assert_eq!(violation(&of_folders(&many)).field, "data.folders");
}

#[test]
fn options_about_captions_need_a_template_with_captions() {
    let options = "caption_dropout = 0.1\nshuffle_tags = true\nkeep_tags = 1";
    let train = train(&format!("templates = [\"[name], [filewords]\"]\n{options}"));
    assert_eq!((train.caption_dropout, train.shuffle_tags, train.keep_tags), (0.1, true, 1));
    for (line, field) in [
        ("caption_dropout = 0.1", "train.caption_dropout"),
        ("shuffle_tags = true", "train.shuffle_tags"),
        ("keep_tags = 1", "train.keep_tags"),
        ("templates = [\"[caption]\"]\ncaption_dropout = 0.1", "train.caption_dropout"),
        ("templates = [\"[name] [caption]\"]\ncaption_dropout = 1.1", "train.caption_dropout"),
        ("templates = [\"[name] [caption]\"]\nkeep_tags = -1", "train.keep_tags"),
    ] {
        assert_eq!(violation(&with("train", line)).field, field, "{line}");
    }
}

#[test]
fn buckets_need_a_size_that_fits() {
    let train = train("enable_bucket = true");
    assert_eq!((train.min_bucket_reso, train.max_bucket_reso, train.bucket_reso_steps), (256, 1024, 64));
    for (lines, field) in [
        ("min_bucket_reso = 513", "train.min_bucket_reso"),
        ("max_bucket_reso = 511", "train.max_bucket_reso"),
        ("bucket_reso_steps = 513", "train.bucket_reso_steps"),
        ("bucket_reso_steps = 0", "train.bucket_reso_steps"),
        ("center_crop = true", "train.center_crop"),
    ] {
        assert_eq!(violation(&with("train", &format!("enable_bucket = true\n{lines}"))).field, field);
    }
    assert!(parse_job_toml(&with("train", "min_bucket_reso = 513\ncenter_crop = true")).is_ok());
    let small = "enable_bucket = true\nbucket_no_upscale = true\nresolution = 128";
    assert!(parse_job_toml(&with("train", small)).is_ok());
}

#[test]
fn a_source_stands_in_the_place_of_folders() {
    let steps = |line: &str| of_folders(line) + "max_train_steps = 5\n";
    let mut spec = parse_job_toml(&steps("source = \"./set\"\ncaption_column = \"words\"")).unwrap();
    assert_eq!(parse_job_toml(&spec.to_toml().unwrap()).unwrap(), spec);
    assert_eq!(JobSpec::from_stored(STORED_VERSION, &spec.to_stored().unwrap()).unwrap(), spec);
    assert_eq!(spec.check_paths().unwrap_err().violations[0].field, "data.source");
    spec.resolve_paths(Path::new("/jobs")).unwrap();
    let used: Vec<PathUse> = spec.paths().into_iter().map(|path| path.used).collect();
    assert_eq!(used, [PathUse::Model, PathUse::Pictures]);
    assert_eq!(spec.locations()[1], ("data.source", ModelLocation::Local("/jobs/set".into())));
    // Nothing of it is uploaded.
    assert!(spec.image_sources().is_empty() && spec.image_uses().is_empty());
    let elsewhere = parse_job_toml(&steps("source = \"hf://datasets/acme/toys@v1\"")).unwrap();
    assert_eq!((elsewhere.check_paths(), elsewhere.paths().len()), (Ok(()), 1));
    assert!(matches!(&elsewhere.locations()[1].1, ModelLocation::Hub(set) if set.revision == "v1"));
    assert!(!parse_job_toml(&of_folders("images = \"a\"")).unwrap().to_toml().unwrap().contains("source"));
}

#[test]
fn a_source_that_cannot_be_is_refused_by_its_field() {
    let uploaded = format!("source = \"{}\"", ContentHash::of(b"x").uri());
    for (line, field) in [
        ("source = \"hf://acme/toys\"", "data.source"),
        ("source = \"s3://x\"", "data.source"),
        ("source = \"https://x/y.tar\"", "data.source"),
        (uploaded.as_str(), "data.source"),
        ("source = \"./a\"\nfolders = [{ images = \"a\" }]", "data.source"),
        ("source = \"./a\"\nimages = \"a\"", "data.images"),
        ("source = \"\"", "data.images"),
    ] {
        let wrong = of_folders(line) + "max_train_steps = 5\n";
        assert_eq!(violation(&wrong).field, field, "{line}");
    }
    let passes = of_folders("source = \"./a\"") + "num_train_epochs = 2\n";
    assert_eq!(violation(&passes).field, "train.max_train_steps");
    let concepts = "kind = \"textual_inversion\"\n[model]\nbase = \"m\"\n[data]\nsource = \"./a\"\n[[concepts]]\n\
         placeholder_token = \"<a>\"\ninitializer_token = \"a\"\nimages = \"b\"\n";
    assert_eq!(violation(concepts).field, "data.source");
}
