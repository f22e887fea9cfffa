//! Backups of a folder with jobs and contents, whole, cut and changed.

use std::io::Write as _;

use super::*;
use crate::{
    contents::{Contents, Limits},
    store::{SqliteStore, Store as _},
};

/// A state folder with three contents, of which two belong to a job.
struct State {
    folder: tempfile::TempDir,
    contents: Contents,
}

const JOB: &str = "6a1d1b3e-0000-4000-8000-000000000001";

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

impl State {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let contents = Contents::open(&folder.path().join(CONTENTS), Limits::default()).unwrap();
        let state = Self { folder, contents };
        let named = [state.keep(b"one"), state.keep(b"two")];
        state.keep(b"not yet of a job");
        block_on(async {
            let store = SqliteStore::open(&state.folder.path().join(DATABASE)).await.unwrap();
            store.close().await;
        });
        for hash in named {
            state.sql(&format!(
                "INSERT INTO content_refs (sha256, job_id, use) VALUES ('{hash}', '{JOB}', 'embedding')"
            ));
        }
        state
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn keep(&self, bytes: &[u8]) -> ContentHash {
        crate::contents::tests::put(&self.contents, bytes)
    }

    fn sql(&self, statement: &str) {
        use sqlx::{ConnectOptions as _, Connection as _};
        block_on(async {
            let options = sqlx::sqlite::SqliteConnectOptions::new().filename(self.path().join(DATABASE));
            let mut connection = options.connect().await.unwrap();
            sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned())).execute(&mut connection).await.unwrap();
            connection.close().await.unwrap();
        });
    }
}

fn quiet() -> impl FnMut(u64, u64) {
    |_, _| ()
}

#[test]
fn what_is_put_back_is_what_was_saved() {
    let state = State::new();
    let there = tempfile::tempdir().unwrap();
    let (backup, restored) = (there.path().join("backup"), there.path().join("restored"));
    let mut told = Vec::new();
    let manifest = take(state.path(), &backup, &mut |count, bytes| told.push((count, bytes))).unwrap();
    assert_eq!((manifest.contents, manifest.bytes), (3, 6 + b"not yet of a job".len() as u64));
    assert_eq!(told.last(), Some(&(3, manifest.bytes)));
    assert!(manifest.missing.is_empty() && manifest.schema > 0);

    assert_eq!(restore(&backup, &restored, &mut quiet()).unwrap(), manifest);
    assert_eq!(contents::list(&restored).unwrap(), contents::list(state.path()).unwrap());
    let kept = block_on(crate::store::inspect_database(&restored.join(DATABASE))).unwrap();
    assert_eq!(kept.contents.len(), 2);
    // A coordinator opens it.
    block_on(async {
        let store = SqliteStore::open(&restored.join(DATABASE)).await.unwrap();
        assert!(store.recover().await.unwrap().jobs.is_empty());
        store.close().await;
    });
}

#[test]
fn a_file_that_a_job_misses_is_named_and_does_not_keep_the_rest_back() {
    let state = State::new();
    let (gone, damaged) = (ContentHash::of(b"one"), ContentHash::of(b"two"));
    fs::remove_file(content_path(state.path(), gone)).unwrap();
    fs::write(content_path(state.path(), damaged), "tow").unwrap();
    let there = tempfile::tempdir().unwrap();
    let backup = there.path().join("backup");
    let manifest = take(state.path(), &backup, &mut quiet()).unwrap();
    let mut expected = vec![gone, damaged];
    expected.sort();
    assert_eq!((manifest.missing.clone(), manifest.contents), (expected, 1));
    assert_eq!(restore(&backup, &there.path().join("restored"), &mut quiet()).unwrap(), manifest);
}

