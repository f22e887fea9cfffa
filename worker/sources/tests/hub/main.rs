//! Fetching from a hub: a local server that speaks its routes.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod server;

use std::{fs, path::Path, time::Duration};

use axum::http::Method;
use ringtune_shared::job::ModelLocation;
use ringtune_sources::{
    CacheOptions, DownloadProgress, Environment, Error, LocalModel, ModelSources, Patience, progress_channel,
};
use server::{COMMIT, Hub, Seen, Trouble, UNET};
use tempfile::TempDir;

const TOKEN: &str = "hf_abcdefghijklmnop";

/// Somebody who fetches, with a cache of their own.
struct User {
    folder: TempDir,
    variables: Vec<(String, String)>,
    patience: Patience,
}

impl User {
    fn of(hub: &Hub) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().display().to_string();
        let variables = [("HF_ENDPOINT", hub.endpoint.clone()), ("HF_HOME", home)];
        let variables = variables.map(|(name, value)| (name.to_owned(), value)).to_vec();
        let patience =
            Patience { stall: Duration::from_millis(500), tries: 3, first_wait: Duration::from_millis(5) };
        Self { folder, variables, patience }
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.set(name, value);
        self
    }

    fn set(&mut self, name: &str, value: &str) {
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    async fn fetch(&self, base: &str) -> Result<(LocalModel, DownloadProgress), Error> {
        self.fetch_as(base, None).await
    }

    /// `weights`: a language model, with them or without.
    async fn fetch_as(
        &self,
        base: &str,
        weights: Option<bool>,
    ) -> Result<(LocalModel, DownloadProgress), Error> {
        let environment: Environment = self.variables.iter().cloned().collect();
        let cache = CacheOptions { folder: self.folder.path().join("ours"), most_bytes: 1 << 30 };
        let sources = ModelSources::new(environment, cache, self.patience);
        let location = ModelLocation::parse(base, "").unwrap();
        // On a task, as a worker does it.
        tokio::spawn(async move {
            let (sender, receiver) = progress_channel();
            let model = match weights {
                None => sources.fetch(&location, "", &sender).await?,
                Some(weights) => sources.fetch_language_model(&location, weights, &sender).await?,
            };
            let progress = *receiver.borrow();
            Ok((model, progress))
        })
        .await
        .unwrap()
    }

    fn repository(&self) -> std::path::PathBuf {
        self.folder.path().join("hub/models--acme--toy-sd")
    }

    /// Partial files that are there, with their sizes.
    fn partials(&self) -> Vec<u64> {
        let blobs = fs::read_dir(self.repository().join("blobs")).unwrap().flatten();
        blobs
            .filter(|entry| entry.file_name().to_string_lossy().ends_with(".incomplete"))
            .map(|entry| entry.metadata().unwrap().len())
            .collect()
    }
}

fn assert_whole(hub: &Hub, folder: &Path) {
    for name in ["model_index.json", "tokenizer/vocab.json", "text_encoder/model.safetensors", UNET] {
        assert_eq!(fs::read(folder.join(name)).unwrap(), hub.file(name), "{name}");
    }
}

fn sent_of(seen: &[Seen], name: &str) -> Vec<Option<String>> {
    let sent = seen.iter().filter(|one| one.method == Method::GET && one.at_storage);
    sent.filter(|one| one.path.ends_with(name)).map(|one| one.range.clone()).collect()
}

#[tokio::test]
async fn a_tokenizer_comes_whole() {
    // Its hash is part of a job's: one that lacks a file counts as another than the same in a folder.
    let hub = Hub::start().await;
    let user = User::of(&hub);
    let (model, _) = user.fetch("hf://acme/toy-sd").await.unwrap();
    let tokenizer = fs::read_dir(model.folder.join("tokenizer")).unwrap().flatten();
    let mut names: Vec<String> = tokenizer.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "added_tokens.json",
            "merges.txt",
            "special_tokens_map.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "vocab.json"
        ]
    );
    for name in names {
        let name = format!("tokenizer/{name}");
        assert_eq!(fs::read(model.folder.join(&name)).unwrap(), hub.file(&name), "{name}");
    }
}

