//! Jobs of several concepts.

use super::*;
use crate::embedding::LearnedEmbedding;
use crate::ids::ContentHash;

const TWO: &str = r#"
kind = "textual_inversion"
[model]
base = "/models/sd"
[train]
num_vectors = 2
templates = ["a photo of {}"]
[[concepts]]
placeholder_token = "<green-star>"
initializer_token = "star"
images = "./green-star"
[[concepts]]
placeholder_token = "<blue-heart>"
initializer_token = "heart"
images = "./blue-heart"
num_vectors = 3
learnable_property = "style"
"#;

#[test]
fn what_a_concept_leaves_out_is_the_jobs() {
    let spec = parse_job_toml(TWO).unwrap();
    let first = ConceptSpec {
        placeholder_token: "<green-star>".into(),
        initializer_token: "star".into(),
        initializer_embedding: String::new(),
        images: "./green-star".into(),
        folders: Vec::new(),
        caption_column: String::new(),
        num_vectors: 2,
        learnable_property: LearnableProperty::Object,
        templates: vec!["a photo of {}".into()],
    };
    let second = ConceptSpec {
        placeholder_token: "<blue-heart>".into(),
        initializer_token: "heart".into(),
        initializer_embedding: String::new(),
        images: "./blue-heart".into(),
        folders: Vec::new(),
        caption_column: String::new(),
        num_vectors: 3,
        learnable_property: LearnableProperty::Style,
        templates: Vec::new(),
    };
    assert_eq!(spec.textual_inversion().unwrap().concepts(), [first, second]);
    assert_eq!(spec.textual_inversion().unwrap().concept_field(1, "images"), "concepts[1].images");
    assert_eq!(parse_job_toml(&spec.to_toml().unwrap()).unwrap(), spec);
    let json = serde_json::to_string(&spec).unwrap();
    assert_eq!(JobSpec::from_stored(STORED_VERSION, &json).unwrap(), spec);
    // What stands in a concept is not said a second time, emptily.
    for key in ["placeholder_token", "initializer_token", "images"] {
        assert!(!spec.to_toml().unwrap().contains(&format!("{key} = \"\"")), "{key}");
    }
}

#[test]
fn a_job_without_a_list_has_one_concept() {
    let spec = parse_job_toml(SMALLEST).unwrap();
    let work = work(SMALLEST);
    let concepts = work.concepts();
    assert_eq!(concepts.len(), 1);
    let (token, images) = (&concepts[0].placeholder_token, &concepts[0].images);
    assert_eq!((token.as_str(), images.as_str()), ("<cat-toy>", "./pictures"));
    assert_eq!(work.concept_field(0, "images"), "data.images");
    assert_eq!(work.concept_field(0, "placeholder_token"), "train.placeholder_token");
    // Its file is what it was before there were lists.
    assert!(!spec.to_toml().unwrap().contains("concepts"));
    assert!(!serde_json::to_string(&spec).unwrap().contains("concepts"));
}

#[test]
fn relative_paths_of_all_concepts_are_resolved() {
    let mut spec = parse_job_toml(TWO).unwrap();
    let fields: Vec<String> =
        spec.check_paths().unwrap_err().violations.into_iter().map(|violation| violation.field).collect();
    assert_eq!(fields, ["concepts[0].images", "concepts[1].images"]);
    spec.resolve_paths(Path::new("/jobs")).unwrap();
    let sources: Vec<(String, String)> =
        spec.image_sources().into_iter().map(|(field, path)| (field, path.clone())).collect();
    let expected = [("concepts[0].images", "/jobs/green-star"), ("concepts[1].images", "/jobs/blue-heart")];
    assert_eq!(sources, expected.map(|(field, path)| (field.to_owned(), path.to_owned())));
}

#[test]
fn what_concepts_have_for_themselves_is_not_given_beside_them() {
    for (section, line, field) in [
        ("[train]", "placeholder_token = \"<a>\"", "train.placeholder_token"),
        ("[train]", "initializer_token = \"a\"", "train.initializer_token"),
        ("[train]", "[data]\nimages = \"/a\"", "data.images"),
    ] {
        let text = if line.starts_with('[') {
            TWO.replace(section, &format!("{line}\n{section}"))
        } else {
            TWO.replace(section, &format!("{section}\n{line}"))
        };
        let found = violation(&text);
        assert_eq!(found.field, field);
        assert!(found.problem.contains("[[concepts]]") && found.line.is_some(), "{found}");
    }
}

#[test]
fn wrong_and_missing_keys_are_shown_in_their_table() {
    let second = TWO.lines().position(|line| line.contains("<blue-heart>")).unwrap() + 1;
    for (old, new, field, line) in [
        ("images = \"./blue-heart\"", "", "concepts[1].images", second - 1),
        (
            "placeholder_token = \"<blue-heart>\"",
            "placeholder_token = 3",
            "concepts[1].placeholder_token",
            second,
        ),
        ("\"<blue-heart>\"", "\"two words\"", "concepts[1].placeholder_token", second),
        ("initializer_token = \"heart\"", "initializer = \"heart\"", "concepts[1].initializer", second + 1),
        ("num_vectors = 3", "num_vectors = 65", "concepts[1].num_vectors", second + 3),
        ("\"style\"", "\"mood\"", "concepts[1].learnable_property", second + 4),
    ] {
        let error = parse_job_toml(&TWO.replace(old, new)).unwrap_err();
        let found = error.violations.iter().find(|violation| violation.field == field);
        assert_eq!(found.and_then(|violation| violation.line), Some(line), "{error}");
    }
    let found = violation(&format!("{SMALLEST}concepts = 3\n").replace("[train]", "[train]\n"));
    assert!(found.problem.contains("[data]") || found.field == "train.concepts", "{found}");
    let text = format!("concepts = 3\n{SMALLEST}");
    assert!(violation(&text).problem.contains("[[concepts]]"));
}