#[test]
fn folders_that_are_somebodys_are_left_alone() {
    let state = State::new();
    let there = tempfile::tempdir().unwrap();
    // 1. Nothing to save, nowhere to save it.
    let nothing = take(there.path(), &there.path().join("b"), &mut quiet()).unwrap_err();
    assert!(matches!(&nothing, Error::NoState(_)) && nothing.is_usage(), "{nothing}");
    assert!(!there.path().join("b").exists(), "a folder was made for nothing");
    fs::write(there.path().join("letter"), "x").unwrap();
    let taken = take(state.path(), there.path(), &mut quiet()).unwrap_err();
    assert!(matches!(taken, Error::NotEmpty(_)), "{taken}");
    // 2. A state folder that has something in it, or a coordinator on it.
    let backup = there.path().join("backup");
    take(state.path(), &backup, &mut quiet()).unwrap();
    let full = restore(&backup, state.path(), &mut quiet()).unwrap_err();
    assert!(matches!(full, Error::StateNotEmpty(_)), "{full}");
    let running = there.path().join("running");
    let _coordinator = crate::state_folder::StateFolder::open(&running).unwrap();
    let locked = restore(&backup, &running, &mut quiet()).unwrap_err();
    assert!(matches!(locked, Error::Locked(_)), "{locked}");
}

/// Makes a backup, spoils it, and gives what `restore` says.
fn spoiled(spoil: impl FnOnce(&Path)) -> Error {
    let state = State::new();
    let there = tempfile::tempdir().unwrap();
    let (backup, restored) = (there.path().join("backup"), there.path().join("restored"));
    take(state.path(), &backup, &mut quiet()).unwrap();
    spoil(&backup);
    let error = restore(&backup, &restored, &mut quiet()).unwrap_err();
    assert!(is_empty(&restored, &["lock"]).unwrap(), "{error}: something is left in the folder");
    error
}

#[test]
fn a_backup_that_is_cut_changed_or_of_another_time_is_refused_and_leaves_nothing() {
    let one = ContentHash::of(b"one");
    let said = |error: Error, words: &str| assert!(error.to_string().contains(words), "{error}");
    said(spoiled(|folder| fs::remove_file(folder.join(MANIFEST)).unwrap()), "it has no backup.json");
    said(spoiled(|folder| fs::write(folder.join(MANIFEST), "{\"format\":1").unwrap()), "backup.json: EOF");
    let newer = "{\"format\":7,\"version\":\"9.1.0\"}";
    said(spoiled(|folder| fs::write(folder.join(MANIFEST), newer).unwrap()), "install Ringtune 9.1.0");
    let longer = |folder: &Path| {
        let mut database = fs::File::options().append(true).open(folder.join(DATABASE)).unwrap();
        database.write_all(b"x").unwrap();
    };
    said(spoiled(longer), "ringtune.sqlite is not what backup.json says");
    said(
        spoiled(|folder| fs::write(content_path(folder, one), "eno").unwrap()),
        &format!("{one} is damaged"),
    );
    said(
        spoiled(|folder| fs::remove_file(content_path(folder, one)).unwrap()),
        &format!("{one}, which a job names"),
    );
    // A database of a newer schema, as a newer coordinator's backup has it.
    let newer_schema = |folder: &Path| {
        let state = State { folder: tempfile::tempdir().unwrap(), contents: State::new().contents };
        fs::copy(folder.join(DATABASE), state.path().join(DATABASE)).unwrap();
        state.sql("PRAGMA user_version = 99");
        fs::copy(state.path().join(DATABASE), folder.join(DATABASE)).unwrap();
        let text = fs::read_to_string(folder.join(MANIFEST)).unwrap();
        let mut manifest: Manifest = serde_json::from_str(&text).unwrap();
        manifest.database_sha256 = hash_of_file(&folder.join(DATABASE)).unwrap();
        fs::write(folder.join(MANIFEST), serde_json::to_string(&manifest).unwrap()).unwrap();
    };
    said(spoiled(newer_schema), "has schema 99");
}

