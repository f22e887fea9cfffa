//! The dependency law, and the shape of the source files.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::places;
use toml::Table;

/// No source file is longer: what grows beyond it wants to be two.
const LONGEST_FILE: usize = 500;
/// The crate folders.
const CRATES: [&str; 23] = [
    "proto",
    "shared",
    "shared/conformance",
    "shared/random",
    "shared/tables",
    "security",
    "coordinator",
    "coordinator/cli",
    "coordinator/web",
    "shared/traces",
    "worker",
    "worker/daemon",
    "worker/engine",
    "worker/engine/fake",
    "worker/model",
    "worker/sources",
    "worker/text",
    "tests",
    "tests/fuzzing",
    "tests/recordings",
    "tests/schedules",
    "tests/coordinator",
    "tests/worker",
];

fn manifest(folder: &str) -> Result<Table> {
    let manifest = places::repository().join(folder).join("Cargo.toml");
    let text = fs::read_to_string(&manifest).with_context(|| manifest.display().to_string())?;
    Ok(toml::from_str(&text)?)
}

/// The names of a crate's dependencies, of every kind.
fn dependencies(folder: &str) -> Result<BTreeSet<String>> {
    let table = manifest(folder)?;
    let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
    let names = kinds.iter().filter_map(|kind| table.get(*kind)?.as_table()).flat_map(Table::keys);
    Ok(names.cloned().collect())
}

