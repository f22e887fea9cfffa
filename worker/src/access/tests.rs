use std::{
    fs,
    io::Read as _,
    os::unix::fs::symlink,
    path::{Component, Path, PathBuf},
};

use proptest::prelude::*;
use ringtune_shared::job::{JobSpec, ModelLocation, PathUse, S3Model, parse_job_toml};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

use super::*;
use crate::data::{Error as DataError, images::scan};

const HUB: &str = "https://huggingface.co";

fn nothing() -> Roots {
    Roots::Below(Vec::new())
}

/// Rules that allow nothing but these.
fn only(change: impl FnOnce(&mut Rules)) -> Rules {
    let mut rules = Rules {
        models: nothing(),
        data: nothing(),
        embeddings: nothing(),
        traces: nothing(),
        hubs: Hubs::Of(Vec::new()),
        buckets: Buckets::Within(Vec::new()),
        outputs: Buckets::Within(Vec::new()),
    };
    change(&mut rules);
    rules
}

fn bucket(text: &str) -> S3Model {
    let Ok(ModelLocation::S3(model)) = ModelLocation::parse(text, "") else { panic!("{text}") };
    model
}

fn job(base: &str, train: &str, more: &str) -> JobSpec {
    parse_job_toml(&format!(
        "kind = \"textual_inversion\"\n[model]\nbase = {base:?}\n[data]\nimages = \"/data/pictures\"\n\
         [train]\nplaceholder_token = \"<a>\"\n{train}\n{more}"
    ))
    .unwrap()
}

/// A start of a concept without a file.
const WORD: &str = "initializer_token = \"b\"";

/// A path without `..`, resolved lexically; None: above the root.
fn resolved(path: &Path) -> Option<PathBuf> {
    let mut found = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::ParentDir if !found.pop() => return None,
            Component::Normal(name) => found.push(name),
            _ => (),
        }
    }
    Some(found)
}

proptest! {
    #[test]
    fn no_path_of_a_job_leads_out_of_the_roots(
        parts in prop::collection::vec("\\.\\.|\\.|srv|models|etc|models-evil|[a-z]{0,2}|\\PC{0,4}", 0..8),
        absolute in any::<bool>(),
    ) {
        let roots = Roots::of(["/srv/models", "/data", "/srv/models/sd"].map(PathBuf::from));
        let text = format!("{}{}", if absolute { "/" } else { "" }, parts.join("/"));
        let path = Path::new(&text);
        match roots.find(path) {
            Some(Reach::Anywhere) => panic!("there is no such root"),
            Some(Reach::Below { root, rest }) => {
                prop_assert!(rest.components().all(|part| matches!(part, Component::Normal(_))), "{rest:?}");
                let real = resolved(path).unwrap();
                prop_assert_eq!(resolved(&root.join(&rest)).unwrap(), real.clone());
                prop_assert!(real.starts_with("/srv/models") || real.starts_with("/data"), "{real:?}");
                // The outermost: links may lead from one of its folders to another.
                prop_assert!(root != Path::new("/srv/models/sd"));
            }
            // A refused path leads elsewhere, or may.
            None => {
                let is_within = path.starts_with("/srv/models") || path.starts_with("/data");
                prop_assert!(!is_within || path.components().any(|part| part == Component::ParentDir), "{text:?}");
            }
        }
    }
}

#[test]
fn folders_are_compared_by_whole_names() {
    let roots = Roots::of([PathBuf::from("/srv/models/")]);
    let reach = |path: &str| roots.find(Path::new(path)).is_some();
    assert!(reach("/srv/models") && reach("/srv/models/sd") && reach("/srv//models/./sd/"));
    for out in
        ["/srv/models-evil", "/srv", "/", "srv/models", "", "/srv/models/../../etc", "/srv/models/a/.."]
    {
        assert!(!reach(out), "{out:?}");
    }
    assert_eq!(Roots::of([PathBuf::from("/a"), PathBuf::from("//")]), Roots::Everything);
    assert_eq!(Roots::Everything.find(Path::new("../x")), Some(Reach::Anywhere));
    assert_eq!(nothing().find(Path::new("/")), None);
}

#[test]
fn buckets_are_allowed_from_their_prefixes_on() {
    let buckets = Buckets::Within(vec![bucket("s3://models"), bucket("s3://shared/sd/v1")]);
    for inside in ["s3://models", "s3://models/a/b", "s3://shared/sd/v1", "s3://shared/sd/v1/fp16"] {
        assert!(buckets.allow(&bucket(inside)), "{inside}");
    }
    for outside in
        ["s3://models-evil", "s3://models-evil/a", "s3://shared", "s3://shared/sd", "s3://shared/sd/v11"]
    {
        assert!(!buckets.allow(&bucket(outside)), "{outside}");
    }
    assert!(!Buckets::Within(Vec::new()).allow(&bucket("s3://models")));
}