#[test]
fn who_signs_goes_along_and_stays_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let (state, to, back) = (State::new(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let folder = state.path().join(AUTHORITY);
    let now = std::time::SystemTime::now();
    let mut made = ringtune_security::Authority::open_or_make(&folder, now).unwrap();
    made.rotate(now).unwrap();
    fs::write(folder.join(".tmp123"), "half").unwrap();
    let to = to.path().join("backup");
    let manifest = take(state.path(), &to, &mut |_, _| ()).unwrap();
    assert_eq!(manifest.authority.keys().collect::<Vec<_>>(), ["root-0001.pem", "root-0002.pem"]);
    let into = back.path().join("state");
    restore(&to, &into, &mut |_, _| ()).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for folder in [to.join(AUTHORITY), into.join(AUTHORITY)] {
        assert_eq!((mode(&folder), mode(&folder.join("root-0001.pem"))), (0o700, 0o600));
    }
    let read = ringtune_security::Authority::open_or_make(&into.join(AUTHORITY), now).unwrap();
    assert_eq!((read.cluster(), read.hash(), read.numbers()), (made.cluster(), made.hash(), made.numbers()));
    // One that was cut, or is not there, is no backup.
    let root = to.join(AUTHORITY).join("root-0002.pem");
    for damage in [Some("short"), None] {
        match damage {
            Some(text) => fs::write(&root, text).unwrap(),
            None => fs::remove_file(&root).unwrap(),
        }
        let again = back.path().join("again");
        let error = restore(&to, &again, &mut |_, _| ()).unwrap_err();
        assert!(matches!(error, Error::NotWhole { .. }), "{error}");
        assert!(is_empty(&again, &["lock"]).unwrap());
    }
}

#[test]
fn a_full_disk_is_the_targets_and_a_damaged_database_the_sources() {
    use crate::store::{CopyFailed, Error as Store};
    let state = State::new();
    let database = state.path().join(DATABASE);
    let said = |failed: CopyFailed, words: &Path| {
        let text = Error::copy(&database, Path::new("/mnt/b/ringtune.sqlite"))(failed).to_string();
        assert!(text.contains(&*words.to_string_lossy()), "{text}");
    };
    said(CopyFailed::Target(Store::Full), Path::new("/mnt/b/ringtune.sqlite is full"));
    said(CopyFailed::Source(Store::Corrupt("x".to_owned())), &database);
    // Whoever cannot be written to.
    let there = tempfile::tempdir().unwrap();
    let nowhere = there.path().join("missing/copy");
    let failed = block_on(crate::store::copy_database(&database, &nowhere)).unwrap_err();
    assert!(matches!(failed, CopyFailed::Target(_)), "{failed:?}");
    let failed = block_on(crate::store::copy_database(&nowhere, &there.path().join("copy"))).unwrap_err();
    assert!(matches!(failed, CopyFailed::Source(_)), "{failed:?}");
    // /dev/full takes no byte.
    let content = content_path(state.path(), ContentHash::of(b"one"));
    let (mut source, mut full) = (fs::File::open(&content).unwrap(), fs::File::create("/dev/full").unwrap());
    let copied = contents::transfer(&mut source, &content, &mut full, Path::new("/dev/full"));
    assert!(matches!(&copied, Err(Error::Full(path)) if path == Path::new("/dev/full")), "{copied:?}");
}

#[test]
fn a_backup_that_fails_leaves_nothing() {
    let state = State::new();
    let there = tempfile::tempdir().unwrap();
    let to = there.path().join("backup");
    let database = state.path().join(DATABASE);
    let mut bytes = fs::read(&database).unwrap();
    let length = bytes.len();
    bytes[4096..length].fill(0xA5);
    fs::write(&database, bytes).unwrap();
    let failed = take(state.path(), &to, &mut quiet()).unwrap_err();
    assert!(matches!(&failed, Error::Store { path, .. } if *path == database), "{failed}");
    assert!(is_empty(&to, &[]).unwrap(), "{failed}");
}