/// The crates of the workspace that a crate reaches, itself included.
fn reachable(folder: &'static str) -> Result<BTreeSet<&'static str>> {
    let mut folders = BTreeMap::new();
    for folder in CRATES {
        let name = manifest(folder)?["package"]["name"].as_str().context("a name")?.to_owned();
        folders.insert(name, folder);
    }
    let (mut found, mut open) = (BTreeSet::new(), vec![folder]);
    while let Some(next) = open.pop() {
        if found.insert(next) {
            open.extend(dependencies(next)?.iter().filter_map(|name| folders.get(name.as_str()).copied()));
        }
    }
    Ok(found)
}

/// The Rust files below a folder of the repository, not those of crates within crates.
fn rust_files(folder: &str) -> Result<Vec<PathBuf>> {
    let (mut files, mut open) = (Vec::new(), vec![places::repository().join(folder)]);
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).with_context(|| next.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() && !path.join("Cargo.toml").exists() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    ensure!(!files.is_empty(), "{folder} has no Rust files");
    Ok(files)
}

/// The part of a file before its unit tests, without comments.
fn live_code(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path)?;
    let live = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    Ok(live.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n"))
}

#[test]
fn shared_knows_neither_grpc_nor_libtorch() -> Result<()> {
    for name in dependencies("shared")? {
        let forbidden = name.contains("tonic")
            || name.contains("prost")
            || name.contains("tch")
            || name.contains("torch");
        ensure!(!forbidden, "shared depends on {name}");
        ensure!(!name.starts_with("ringtune-"), "shared depends on {name}: it is what the others share");
    }
    Ok(())
}

/// Folders of code that works on behalf of ranks.
const OF_RANKS: [&str; 10] = [
    "worker/sources/src",
    "worker/src/base_model",
    "worker/src/contents",
    "worker/src/inputs",
    "worker/src/journal",
    "worker/src/kinds",
    "worker/src/latents",
    "worker/src/rank",
    "worker/src/ring",
    "worker/src/training",
];

#[test]
fn what_a_rank_starts_logs_as_that_rank() -> Result<()> {
    for folder in OF_RANKS {
        for file in rust_files(folder)? {
            let is_test = file.components().any(|part| part.as_os_str() == "tests");
            let code = if is_test { String::new() } else { live_code(&file)? };
            let wrong = ["tokio::spawn", "tokio::task::spawn", "task::{JoinError, spawn", "JoinSet"];
            let wrong = wrong.iter().find(|word| code.contains(**word));
            ensure!(wrong.is_none(), "{} has {wrong:?}: use ringtune_shared::tasks", file.display());
        }
    }
    Ok(())
}

#[test]
fn random_numbers_depend_on_nothing() -> Result<()> {
    let names = dependencies("shared/random")?;
    ensure!(names.is_empty(), "shared/random depends on {names:?}");
    Ok(())
}

#[test]
fn models_are_fetched_without_grpc_and_libtorch() -> Result<()> {
    let reached = reachable("worker/sources")?;
    ensure!(reached == BTreeSet::from(["worker/sources", "shared"]), "worker/sources reaches {reached:?}");
    let names = dependencies("worker/sources")?;
    ensure!(!names.iter().any(|name| name.contains("tonic")), "worker/sources depends on {names:?}");
    Ok(())
}

#[test]
fn texts_become_tokens_without_grpc_libtorch_and_the_network() -> Result<()> {
    let reached = reachable("worker/text")?;
    // Its tests throw broken input at it; what does so depends on nothing.
    let allowed =
        BTreeSet::from(["worker/text", "shared", "shared/random", "shared/tables", "tests/fuzzing"]);
    ensure!(reached == allowed, "worker/text reaches {reached:?}");
    let names = dependencies("worker/text")?;
    let wrong = ["tonic", "tch", "torch", "tokio", "reqwest", "object_store", "hyper"];
    let wrong =
        names.iter().find(|name| wrong.iter().any(|word| name.contains(word) && *name != "tokenizers"));
    ensure!(wrong.is_none(), "worker/text depends on {wrong:?}");
    for folder in ["coordinator", "coordinator/cli"] {
        ensure!(!reachable(folder)?.contains("worker/text"), "{folder} reaches worker/text");
    }
    Ok(())
}

#[test]
fn the_engine_knows_neither_grpc_nor_libtorch() -> Result<()> {
    let reached = reachable("worker/engine")?;
    ensure!(
        reached == BTreeSet::from(["worker/engine", "worker/engine/fake", "shared/random"]),
        "worker/engine reaches {reached:?}"
    );
    for folder in reached {
        let names = dependencies(folder)?;
        ensure!(!names.iter().any(|name| name.contains("tonic")), "{folder} depends on {names:?}");
    }
    Ok(())
}

/// Crates that may make keys, certificates and TLS connections.
const TLS: [(&str, &[&str]); 5] = [
    // Models come from hubs and buckets over the TLS of others' servers.
    ("rustls", &["security", "worker/sources"]),
    // The coordinator's tests read a page as a browser does; the end-to-end tests do handshakes wrong.
    ("tokio-rustls", &["security", "tests/coordinator", "tests"]),
    ("rcgen", &["security"]),
    ("x509-parser", &["security"]),
    ("subtle", &["security"]),
];

#[test]
fn only_security_knows_certificates() -> Result<()> {
    let reached = reachable("security")?;
    // Its tests throw broken input at it; what does so depends on nothing.
    ensure!(reached == BTreeSet::from(["security", "tests/fuzzing"]), "security reaches {reached:?}");
    ensure!(dependencies("tests/fuzzing")?.is_empty(), "what throws broken input has dependencies");
    let own = dependencies("security")?;
    let wrong = own.iter().find(|name| ["axum", "prost", "tonic-prost"].contains(&name.as_str()));
    ensure!(wrong.is_none(), "security depends on {wrong:?}");
    for (library, crates) in TLS {
        for folder in CRATES {
            let names = dependencies(folder)?.contains(library);
            ensure!(names == crates.contains(&folder), "{folder} and {library}: {names}");
        }
    }
    for path in rust_files("security/src")? {
        let code = live_code(&path)?;
        // Of tonic only the trait by which a server tells its calls who is on the other side.
        let allowed = code.replace("tonic::transport::server::Connected", "");
        ensure!(!allowed.contains("tonic::"), "{} names more of tonic", path.display());
    }
    Ok(())
}

#[test]
fn only_the_model_crate_names_libtorch() -> Result<()> {
    for folder in CRATES {
        let names = dependencies(folder)?;
        let torch: Vec<&String> =
            names.iter().filter(|name| *name == "tch" || *name == "torch-sys").collect();
        ensure!(torch.is_empty() == (folder != "worker/model"), "{folder} names {torch:?}");
    }
    Ok(())
}

#[test]
fn only_the_workers_daemon_links_libtorch() -> Result<()> {
    for folder in CRATES.iter().filter(|folder| !["worker/daemon", "worker/model"].contains(folder)) {
        let reached = reachable(folder)?;
        ensure!(!reached.contains("worker/model"), "{folder} reaches {reached:?}");
    }
    for folder in ["coordinator", "coordinator/cli"] {
        let reached = reachable(folder)?;
        ensure!(!reached.contains("worker"), "{folder} reaches {reached:?}");
    }
    let daemon = reachable("worker/daemon")?;
    ensure!(daemon.contains("worker/model") && daemon.contains("worker"), "the search finds nothing");
    Ok(())
}

#[test]
fn no_built_program_but_the_worker_loads_libtorch() -> Result<()> {
    let names_libtorch = |program: &str| -> Result<bool> {
        // As the loader reads it; a text that only speaks of the library has no such ends.
        let library = b"\0libtorch_cpu.so\0";
        Ok(fs::read(places::program(program)?)?.windows(library.len()).any(|window| window == library))
    };
    ensure!(names_libtorch("ringtune-worker")?, "the search finds nothing");
    for program in ["ringtune", "ringtune-coordinator", "fake-worker"] {
        ensure!(!names_libtorch(program)?, "{program} links libtorch");
    }
    Ok(())
}

#[test]
fn core_modules_do_no_io_and_read_no_clock() -> Result<()> {
    let forbidden = "std::fs|std::net|std::io|std::env|tokio|SystemTime|Instant::now|sqlx|tonic|async fn";
    for path in rust_files("coordinator/src/core")? {
        let code = live_code(&path)?;
        for word in forbidden.split('|') {
            ensure!(!code.contains(word), "{} names {word}", path.display());
        }
    }
    Ok(())
}

/// Folders with a folder or file per kind of work.
const KINDS: [&str; 2] = ["shared/src/job/kinds", "worker/src/kinds"];
/// Files that may name a kind: all others ask a job for facts.
const REGISTRATIONS: [&str; 3] = [
    "shared/src/job/mod.rs",
    // What stands in the place of a job that cannot be read.
    "shared/src/job/stored.rs",
    "proto/src/convert/sections.rs",
];

/// The kinds, by their folders.
fn kinds() -> Result<Vec<String>> {
    let mut kinds = Vec::new();
    for entry in fs::read_dir(places::repository().join(KINDS[0]))? {
        let path = entry?.path();
        if path.is_dir() {
            kinds.extend(path.file_name().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    ensure!(kinds.len() >= 2, "the search finds {kinds:?}");
    Ok(kinds)
}

/// As variants are called: `TextualInversion`.
fn variant(kind: &str) -> String {
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    kind.split('_').map(capital).collect()
}

#[test]
fn no_kind_of_work_names_another() -> Result<()> {
    let kinds = kinds()?;
    for folder in KINDS {
        let files = rust_files(folder)?;
        for kind in &kinds {
            let own = |path: &&PathBuf| {
                path.components()
                    .any(|part| Path::new(part.as_os_str()).file_stem() == Some(OsStr::new(kind)))
            };
            let mut found = files.iter().filter(own).peekable();
            ensure!(found.peek().is_some(), "{folder} has nothing of {kind}");
            for path in found {
                let code = live_code(path)?;
                for other in kinds.iter().filter(|other| *other != kind) {
                    ensure!(!code.contains(&format!("{other}::")), "{} names {other}", path.display());
                }
            }
        }
    }
    Ok(())
}

#[test]
fn only_registrations_name_a_kind_of_work() -> Result<()> {
    let repository = places::repository();
    let (mut registered, mut seen) = (0, 0);
    let of_kind = |kind: &String| [format!("kinds::{kind}"), format!("Work::{}", variant(kind))];
    let names: Vec<String> = kinds()?.iter().flat_map(of_kind).collect();
    for folder in ["shared/src", "proto/src", "coordinator/src", "coordinator/cli/src", "worker/src"] {
        for path in rust_files(folder)? {
            let place = path.strip_prefix(&repository)?.to_string_lossy().into_owned();
            // Tests name what they test.
            let is_test = place.contains("tests") || place.contains("conformance");
            if is_test || KINDS.iter().any(|kinds| place.starts_with(kinds)) {
                continue;
            }
            seen += 1;
            let code = live_code(&path)?;
            let names_one = code.contains("    kinds::{") || names.iter().any(|name| code.contains(name));
            let may = REGISTRATIONS.contains(&place.as_str());
            registered += usize::from(may);
            ensure!(
                may || !names_one,
                "{place} names a kind of work: ask the job for a fact, or register there"
            );
        }
    }
    ensure!(registered == REGISTRATIONS.len() && seen > 100, "the search finds {registered} of {seen}");
    Ok(())
}

/// Parts of the worker, and what they never name.
const NEVER: [(&str, &[&str]); 9] = [
    ("rank", &["kinds", "training", "inputs", "parameters"]),
    ("contents", &["kinds", "training", "inputs", "rank"]),
    ("base_model", &["kinds", "training", "inputs", "rank"]),
    ("inputs", &["kinds", "training"]),
    ("training", &["kinds", "inputs", "parameters"]),
    ("parameters", &["kinds", "inputs"]),
    ("data", &["contents", "session", "ring", "rank", "http"]),
    ("train", &["contents", "session", "ring", "rank", "http"]),
    ("output", &["contents", "session", "ring", "rank", "http"]),
];

#[test]
fn the_workers_parts_name_only_what_is_below_them() -> Result<()> {
    for (part, never) in NEVER {
        let plain = ["data", "train", "output"].contains(&part);
        let files = rust_files(&format!("worker/src/{part}"))?;
        ensure!(!files.is_empty(), "there is no {part}");
        for path in files {
            let code = live_code(&path)?;
            let is_named = |module: &str| {
                code.contains(&format!("crate::{module}")) || code.contains(&format!("\n    {module}::"))
            };
            let wrong = never.iter().find(|module| is_named(module));
            ensure!(wrong.is_none(), "{} names {wrong:?}", path.display());
            let network =
                ["tonic", "tokio", "ringtune_proto"].iter().find(|name| plain && code.contains(**name));
            ensure!(network.is_none(), "{} names {network:?}", path.display());
        }
    }
    Ok(())
}

#[test]
fn every_dependency_has_its_version_and_features_in_the_workspace() -> Result<()> {
    for folder in CRATES {
        let text = fs::read_to_string(places::repository().join(folder).join("Cargo.toml"))?;
        let table: Table = toml::from_str(&text)?;
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            for (name, value) in table.get(kind).and_then(|value| value.as_table()).into_iter().flatten() {
                let settings = value
                    .as_table()
                    .with_context(|| format!("{folder}: {name} is not `workspace = true`"))?;
                let only_workspace = settings.len() == 1 && settings.contains_key("workspace");
                ensure!(only_workspace, "{folder}: {name} has settings of its own");
            }
        }
    }
    Ok(())
}

#[test]
fn files_are_short_and_say_what_they_are() -> Result<()> {
    for folder in CRATES {
        for path in rust_files(folder)? {
            let text = fs::read_to_string(&path)?;
            let lines = text.lines().count();
            ensure!(lines <= LONGEST_FILE, "{} has {lines} lines", path.display());
            // One convention: a module with children is its folder's mod.rs.
            ensure!(!path.with_extension("").is_dir(), "{} stands beside its folder", path.display());
            // The tests of a module, in a file of their own, are described by their names.
            let is_tests = path.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with("tests"));
            ensure!(is_tests || text.starts_with("//!"), "{} does not begin with //!", path.display());
        }
    }
    Ok(())
}

#[test]
fn the_files_that_the_architecture_names_are_there() -> Result<()> {
    let text = fs::read_to_string(places::repository().join("ARCHITECTURE.md"))?;
    let mut files = Vec::new();
    for folder in CRATES {
        files.extend(rust_files(folder)?);
    }
    let named = text.split('`').skip(1).step_by(2).filter(|word| word.ends_with(".rs"));
    let mut seen = 0;
    for name in named {
        ensure!(
            files.iter().any(|file| file.ends_with(name)),
            "ARCHITECTURE.md names {name}, which is not there"
        );
        seen += 1;
    }
    ensure!(seen > 20, "the search finds only {seen} names");
    Ok(())
}

/// A name that fits no test would change in silence what each run plays.
#[test]
fn the_tests_that_nextest_names_are_there() -> Result<()> {
    let text = fs::read_to_string(places::repository().join(".config/nextest.toml"))?;
    let sources: Vec<String> =
        rust_files("tests")?.iter().map(fs::read_to_string).collect::<Result<_, _>>()?;
    let named: Vec<&str> =
        text.split("test(=").skip(1).filter_map(|rest| rest.split_once(')')?.0.rsplit("::").next()).collect();
    for name in &named {
        ensure!(
            sources.iter().any(|source| source.contains(name)),
            "nextest.toml names {name}, which is not there"
        );
    }
    ensure!(named.len() > 10, "the search finds only {named:?}");
    Ok(())
}

#[test]
fn nothing_unfinished_is_on_a_live_path() -> Result<()> {
    let words = ["todo!(", "unimplemented!(", "dbg!("];
    for folder in CRATES {
        for path in rust_files(folder)?.iter().filter(|path| !path.ends_with("tests/tidy.rs")) {
            let code = live_code(path)?;
            for word in words {
                ensure!(!code.contains(word), "{} has {word}", path.display());
            }
        }
    }
    Ok(())
}