#[tokio::test]
async fn what_is_needed_and_nothing_else_comes_into_the_standard_layout() {
    let hub = Hub::start().await;
    hub.require_token(TOKEN);
    let user = User::of(&hub).with("HF_TOKEN", TOKEN);
    let (model, progress) = user.fetch("hf://acme/toy-sd@refs/pr/1").await.unwrap();
    assert_whole(&hub, &model.folder);
    assert_eq!(model.folder, user.repository().join("snapshots").join(COMMIT));
    let origin = model.origin.unwrap();
    assert_eq!((origin.repository.as_str(), origin.commit.as_str()), ("acme/toy-sd", COMMIT));
    assert_eq!(fs::read_to_string(user.repository().join("refs/refs/pr/1")).unwrap(), COMMIT);
    assert!(fs::symlink_metadata(model.folder.join(UNET)).unwrap().is_symlink());
    assert!(!model.folder.join("README.md").exists() && !model.folder.join("safety_checker").exists());
    assert!(progress.total > 308_000 && progress.done == progress.total, "{progress:?}");
    let seen = hub.seen();
    assert!(!seen.iter().any(|one| one.path.ends_with(".bin") || one.path.contains("safety_checker")));
    // The token is the hub's alone.
    assert!(seen.iter().all(|one| one.token.is_some() != one.at_storage), "{seen:#?}");
    // The second time nothing is sent again.
    user.fetch("hf://acme/toy-sd@refs/pr/1").await.unwrap();
    assert!(hub.seen().iter().all(|one| one.method == Method::HEAD || one.path.starts_with("/api/")));
}

#[tokio::test]
async fn an_interrupted_file_goes_on_where_it_stopped() {
    let hub = Hub::start().await;
    hub.trouble(Trouble::CutAfter(100_000));
    hub.trouble(Trouble::StallAfter(50_000));
    let user = User::of(&hub);
    let (model, _) = user.fetch("hf://acme/toy-sd").await.unwrap();
    assert_whole(&hub, &model.folder);
    // Bytes sent before a break may not have arrived; those that have are not requested again.
    let asked: Vec<u64> = sent_of(&hub.seen(), UNET).iter().map(|range| start_of(range.as_deref())).collect();
    let [0, second, third] = asked[..] else { panic!("{asked:?}") };
    assert!(0 < second && second <= 100_000, "{asked:?}");
    assert!(second < third && third <= second + 50_000, "{asked:?}");
}

/// Start of a requested range.
fn start_of(range: Option<&str>) -> u64 {
    range.map_or(0, |range| range.trim_start_matches("bytes=").trim_end_matches('-').parse().unwrap())
}

#[tokio::test]
async fn a_restart_asks_only_for_the_rest() {
    let hub = Hub::start().await;
    hub.trouble(Trouble::CutAfter(100_000));
    let mut user = User::of(&hub);
    user.patience.tries = 0;
    let error = user.fetch("hf://acme/toy-sd").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(!error.to_string().contains("signature"), "{error}");
    // Not all bytes sent before the break may have arrived.
    let [kept] = user.partials()[..] else { panic!("{:?}", user.partials()) };
    assert!(0 < kept && kept <= 100_000, "{kept}");
    hub.seen();
    let (model, _) = user.fetch("hf://acme/toy-sd").await.unwrap();
    assert_whole(&hub, &model.folder);
    assert_eq!(sent_of(&hub.seen(), UNET), [Some(format!("bytes={kept}-"))]);
    assert_eq!(user.partials(), [] as [u64; 0]);
}

#[tokio::test]
async fn a_damaged_partial_file_is_started_over() {
    let hub = Hub::start().await;
    hub.trouble(Trouble::CutAfter(100_000));
    let mut user = User::of(&hub);
    user.patience.tries = 0;
    user.fetch("hf://acme/toy-sd").await.unwrap_err();
    let blobs = fs::read_dir(user.repository().join("blobs")).unwrap().flatten();
    let partial = blobs.map(|entry| entry.path()).find(|path| path.extension().is_some()).unwrap();
    fs::write(&partial, [7; 100_000]).unwrap();
    hub.seen();
    let (model, _) = user.fetch("hf://acme/toy-sd").await.unwrap();
    assert_whole(&hub, &model.folder);
    assert_eq!(sent_of(&hub.seen(), UNET), [Some("bytes=100000-".to_owned()), None]);
}