#[test]
fn a_refusal_says_what_was_given_what_is_allowed_and_what_to_set() {
    let rules = only(|rules| {
        rules.models = Roots::of(["/srv/models", "/data/models"].map(PathBuf::from));
        rules.hubs = Hubs::Of(vec![Hub::parse("hub.example").unwrap()]);
        rules.buckets = Buckets::Within(vec![bucket("s3://models")]);
    });
    for (base, parts) in [
        ("/etc/sd", &["model.base", "\"/etc/sd\"", "/srv/models, /data/models", "access.model_roots"][..]),
        ("/srv/models/../../etc", &["model.base", "..", "access.model_roots"]),
        ("hf://a/b", &["model.base", "hf://a/b@main", HUB, "hub.example", "access.hubs"]),
        ("s3://models-evil/x", &["model.base", "s3://models-evil/x", "s3://models", "access.buckets"]),
        ("/srv/models/sd", &["data.images", "/data/pictures", "nothing", "access.data_roots"]),
    ] {
        let refused = rules.check(&job(base, WORD, ""), HUB, true).unwrap_err().to_string();
        for part in parts {
            assert!(refused.contains(part), "{part}: {refused}");
        }
    }
}

#[test]
fn all_that_a_job_names_is_asked_for() {
    let rules = only(|rules| {
        rules.models = Roots::of([PathBuf::from("/srv/models")]);
        rules.data = Roots::of([PathBuf::from("/data")]);
    });
    let field = |spec: &JobSpec, traces| rules.check(spec, HUB, traces).map_err(|refused| refused.field);
    let refused = |field: &str| Err(field.to_owned());
    assert_eq!(field(&job("/srv/models/sd", WORD, ""), true), Ok(()));
    let mut spec = job("/srv/models/sd", WORD, "[debug]\ntrace_dir = \"/srv/models/t\"\n");
    assert_eq!(field(&spec, true), refused("debug.trace_dir"));
    assert_eq!(field(&spec, false), Ok(()), "another switch refuses it");
    assert_eq!(Rules::everything().check(&spec, HUB, true), Ok(()));
    spec.common.model.tokenizer = "/etc".to_owned();
    assert_eq!(field(&spec, false), refused("model.tokenizer"));
    let spec = job("/srv/models/sd", WORD, "[output]\nurl = \"s3://results/a\"\n");
    assert_eq!(field(&spec, false), refused("output.url"));
    let rules = Rules { outputs: Buckets::Within(vec![bucket("s3://results")]), ..rules.clone() };
    assert_eq!(rules.check(&spec, HUB, false), Ok(()));
    let spec = job("/srv/models/sd", "initializer_embedding = \"/e/a.pt\"", "");
    assert_eq!(field(&spec, false), refused("train.initializer_embedding"));
}

#[test]
fn tokens_are_data_and_their_buckets_those_of_models() {
    let rules = only(|rules| {
        rules.models = Roots::of([PathBuf::from("/srv/models")]);
        rules.data = Roots::of([PathBuf::from("/data")]);
        rules.buckets = Buckets::Within(vec![bucket("s3://words/web")]);
    });
    let check = |tokens: &str| {
        let job = "kind = \"gpt2_finetune\"\n[model]\nbase = \"/srv/models/gpt2\"\n[gpt2]\ntokens = ";
        let spec = parse_job_toml(&format!("{job}{tokens:?}\n")).unwrap();
        rules.check(&spec, HUB, true).map_err(|refused| refused.to_string())
    };
    assert_eq!((check("/data/tokens"), check("s3://words/web/2024")), (Ok(()), Ok(())));
    for (tokens, parts) in [
        ("/srv/models/tokens", ["gpt2.tokens: ", "allowed for tokens is: /data", "access.data_roots"]),
        ("/data/../etc", ["gpt2.tokens: ", "..", "access.data_roots"]),
        ("s3://words/book", ["gpt2.tokens: ", "s3://words/web", "access.buckets"]),
    ] {
        let refused = check(tokens).unwrap_err();
        assert!(parts.iter().all(|part| refused.contains(part)), "{refused}");
    }
    let access = Access::new(rules.clone(), HUB, PathBuf::from("/nowhere/views"));
    let outside = ModelLocation::S3(bucket("s3://words/book"));
    assert_eq!(access.fetch_named("gpt2.tokens", &outside).unwrap_err().field, "gpt2.tokens");
    assert_eq!(access.fetch_named("gpt2.tokens", &ModelLocation::S3(bucket("s3://words/web"))), Ok(()));
}

