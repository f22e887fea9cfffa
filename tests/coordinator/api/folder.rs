//! A state folder of which a part is missing, empty, cut, garbage or old: whatever a start makes of it, the right part put
//! back gives all results back.

use std::fs::{self, File};
use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ringtune_coordinator::daemon::Error;
use ringtune_proto::v1::{self, JobState, download_request::Source};
use ringtune_shared::ids::ContentHash;
use sqlx::Connection as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use crate::{
    coordinator::Coordinator,
    soon,
    uploads::{chunk, header},
    worker::Worker,
};

const DATABASE: &str = "ringtune.sqlite";
/// Wanted by no job: once it is in the trash, the sweep of a start has finished.
const DECOY: &[u8] = b"nobody wants this";

/// A job with its result, which is a file of this name and content.
async fn finished(coordinator: &Coordinator, worker: &mut Worker, content: &[u8]) -> String {
    let id = coordinator.create(1).await.job_id;
    worker.prepare().await;
    let mut upload = header(content);
    upload.job_id = id.clone();
    upload.name = "learned_embeds.safetensors".to_owned();
    coordinator.upload(upload, vec![chunk(content)]).await.unwrap();
    worker.finish().await;
    worker.stopped(false).await;
    worker.heartbeat(Vec::new()).await;
    assert_eq!(coordinator.end(&id).await.state(), JobState::Succeeded);
    id
}

async fn result(coordinator: &Coordinator, job: &str) -> Result<Vec<u8>, tonic::Status> {
    let file = v1::JobFile { job_id: job.to_owned(), name: "learned_embeds.safetensors".to_owned() };
    let request = v1::DownloadRequest { source: Some(Source::JobFile(file)), ..Default::default() };
    Ok(coordinator.download(request).await?.1)
}

fn content(state: &Path, bytes: &[u8]) -> PathBuf {
    let name = ContentHash::of(bytes).to_string();
    state.join("contents/sha256").join(&name[..2]).join(name)
}

/// Of an ended coordinator: all that it stored is in the one file. Its connections may take a moment to close.
async fn into_one_file(state: &Path) {
    let log = state.join("ringtune.sqlite-wal");
    let closed = async {
        loop {
            // The last one to close a database moves the log into it.
            let options = SqliteConnectOptions::new().filename(state.join(DATABASE));
            let mut database = SqliteConnection::connect_with(&options).await.unwrap();
            sqlx::raw_sql("PRAGMA wal_checkpoint(PASSIVE)").execute(&mut database).await.unwrap();
            database.close().await.unwrap();
            if !log.exists() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon("a closed database", closed).await;
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_all(&entry.path(), &target),
            false => {
                fs::copy(entry.path(), &target).unwrap();
                let modified = entry.metadata().unwrap().modified().unwrap();
                File::options().append(true).open(&target).unwrap().set_modified(modified).unwrap();
            }
        }
    }
}

fn remove(path: &Path) {
    match path.is_dir() {
        true => fs::remove_dir_all(path).unwrap(),
        false => drop(fs::remove_file(path)),
    }
}

/// A state folder with two jobs and their results, as it was after the first and as it is now.
struct Folder {
    all: tempfile::TempDir,
    jobs: [String; 2],
}

const RESULTS: [&[u8]; 2] = [b"the first result", b"the second result"];

impl Folder {
    async fn build() -> Self {
        let all = tempfile::tempdir().unwrap();
        let now = all.path().join("now");
        let mut jobs = Vec::new();
        for (bytes, copy) in RESULTS.into_iter().zip(["old", "right"]) {
            let coordinator = Coordinator::start(&now).await;
            let mut worker = Worker::start(&coordinator, "host-a").await;
            jobs.push(finished(&coordinator, &mut worker, bytes).await);
            coordinator.upload(header(DECOY), vec![chunk(DECOY)]).await.unwrap();
            drop(worker);
            coordinator.stop().await;
            into_one_file(&now).await;
            let decoy = File::options().append(true).open(content(&now, DECOY)).unwrap();
            decoy.set_modified(SystemTime::UNIX_EPOCH).unwrap();
            copy_all(&now, &all.path().join(copy));
        }
        remove(&now);
        Self { all, jobs: jobs.try_into().unwrap() }
    }

    fn right(&self) -> PathBuf {
        self.all.path().join("right")
    }

    /// Starts a coordinator on the folder with `damage` done to `name`, which may refuse to, then puts the right one back and
    /// looks for all results.
    async fn play(&self, name: &str, damage: &str) -> Option<Error> {
        let state = tempfile::tempdir().unwrap();
        let (state, case) = (state.path(), format!("{name}: {damage}"));
        copy_all(&self.right(), state);
        let (hurt, right) = (state.join(name), self.right().join(name));
        spoil(&hurt, &self.all.path().join("old").join(name), damage);
        // 1. The start, and all that it lets go of.
        let refused = match Coordinator::try_start(state).await {
            Err(error) => Some(error),
            Ok(coordinator) => {
                gone(&format!("{case}: a sweep"), &content(state, DECOY)).await;
                coordinator.stop().await;
                into_one_file(state).await;
                None
            }
        };
        // 2. The right part.
        remove(&hurt);
        if name == DATABASE {
            remove(&state.join("ringtune.sqlite-wal"));
            remove(&state.join("ringtune.sqlite-shm"));
        }
        match right.is_dir() {
            true => copy_all(&right, &hurt),
            false => drop(fs::copy(&right, &hurt).unwrap()),
        }
        let coordinator = Coordinator::try_start(state).await;
        let coordinator = coordinator.map_err(|error| panic!("{case}: {error}")).unwrap();
        for (job, bytes) in self.jobs.iter().zip(RESULTS) {
            let found = result(&coordinator, job).await;
            assert_eq!(found.unwrap_or_else(|error| panic!("{case}: {error}")), bytes, "{case}");
        }
        coordinator.stop().await;
        refused
    }
}