#[tokio::test]
async fn content_that_is_not_what_was_announced_gets_no_name() {
    let hub = Hub::start().await;
    let user = User::of(&hub);
    let mut wrong = hub.file(UNET);
    wrong[123] ^= 1;
    let short = hub.file(UNET)[..200_000].to_vec();
    let long = [hub.file(UNET), vec![0; 10]].concat();
    for content in [wrong, short, long] {
        let is_short = content.len() == 200_000;
        hub.send_instead(UNET, Some(content));
        let error = user.fetch("hf://acme/toy-sd").await.unwrap_err();
        // A short file may be complete later; the others never will.
        assert_eq!(matches!(error, Error::Unreachable { .. }), is_short, "{error}");
        assert!(error.to_string().contains(UNET), "{error}");
        assert!(!user.repository().join("snapshots").join(COMMIT).join(UNET).exists());
    }
    hub.send_instead("model_index.json", Some(hub.file("model_index.json").iter().rev().copied().collect()));
    let fresh = User::of(&hub);
    let error = fresh.fetch("hf://acme/toy-sd").await.unwrap_err();
    assert!(
        matches!(error, Error::Corrupt { .. }) && error.to_string().contains("model_index.json"),
        "{error}"
    );
    hub.send_instead("", None);
    let (model, _) = user.fetch("hf://acme/toy-sd").await.unwrap();
    assert_whole(&hub, &model.folder);
}

#[tokio::test]
async fn offline_the_cache_is_all_there_is() {
    let hub = Hub::start().await;
    let mut user = User::of(&hub);
    user.fetch("hf://acme/toy-sd").await.unwrap();
    hub.seen();
    user.set("HF_HUB_OFFLINE", "1");
    for revision in ["main", COMMIT] {
        let (model, _) = user.fetch(&format!("hf://acme/toy-sd@{revision}")).await.unwrap();
        assert_whole(&hub, &model.folder);
    }
    for (base, word) in [("hf://acme/toy-sd@v2", "\"v2\""), ("hf://acme/other", "\"main\"")] {
        let error = user.fetch(base).await.unwrap_err();
        assert!(matches!(error, Error::Offline { .. }), "{error}");
        assert!(error.to_string().contains(word) && error.to_string().contains("HF_HUB_OFFLINE"), "{error}");
    }
    fs::remove_file(user.repository().join("snapshots").join(COMMIT).join(UNET)).unwrap();
    let error = user.fetch("hf://acme/toy-sd").await.unwrap_err();
    assert!(error.to_string().contains(UNET), "{error}");
    assert_eq!(hub.seen(), []);
}

#[tokio::test]
async fn a_hub_that_is_away_leaves_what_was_fetched() {
    let hub = Hub::start().await;
    let mut user = User::of(&hub);
    user.fetch("hf://acme/toy-sd").await.unwrap();
    user.set("HF_ENDPOINT", "http://127.0.0.1:9");
    user.variables.retain(|(name, value)| name != "HF_ENDPOINT" || value.ends_with(":9"));
    let (model, _) = user.fetch("hf://acme/toy-sd").await.unwrap();
    assert!(model.remarks[0].contains(COMMIT), "{:?}", model.remarks);
    let error = user.fetch("hf://acme/other").await.unwrap_err();
    assert!(matches!(error, Error::NotReached { .. }), "{error}");
}