/// A folder of the machine: `inside` is a root, and `outside` holds secrets.
struct Machine {
    folder: TempDir,
    access: Access,
}

impl Machine {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("inside");
        for name in ["inside/sd/unet", "inside/sd/tokenizer", "inside/pictures", "outside"] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        for (name, text) in [
            ("inside/sd/model_index.json", "index"),
            ("inside/sd/unet/config.json", "config"),
            ("inside/sd/tokenizer/vocab.json", "words"),
            ("inside/single.safetensors", "single"),
            ("inside/pictures/a.png", "picture"),
            ("inside/other.json", "other"),
            ("outside/secret.json", "secret"),
        ] {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let roots = || Roots::of([root.clone()]);
        let rules = only(|rules| {
            rules.models = roots();
            rules.data = roots();
            rules.embeddings = roots();
            rules.traces = roots();
        });
        let access = Access::new(rules, HUB, folder.path().join("views"));
        Self { folder, access }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn place(&self, used: PathUse, name: &str) -> Result<ConfinedPath, Refused> {
        self.access.place(used, "model.base", self.path(name).to_str().unwrap())
    }

    fn model(&self, name: &str) -> Result<OpenModel, OpenError> {
        self.access.model(&self.place(PathUse::Model, name).unwrap())
    }

    fn link(&self, target: impl AsRef<Path>, name: &str) {
        let link = self.path(name);
        let _ = fs::remove_file(&link);
        symlink(target, link).unwrap();
    }
}

fn text(path: PathBuf) -> String {
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn read(place: &ConfinedPath) -> std::io::Result<String> {
    let mut text = String::new();
    place.open()?.read_to_string(&mut text)?;
    Ok(text)
}

#[test]
fn a_model_is_seen_as_it_was_opened_whatever_is_swapped_in_afterwards() {
    let machine = Machine::new();
    let model = machine.model("inside/sd").unwrap();
    assert!(model.path.ends_with("inside/sd"), "messages show where it is: {}", model.path.display());
    machine.link(machine.path("outside/secret.json"), "inside/sd/unet/config.json");
    fs::rename(machine.path("inside/sd/tokenizer"), machine.path("inside/words")).unwrap();
    machine.link(machine.path("outside"), "inside/sd/tokenizer");
    for (name, expected) in
        [("model_index.json", "index"), ("unet/config.json", "config"), ("tokenizer/vocab.json", "words")]
    {
        assert_eq!(text(model.path.join(name)), expected);
        assert!(model.path.join(name).is_file());
    }
    // Next time it is seen.
    let refused = machine.model("inside/sd").unwrap_err().to_string();
    assert!(refused.contains("unet/config.json") || refused.contains("tokenizer"), "{refused}");
    assert!(refused.contains("leads out of"), "{refused}");
}

#[test]
fn links_of_a_model_lead_where_jobs_may_go_and_nowhere_else() {
    let machine = Machine::new();
    let config = "inside/sd/unet/config.json";
    machine.link("../../other.json", config);
    assert_eq!(text(machine.model("inside/sd").unwrap().path.join("unet/config.json")), "other");
    for target in [
        machine.path("outside/secret.json"),
        PathBuf::from("../../../outside/secret.json"),
        PathBuf::from("/proc/self/environ"),
        // Absolute links have no folder that they stay below.
        machine.path("inside/other.json"),
    ] {
        machine.link(&target, config);
        let refused = machine.model("inside/sd").unwrap_err();
        assert!(refused.path.ends_with("unet/config.json"), "{refused}");
        assert!(refused.to_string().contains("leads out of"), "{}: {refused}", target.display());
    }
    // A whole folder, and the model itself.
    fs::remove_file(machine.path(config)).unwrap();
    machine.link(machine.path("outside"), "inside/sd/vae");
    assert!(machine.model("inside/sd").unwrap_err().to_string().contains("leads out of"));
    machine.link(machine.path("outside"), "inside/away");
    assert!(machine.model("inside/away").unwrap_err().to_string().contains("leads out of"));
    machine.link("sd", "inside/alias");
    fs::remove_file(machine.path("inside/sd/vae")).unwrap();
    assert!(machine.model("inside/alias").is_ok());
}

#[test]
fn what_a_file_of_the_model_names_by_dots_is_not_there() {
    let machine = Machine::new();
    let model = machine.model("inside/sd").unwrap();
    // As a loader would look up a name that model_index.json or an index of shards has.
    for name in ["../../../outside/secret.json", "../other.json", "unet/../../other.json"] {
        assert!(fs::read(model.path.join(name)).is_err(), "{name}");
    }
    assert!(machine.place(PathUse::Model, "inside/sd/../../outside").is_err());
    assert!(machine.place(PathUse::Model, "outside").is_err());
}

#[test]
fn what_would_keep_a_reader_waiting_is_refused_at_once() {
    let machine = Machine::new();
    let fifo = |name: &str| {
        let _ = fs::remove_file(machine.path(name));
        mknodat(CWD, machine.path(name), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    };
    fifo("inside/sd/unet/config.json");
    let refused = machine.model("inside/sd").unwrap_err().to_string();
    assert!(refused.contains("config.json") && refused.contains("not a regular file"), "{refused}");
    fifo("inside/single.safetensors");
    assert!(machine.model("inside/single.safetensors").is_err());
    fifo("inside/pictures/b.png");
    let pictures = scan(&machine.place(PathUse::Pictures, "inside/pictures").unwrap()).unwrap();
    assert_eq!((pictures.images.len(), pictures.skipped.as_slice()), (1, &["b.png".to_owned()][..]));
    // A pipe in a picture's place, and a device.
    fifo("inside/pictures/a.png");
    assert!(pictures.images[0].read().unwrap_err().to_string().contains("not a regular file"));
    for place in [ConfinedPath::at(machine.path("inside/pictures/a.png")), ConfinedPath::at("/dev/zero")] {
        assert!(read(&place).unwrap_err().to_string().contains("not a regular file"));
    }
}

#[test]
fn a_model_in_one_file_comes_with_the_words_beside_it() {
    let machine = Machine::new();
    fs::create_dir(machine.path("inside/tokenizer")).unwrap();
    fs::write(machine.path("inside/tokenizer/merges.txt"), "merges").unwrap();
    let model = machine.model("inside/single.safetensors").unwrap();
    assert_eq!(text(model.path.clone()), "single");
    let words = crate::data::tokenizer_folder(&model.path, None).unwrap();
    assert_eq!(text(words.join("merges.txt")), "merges");
    let words =
        machine.access.tokenizer(&machine.place(PathUse::Model, "inside/sd/tokenizer").unwrap()).unwrap();
    assert_eq!(text(words.path.join("vocab.json")), "words");
    for (name, part) in [("inside/nowhere", "No such file"), ("inside/pictures", "no file of a model")] {
        let refused = machine.model(name).unwrap_err().to_string();
        assert!(refused.contains(part), "{refused}");
    }
}

#[test]
fn the_same_files_are_seen_at_the_same_path_until_they_change() {
    let machine = Machine::new();
    let first = machine.model("inside/sd").unwrap();
    let path = first.path.clone();
    let second = machine.model("inside/sd").unwrap();
    assert_eq!(second.path, path);
    drop(first);
    assert_eq!(text(path.join("unet/config.json")), "config");
    drop(second);
    assert!(!path.exists(), "nothing is left of a view that nobody needs");
    assert_eq!(machine.model("inside/sd").unwrap().path, path);
    let old = machine.model("inside/sd").unwrap();
    fs::write(machine.path("inside/sd/unet/config.json"), "changed!").unwrap();
    let new = machine.model("inside/sd").unwrap();
    assert_ne!(new.path, old.path);
    drop(old);
    assert_eq!(text(new.path.join("unet/config.json")), "changed!");
}

#[test]
fn links_of_a_hubs_cache_stay_below_the_cache() {
    let machine = Machine::new();
    let snapshot = "cache/models--a--b/snapshots/c0ffee";
    fs::create_dir_all(machine.path(snapshot).join("unet")).unwrap();
    fs::create_dir_all(machine.path("cache/models--a--b/blobs")).unwrap();
    for (blob, link) in [("e1", "model_index.json"), ("e2", "unet/config.json")] {
        fs::write(machine.path("cache/models--a--b/blobs").join(blob), blob).unwrap();
        let up = "../".repeat(2 + link.matches('/').count());
        machine.link(format!("{up}blobs/{blob}"), &format!("{snapshot}/{link}"));
    }
    let cache = machine.path("cache");
    let model = || {
        let place = machine.access.fetched(&machine.path(snapshot), &cache)?;
        machine.access.model(&place)
    };
    let opened = model().unwrap();
    assert_eq!(text(opened.path.join("model_index.json")), "e1");
    assert_eq!(text(opened.path.join("unet/config.json")), "e2");
    machine.link("../../../../../outside/secret.json", &format!("{snapshot}/unet/config.json"));
    assert!(model().unwrap_err().to_string().contains("leads out of"));
    // A worker that keeps nothing from its jobs leaves the cache as it is.
    let everything = Access::new(Rules::everything(), HUB, machine.path("views"));
    let place = everything.fetched(&machine.path(snapshot), &cache).unwrap();
    assert_eq!(everything.model(&place).unwrap().path, machine.path(snapshot));
}

#[test]
fn a_text_calls_a_models_files_by_their_own_paths() {
    let machine = Machine::new();
    let opened = machine.model("inside/sd").unwrap();
    let (here, real) = (opened.path.join("unet/config.json"), machine.path("inside/sd/unet/config.json"));
    assert_ne!(here, real);
    let said = |path: &Path| format!("{}: no key, nor in {path:?}", path.display());
    assert_eq!(machine.access.shown(said(&here)), said(&real));
    // Nothing else is changed, not even what only begins like it.
    let view = opened.path.ancestors().find(|one| one.ends_with("views")).unwrap();
    for other in
        [said(&real), format!("{}/x", view.display()), format!("{}/é", view.display()), String::new()]
    {
        assert_eq!(machine.access.shown(other.clone()), other);
    }
}

#[test]
fn pictures_are_opened_below_their_root_each_time() {
    let machine = Machine::new();
    let folder = || machine.place(PathUse::Pictures, "inside/pictures").unwrap();
    machine.link("a.png", "inside/pictures/b.png");
    let pictures = scan(&folder()).unwrap();
    assert_eq!(pictures.images.len(), 2, "links within the root are pictures");
    assert_eq!(pictures.images[1].read().unwrap(), b"picture");
    // Swapped in after the folder was listed.
    machine.link(machine.path("outside/secret.json"), "inside/pictures/a.png");
    for picture in &pictures.images {
        let refused = picture.read().unwrap_err().to_string();
        assert!(refused.contains("leads out of"), "{refused}");
    }
    fs::rename(machine.path("inside/pictures"), machine.path("inside/old")).unwrap();
    machine.link("../outside", "inside/pictures");
    assert!(pictures.images[0].read().is_err());
    fs::remove_file(machine.path("inside/pictures")).unwrap();
    fs::rename(machine.path("inside/old"), machine.path("inside/pictures")).unwrap();
    // And before: it is not skipped in silence.
    assert!(matches!(scan(&folder()), Err(DataError::ReadImage { .. })));
    let url = format!("file://{}", machine.path("inside/pictures").display());
    assert!(machine.access.place(PathUse::Pictures, "data.images", &url).is_ok());
    let url = format!("file://{}", machine.path("outside").display());
    assert!(machine.access.place(PathUse::Pictures, "data.images", &url).is_err());
}

#[test]
fn traces_are_written_where_the_folder_was_opened() {
    let machine = Machine::new();
    let traces = machine.place(PathUse::Trace, "inside/traces/job").unwrap().make_folder().unwrap();
    fs::rename(machine.path("inside/traces/job"), machine.path("inside/moved")).unwrap();
    machine.link(machine.path("outside"), "inside/traces/job");
    fs::write(traces.path.join("step"), "numbers").unwrap();
    assert_eq!(text(machine.path("inside/moved/step")), "numbers");
    assert_eq!(fs::read_dir(machine.path("outside")).unwrap().count(), 1);
    for name in ["inside/traces/job", "inside/traces/job/deeper"] {
        let refused = machine.place(PathUse::Trace, name).unwrap().make_folder().unwrap_err();
        assert!(refused.to_string().contains("leads out of"), "{refused}");
    }
    assert_eq!(fs::read_dir(machine.path("outside")).unwrap().count(), 1);
}

#[test]
fn a_root_that_is_not_there_is_named() {
    let rules = only(|rules| rules.models = Roots::of([PathBuf::from("/nowhere/models")]));
    let access = Access::new(rules, "", PathBuf::from("/nowhere/views"));
    let refused = access.place(PathUse::Model, "model.base", "/nowhere/models/sd").unwrap_err().to_string();
    assert!(refused.contains("model.base: \"/nowhere/models/sd\": /nowhere/models: "), "{refused}");
    let checkpoint = access.place(PathUse::Checkpoint, "train.resume_from_checkpoint", "/c").unwrap_err();
    assert!(checkpoint.to_string().contains("coordinator only"), "{checkpoint}");
}