/// Waits until this file is not there.
async fn gone(what: &str, path: &Path) {
    let gone = async {
        while path.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(what, gone).await;
}

/// Damages a file.
fn spoil(path: &Path, old: &Path, damage: &str) {
    let length = fs::metadata(path).map_or(0, |about| about.len());
    match damage {
        "removed" => remove(path),
        "emptied" if path.is_dir() => {
            remove(path);
            fs::create_dir(path).unwrap();
        }
        "emptied" => fs::write(path, b"").unwrap(),
        "cut" => File::options().write(true).open(path).unwrap().set_len(length / 2).unwrap(),
        "garbage" => fs::write(path, vec![0xA5; usize::try_from(length).unwrap()]).unwrap(),
        "older" => {
            remove(path);
            match old.is_dir() {
                true => copy_all(old, path),
                false => drop(fs::copy(old, path).unwrap()),
            }
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn no_start_removes_what_a_later_one_with_the_right_folder_wants() {
    let folder = Folder::build().await;
    let second = content(Path::new(""), RESULTS[1]);
    let second = second.to_str().unwrap().to_owned();
    let files = [DATABASE, "contents/store-id", "lock", &second];
    for name in files {
        for damage in ["removed", "emptied", "cut", "garbage", "older"] {
            if damage == "older" && name == second {
                continue;
            }
            let refused = folder.play(name, damage).await;
            // A start without its database, or with one that is damaged, says so and what to do.
            let wanted = name == DATABASE && damage != "older";
            assert_eq!(refused.is_some(), wanted, "{name}: {damage}: {refused:?}");
            if let Some(error) = refused {
                let text = error.to_string();
                assert!(error.needs_repair() && text.contains(DATABASE), "{name}: {damage}: {text}");
                assert!(text.contains("backup"), "{name}: {damage}: {text}");
            }
        }
    }
    for name in ["contents", "contents/sha256", "contents/partial"] {
        for damage in ["removed", "emptied", "older"] {
            // The decoy is gone with these, so that nothing says when the sweep has been: there is nothing to sweep either.
            folder.play(name, damage).await;
        }
    }
}

#[tokio::test]
async fn what_was_deleted_comes_back_with_a_database_from_before() {
    let folder = Folder::build().await;
    let state = folder.right();
    let coordinator = Coordinator::start(&state).await;
    // A content asked for in the last day stays.
    let kept = content(&state, RESULTS[0]);
    File::options().append(true).open(&kept).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let delete = v1::DeleteJobRequest { job_id: folder.jobs[0].clone() };
    coordinator.jobs().delete_job(delete).await.unwrap();
    coordinator.stop().await;
    // Contents held in the first start's sweep go in the next.
    let coordinator = Coordinator::start(&state).await;
    gone("the deleted job's file", &kept).await;
    coordinator.stop().await;
    into_one_file(&state).await;
    fs::copy(folder.all.path().join("old").join(DATABASE), state.join(DATABASE)).unwrap();
    let coordinator = Coordinator::start(&state).await;
    assert_eq!(result(&coordinator, &folder.jobs[0]).await.unwrap(), RESULTS[0]);
    coordinator.stop().await;
}

#[tokio::test]
async fn damage_that_is_met_later_ends_the_coordinator_which_says_where_it_is() {
    let folder = Folder::build().await;
    let state = folder.right();
    let coordinator = Coordinator::start(&state).await;
    let path = state.join(DATABASE);
    let pages = fs::metadata(&path).unwrap().len() / 4096;
    let mut database = File::options().write(true).open(&path).unwrap();
    // Behind the first one: what the coordinator has in memory of it is as it was.
    database.seek(std::io::SeekFrom::Start(4096)).unwrap();
    for _ in 1..pages {
        database.write_all(&[0xA5; 4096]).unwrap();
    }
    let request = v1::ListStepsRequest { job_id: folder.jobs[0].clone(), ..Default::default() };
    let failed = coordinator.jobs().list_steps(request).await.unwrap_err();
    // What the coordinator itself reads may meet it first: then the connection breaks, or nobody listens any more.
    use tonic::Code::{DataLoss, Unavailable, Unknown};
    assert!(matches!(failed.code(), DataLoss | Unavailable | Unknown), "{failed}");
    let error = coordinator.ended().await.unwrap_err();
    let text = error.to_string();
    assert!(error.needs_repair() && text.contains(&*path.to_string_lossy()), "{text}");
    assert!(text.contains("put a backup back") && text.contains(".recover"), "{text}");
}