#[test]
fn words_that_cannot_be_told_apart_are_refused() {
    for (other, alike) in [
        ("<green-star>", true),
        ("<Green-STAR>", true),
        ("<green-star>_1", true),
        ("green-star", true),
        ("<green-star2>", false),
        ("<star>", false),
    ] {
        let parsed = parse_job_toml(&TWO.replace("<blue-heart>", other));
        assert_eq!(parsed.is_err(), alike, "{other}");
        if let Err(error) = parsed {
            assert_eq!(error.violations[0].field, "concepts[1].placeholder_token");
            assert!(error.to_string().contains("concepts[0]"), "{error}");
        }
    }
}

#[test]
fn there_are_limits() {
    let head = TWO.split("[[concepts]]").next().unwrap();
    let many = |count: usize, vectors: u32| {
        (0..count).fold(head.to_owned(), |text, index| {
            format!(
                "{text}[[concepts]]\nplaceholder_token = \"<c-{index}>\"\ninitializer_token = \"a\"\n\
                 images = \"/i\"\nnum_vectors = {vectors}\n"
            )
        })
    };
    assert_eq!(work(&many(64, 16)).concepts().len(), 64);
    assert_eq!(violation(&many(65, 1)).field, "concepts");
    assert!(violation(&many(64, 17)).problem.contains("1088 vectors"));
}

#[test]
fn a_concept_starts_from_words_or_from_an_embedding() {
    let plain = SMALLEST.replace("./pictures", "/i");
    let job = |start: &str| plain.replace("initializer_token = \"toy\"", start);
    let mut spec = parse_job_toml(&job("initializer_embedding = \"old.pt\"\nnum_vectors = 2")).unwrap();
    assert_eq!(spec.textual_inversion().unwrap().word.initializer_token, "");
    assert_eq!(parse_job_toml(&spec.to_toml().unwrap()).as_ref(), Ok(&spec));
    assert!(spec.check_paths().unwrap_err().to_string().contains("train.initializer_embedding"));
    spec.resolve_paths("/jobs".as_ref()).unwrap();
    assert_eq!(spec.textual_inversion().unwrap().word.initializer_embedding, "/jobs/old.pt");
    for (start, field) in [
        ("", "train.initializer_token"),
        ("initializer_token = \"b\"\ninitializer_embedding = \"old.pt\"", "train.initializer_embedding"),
        ("initializer_embedding = \"s3://b/old.pt\"", "train.initializer_embedding"),
        ("initializer_embedding = \"artifact://sha256/1\"", "train.initializer_embedding"),
    ] {
        let error = parse_job_toml(&job(start)).unwrap_err();
        assert_eq!(error.violations[0].field, field, "{error}");
        assert!(error.to_string().contains("initializer_embedding"), "{error}");
    }
}

#[test]
fn each_concept_starts_from_its_own_embedding() {
    let text = TWO.replacen("initializer_token = \"heart\"", "initializer_embedding = \"/old.pt\"", 1);
    let mut spec = parse_job_toml(&text).unwrap();
    assert_eq!(parse_job_toml(&spec.to_toml().unwrap()).as_ref(), Ok(&spec));
    let places: Vec<(String, String)> = spec
        .initializer_embeddings()
        .into_iter()
        .map(|embedding| (embedding.field, embedding.place.clone()))
        .collect();
    let place =
        |index: usize, place: &str| (format!("concepts[{index}].initializer_embedding"), place.to_owned());
    assert_eq!(places, [place(0, ""), place(1, "/old.pt")]);
    // It learns 3 rows.
    let learned = |vectors: usize| LearnedEmbedding {
        token: None,
        width: 2,
        rows: vec![0.5; 2 * vectors],
        hash: ContentHash::of(b"old"),
    };
    let embeddings = spec.initializer_embeddings();
    assert_eq!(embeddings[1].check(&learned(3)), Ok(()));
    for (vectors, said) in [
        (1, "it has 1 vector and num_vectors is 3; give num_vectors = 1"),
        (64, "it has 64 vectors and num_vectors is 3; give num_vectors = 64"),
        (65, "it has 65 vectors and num_vectors is 3; a concept has at most 64"),
    ] {
        assert_eq!(embeddings[1].check(&learned(vectors)), Err(said.to_owned()));
    }
    let beside = text.replacen("[train]\n", "[train]\ninitializer_embedding = \"/old.pt\"\n", 1);
    assert_eq!(violation(&beside).field, "train.initializer_embedding");
}