#[tokio::test]
async fn refusals_say_what_to_do_and_never_the_token() {
    let hub = Hub::start().await;
    let open = User::of(&hub);
    for (base, word) in
        [("hf://acme/toy-sd@v2", "no revision \"v2\""), ("hf://acme/none", "there is no such repository")]
    {
        let error = open.fetch(base).await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
    hub.require_token("hf_another");
    let error = open.fetch("hf://acme/toy-sd").await.unwrap_err().to_string();
    assert!(error.contains("HF_TOKEN"), "{error}");
    let wrong = User::of(&hub).with("HF_TOKEN", TOKEN);
    let error = wrong.fetch("hf://acme/toy-sd").await.unwrap_err();
    assert!(error.to_string().contains("does not accept the token"), "{error}");
    assert!(!format!("{error} {error:?}").contains(TOKEN), "{error:?}");
}

#[tokio::test]
async fn a_name_that_leads_out_of_the_folder_spoils_the_list() {
    let hub = Hub::start().await;
    hub.list_too("unet/../../../../evil");
    let error = User::of(&hub).fetch("hf://acme/toy-sd").await.unwrap_err();
    assert!(matches!(error, Error::Unsuitable { .. }) && error.to_string().contains("evil"), "{error}");
}

#[tokio::test]
async fn two_workers_of_a_machine_fetch_once() {
    let hub = Hub::start().await;
    let user = User::of(&hub);
    let (one, other) = tokio::join!(user.fetch("hf://acme/toy-sd"), user.fetch("hf://acme/toy-sd"));
    assert_eq!(one.unwrap().0.folder, other.unwrap().0.folder);
    assert_eq!(sent_of(&hub.seen(), UNET), [None]);
}

#[tokio::test]
async fn a_language_model_comes_with_its_weights_or_without() {
    let hub = Hub::start().await;
    let user = User::of(&hub);
    let base = "hf://acme/toy-sd";
    // 1. A model of pictures is none.
    let refused = user.fetch_as(base, Some(true)).await.unwrap_err();
    assert!(matches!(refused, Error::Unsuitable { .. }), "{refused}");
    assert!(refused.to_string().contains("has no config.json"), "{refused}");
    // 2. Without weights nothing of them is asked for.
    hub.add("config.json", b"{}");
    hub.add("vocab.json", b"{\"a\": 0}");
    hub.add("pytorch_model.bin", b"pickle");
    hub.seen();
    let (model, _) = user.fetch_as(base, Some(false)).await.unwrap();
    assert_eq!(fs::read(model.folder.join("vocab.json")).unwrap(), b"{\"a\": 0}");
    assert!(hub.seen().iter().all(|one| !one.path.ends_with(".safetensors") && !one.path.ends_with(".bin")));
    let refused = user.fetch_as(base, Some(true)).await.unwrap_err().to_string();
    assert!(refused.contains("has no model.safetensors, only pickle files"), "{refused}");
    // 3. With them.
    hub.add("model.safetensors", &[7; 4000]);
    let (model, progress) = user.fetch_as(base, Some(true)).await.unwrap();
    assert_eq!(fs::read(model.folder.join("model.safetensors")).unwrap(), [7; 4000]);
    assert!(!model.folder.join("pytorch_model.bin").exists());
    assert_eq!((progress.done, progress.total), (2 + 8 + 4000, 2 + 8 + 4000));
    // 4. What the cache has is enough.
    let offline = user.with("HF_HUB_OFFLINE", "1");
    assert!(offline.fetch_as(base, Some(true)).await.is_ok());
}

#[tokio::test]
async fn a_hub_that_nobody_reaches_is_named_with_what_to_do() {
    let hub = Hub::start().await;
    // A port without a listener.
    let endpoint = "http://127.0.0.1:1";
    let user = User::of(&hub).with("HF_ENDPOINT", endpoint);
    let error = user.fetch("hf://acme/toy-sd").await.unwrap_err();
    assert!(matches!(error, Error::NotReached { .. }), "{error}");
    let text = error.to_string();
    for part in ["hf://acme/toy-sd", endpoint, "cannot be reached", "(tried 4 times", "HTTPS_PROXY"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[tokio::test]
async fn files_of_a_set_of_data_come_from_its_own_routes_into_its_own_cache() {
    let hub = Hub::start().await;
    let user = User::of(&hub);
    let location = ModelLocation::parse_pictures("hf://datasets/acme/toy-sd").unwrap();
    let ModelLocation::Hub(set) = location else { panic!("{location:?}") };
    let fetch = |user: &User| {
        let environment: Environment = user.variables.iter().cloned().collect();
        let cache = CacheOptions { folder: user.folder.path().join("ours"), most_bytes: 1 << 30 };
        let (sources, set) = (ModelSources::new(environment, cache, user.patience), set.clone());
        async move {
            let needed = |names: &[String]| match names.iter().any(|name| name == UNET) {
                true => Ok(vec![UNET.to_owned()]),
                false => Err("has no pictures".to_owned()),
            };
            sources.fetch_dataset(&set, &needed, &progress_channel().0).await
        }
    };
    let local = tokio::spawn(fetch(&user)).await.unwrap().unwrap();
    let cache = user.folder.path().join("hub/datasets--acme--toy-sd/snapshots");
    assert_eq!(local.folder, cache.join(COMMIT));
    assert_eq!(fs::read(local.folder.join(UNET)).unwrap(), hub.file(UNET));
    assert!(!local.folder.join("model_index.json").exists());
    let seen = hub.seen();
    assert!(seen.iter().any(|one| one.path == "/api/datasets/acme/toy-sd/revision/main"), "{seen:?}");
    // Without the hub, what is in the cache.
    let offline = fetch(&user.with("HF_HUB_OFFLINE", "1")).await.unwrap();
    assert_eq!(offline.folder, local.folder);
    assert!(hub.seen().is_empty());
}
