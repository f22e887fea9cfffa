//! Opens what a state folder keeps, if its parts belong together: the database and the contents beside it.
//!
//! What is lost is often only put aside: a damaged database was moved away, a disk is not mounted, a backup was put back. A
//! coordinator that went on with what is left would find that no job wants the contents, or that all of them are missing. So
//! both say which store they are of, and what does not fit is refused with what to do, before anything is changed.

use std::{
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::Duration,
};

use ringtune_shared::{
    files::{FileError, write_atomically},
    ids::{ContentHash, StoreId},
};
use tokio::task::JoinError;
use tracing::{info, warn};

use crate::{
    contents::{self, Contents, Limits},
    state_folder::StateFolder,
    store::{self, Examined, SqliteStore, Store as _, access::AccessStore as _, examine},
};

/// How long a start looks for damage in the database.
const PATIENCE: Duration = Duration::from_secs(20);
/// Contents of the trash that are asked for together.
const PORTION: usize = 256;
/// The most bytes of a folder's id that are read.
const LONGEST_ID: u64 = 100;

/// Why the parts of a state folder are not opened. Nothing was changed, then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There are contents, and nothing that knows whose they are.
    #[error(
        "{} holds files of jobs, and there is no database {} that knows them (or it is empty). Nothing was changed. Put the \
         database back with its -wal file, from where it was moved to or from a backup (docs/operating.md: When the \
         database is damaged or gone). To begin anew, without the jobs, give another folder with --state-dir, or keep the \
         files for their days in the trash: `ringtune-coordinator adopt-contents --state-dir {}`",
        contents.display(), database.display(), folder.display()
    )]
    NoDatabase {
        /// The database that is not there.
        database: PathBuf,
        /// The folder of contents.
        contents: PathBuf,
        /// The state folder.
        folder: PathBuf,
    },
    /// What was stored last is there, and not what it belongs to.
    #[error(
        "{} holds what was stored last, and its database {} is not there (or it is empty). Nothing was changed. Put the \
         database back beside it (docs/operating.md: When the database is damaged or gone), or move this file away",
        log.display(), database.display()
    )]
    LogAlone {
        /// The log.
        log: PathBuf,
        /// The database that is not there.
        database: PathBuf,
    },
    /// The contents are those of another database.
    #[error(
        "{} says that these files are of the store {theirs}, and the database {} is of {}. Nothing was changed. Put the two \
         together that belong together, from a backup if need be. If this database is to go on with these files, and those \
         that its jobs do not want may go: `ringtune-coordinator adopt-contents --state-dir {}`",
        mark.display(), database.display(),
        ours.map_or("an earlier version that gave no ids".to_owned(), |id| format!("the store {id}")), folder.display()
    )]
    OtherStore {
        /// Which store the contents say that they are of.
        theirs: StoreId,
        /// Where they say it.
        mark: PathBuf,
        /// Which store the database is of.
        ours: Option<StoreId>,
        /// The database.
        database: PathBuf,
        /// The state folder.
        folder: PathBuf,
    },
    /// The database names files, and there are none.
    #[error(
        "the jobs of the database {} have files, and {} has none. Nothing was changed. Put the folder back: is its disk \
         mounted? To go on without the files: `ringtune-coordinator adopt-contents --state-dir {}`",
        database.display(), contents.display(), folder.display()
    )]
    NoContents {
        /// The database.
        database: PathBuf,
        /// The folder of contents.
        contents: PathBuf,
        /// The state folder.
        folder: PathBuf,
    },
    /// The database.
    #[error("{}: {source}{}", database.display(), remedy(source))]
    Database {
        /// Its file.
        database: PathBuf,
        /// What is wrong with it.
        source: store::Error,
    },
    /// The folder of contents.
    #[error(transparent)]
    Contents(#[from] contents::Error),
    /// Which store the contents are of could not be read.
    #[error("cannot read {}: {source}", mark.display())]
    Mark {
        /// The file that says it.
        mark: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It could not be written.
    #[error(transparent)]
    Write(#[from] FileError),
    /// The process ends.
    #[error("opening the state folder was interrupted: {0}")]
    Task(#[from] JoinError),
}

impl Error {
    /// Somebody has to put the state folder in order first: another start finds the same.
    pub fn needs_repair(&self) -> bool {
        match self {
            Self::NoDatabase { .. }
            | Self::LogAlone { .. }
            | Self::OtherStore { .. }
            | Self::NoContents { .. } => true,
            Self::Database { source, .. } => matches!(source, store::Error::Corrupt(_)),
            _ => false,
        }
    }
}

/// Names the database that failed.
pub(crate) fn in_database(path: &Path) -> impl FnOnce(store::Error) -> Error {
    move |source| Error::Database { database: path.to_owned(), source }
}

/// What to do about a database.
pub(crate) fn remedy(error: &store::Error) -> &'static str {
    match error {
        store::Error::Corrupt(_) => {
            ". Nobody goes on with it. Copy the state folder first; then put a backup back, or save with sqlite3's .recover what \
             can be read (docs/operating.md: When the database is damaged or gone)"
        }
        store::Error::Full => ". A start needs a megabyte there: make room, as by `rm -r contents/trash`",
        _ => "",
    }
}

/// What a folder of contents says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Folder {
    /// Which store it is of; none: nobody said so, or it cannot be read.
    id: Option<StoreId>,
    /// Whether there are contents in it, or in its trash.
    has_files: bool,
}

/// What does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Misfit {
    NoDatabase,
    OtherStore { theirs: StoreId, ours: Option<StoreId> },
    NoContents,
}

/// Decides whether a database and a folder of contents belong together.
fn judge(database: Examined, folder: Folder) -> Result<(), Misfit> {
    match (database, folder) {
        (Examined::Nothing, Folder { has_files: true, .. }) => Err(Misfit::NoDatabase),
        // A new cluster.
        (Examined::Nothing, Folder { has_files: false, .. }) => Ok(()),
        (Examined::Database { id: Some(ours), .. }, Folder { id: Some(theirs), .. }) if ours == theirs => {
            Ok(())
        }
        // Nothing can be lost.
        (Examined::Database { names_files: false, .. }, Folder { has_files: false, .. }) => Ok(()),
        (Examined::Database { id: ours, .. }, Folder { id: Some(theirs), .. }) => {
            Err(Misfit::OtherStore { theirs, ours })
        }
        // A folder of a version that gave no ids, or one whose mark was lost.
        (Examined::Database { .. }, Folder { id: None, has_files: true }) => Ok(()),
        (Examined::Database { id: Some(_), .. }, Folder { id: None, has_files: false }) => {
            Err(Misfit::NoContents)
        }
        // A version that gave no ids went on without its files, too.
        (Examined::Database { id: None, .. }, Folder { id: None, has_files: false }) => Ok(()),
    }
}

/// What a state folder keeps.
pub struct Opened {
    /// Jobs and their history.
    pub store: SqliteStore,
    /// Files.
    pub contents: Contents,
}

/// Opens the database and the contents of a state folder, where they belong together or there is nothing yet. What jobs want
/// and the trash has is taken back.
///
/// # Errors
/// See [`Error`].
pub async fn open(state: &StateFolder, limits: Limits) -> Result<Opened, Error> {
    open_within(state, limits, PATIENCE).await
}

async fn open_within(state: &StateFolder, limits: Limits, patience: Duration) -> Result<Opened, Error> {
    let database = look(state, patience).await?;
    let folder = folder_of(state).await?;
    judge(database, folder).map_err(|misfit| refused(state, misfit))?;
    open_anyway(state, limits, folder.id).await
}

/// Opens both though they may not belong together, and has them say from now on that they do. Where the cluster's own CA is
/// gone, its certificates are forgotten, so that a start makes another one.
///
/// # Errors
/// See [`Error`].
pub async fn adopt(state: &StateFolder, limits: Limits) -> Result<Opened, Error> {
    look(state, PATIENCE).await?;
    let opened = open_anyway(state, limits, folder_of(state).await?.id).await?;
    if !state.has_authority() {
        opened.store.forget_before(u32::MAX).await.map_err(in_database(&state.database()))?;
    }
    Ok(opened)
}

/// Looks at the database's file.
async fn look(state: &StateFolder, patience: Duration) -> Result<Examined, Error> {
    let path = state.database();
    let found = examine(&path, patience).await.map_err(in_database(&path))?;
    let log = log_of(&path);
    if found == Examined::Nothing && has_bytes(&log) && !has_bytes(&path) {
        return Err(Error::LogAlone { log, database: path });
    }
    Ok(found)
}

fn has_bytes(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|about| about.len() > 0)
}

fn log_of(database: &Path) -> PathBuf {
    database.with_extension("sqlite-wal")
}

async fn open_anyway(state: &StateFolder, limits: Limits, known: Option<StoreId>) -> Result<Opened, Error> {
    let (database, root) = (state.database(), state.contents());
    let store = SqliteStore::open(&database).await.map_err(in_database(&database))?;
    let id = store.id();
    let contents = tokio::task::spawn_blocking(move || {
        let contents = Contents::open(&root, limits)?;
        if known != Some(id) {
            mark(&root, id)?;
        }
        Ok::<_, Error>(contents)
    })
    .await??;
    take_back(&store, &contents, &database).await?;
    Ok(Opened { store, contents })
}

/// Writes into a folder of contents which store it is of. Blocks.
///
/// # Errors
/// The file system's.
pub(crate) fn mark(contents: &Path, id: StoreId) -> Result<(), FileError> {
    write_atomically(&mark_of(contents), format!("{id}\n").as_bytes())
}

fn mark_of(contents: &Path) -> PathBuf {
    contents.join("store-id")
}

async fn folder_of(state: &StateFolder) -> Result<Folder, Error> {
    let root = state.contents();
    tokio::task::spawn_blocking(move || {
        Ok(Folder { id: read_mark(&root)?, has_files: Contents::has_files(&root)? })
    })
    .await?
}

/// The store id in a file. None: no file, or no id in it. Blocks.
fn read_mark(contents: &Path) -> Result<Option<StoreId>, Error> {
    let mark = mark_of(contents);
    let read = fs::File::open(&mark).and_then(|file| {
        let mut text = Vec::new();
        file.take(LONGEST_ID).read_to_end(&mut text)?;
        Ok(text)
    });
    let text = match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|source| Error::Mark { mark: mark.clone(), source })?,
    };
    let id = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok());
    if id.is_none() {
        warn!(file = %mark.display(), "the file that says which store these files are of cannot be read: it is written anew");
    }
    Ok(id)
}

fn refused(state: &StateFolder, misfit: Misfit) -> Error {
    let (database, contents, folder) = (state.database(), state.contents(), state.path().to_owned());
    match misfit {
        Misfit::NoDatabase => Error::NoDatabase { database, contents, folder },
        Misfit::OtherStore { theirs, ours } => {
            Error::OtherStore { theirs, mark: mark_of(&contents), ours, database, folder }
        }
        Misfit::NoContents => Error::NoContents { database, contents, folder },
    }
}

/// Takes out of the trash what jobs of this database want: they are those of a database that was put back, or the trash was
/// filled beside another one.
async fn take_back(store: &SqliteStore, contents: &Contents, database: &Path) -> Result<(), Error> {
    let all = contents.clone();
    let trashed = tokio::task::spawn_blocking(move || all.trashed()).await??;
    let mut back = 0_u64;
    for portion in trashed.chunks(PORTION) {
        let unwanted = store.unwanted(portion).await.map_err(in_database(database))?;
        let wanted: Vec<ContentHash> =
            portion.iter().copied().filter(|hash| !unwanted.contains(hash)).collect();
        let contents = contents.clone();
        back += tokio::task::spawn_blocking(move || {
            let mut back = 0;
            for hash in wanted {
                back += u64::from(contents.take_back(&hash)?);
            }
            Ok::<_, contents::Error>(back)
        })
        .await??;
    }
    if back > 0 {
        info!(contents = back, "took files that jobs want back out of the trash");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> (Vec<Examined>, Vec<Folder>, [StoreId; 2]) {
        let ids = [StoreId::new(), StoreId::new()];
        let mut databases = vec![Examined::Nothing];
        let mut folders = Vec::new();
        for id in [None, Some(ids[0]), Some(ids[1])] {
            for files in [false, true] {
                databases.push(Examined::Database { id, names_files: files });
                folders.push(Folder { id, has_files: files });
            }
        }
        (databases, folders, ids)
    }

    #[test]
    fn nothing_is_opened_together_that_says_otherwise_or_would_lose_all() {
        let (databases, folders, _) = all();
        let (mut opened, mut refused) = (0, 0);
        for database in &databases {
            for folder in &folders {
                let judged = judge(*database, *folder);
                match judged {
                    Ok(()) => opened += 1,
                    Err(_) => refused += 1,
                }
                let (id, names_files) = match *database {
                    Examined::Nothing => (None, false),
                    Examined::Database { id, names_files } => (id, names_files),
                };
                // 1. Contents beside nothing that knows them.
                if *database == Examined::Nothing {
                    assert_eq!(judged.is_err(), folder.has_files, "{database:?} {folder:?}");
                    continue;
                }
                // 2. Two that say that they belong together, or between which nothing can be lost, are opened.
                let same = id.is_some() && id == folder.id;
                if same || (!names_files && !folder.has_files) {
                    assert_eq!(judged, Ok(()), "{database:?} {folder:?}");
                    continue;
                }
                // 3. Two that say that they do not are not.
                if folder.id.is_some() {
                    assert!(judged.is_err(), "{database:?} {folder:?}");
                }
                // 4. A folder that says nothing is taken over with what is in it.
                if folder.id.is_none() && folder.has_files {
                    assert_eq!(judged, Ok(()), "{database:?} {folder:?}");
                }
            }
        }
        assert!(opened > 5 && refused > 5, "{opened} {refused}");
    }

    #[test]
    fn a_database_with_an_id_does_not_go_on_without_all_of_its_files() {
        let (_, _, [one, _]) = all();
        let gone = Folder { id: None, has_files: false };
        let known = Examined::Database { id: Some(one), names_files: true };
        assert_eq!(judge(known, gone), Err(Misfit::NoContents));
        assert_eq!(judge(Examined::Database { id: None, names_files: true }, gone), Ok(()));
    }

    async fn opened(folder: &Path) -> Result<Opened, Error> {
        let state = StateFolder::open(folder).unwrap();
        let opened = open_within(&state, Limits::default(), Duration::ZERO).await?;
        opened.store.close().await;
        Ok(opened)
    }

    #[tokio::test]
    async fn a_start_that_is_refused_changes_nothing_and_names_the_file_and_the_way_back() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path();
        let contents = opened(state).await.unwrap().contents;
        let mut upload = contents.upload(ContentHash::of(b"result"), 6, 0).unwrap();
        upload.write(b"result").unwrap();
        upload.close().unwrap();
        let (database, aside) = (state.join("ringtune.sqlite"), state.join("aside"));
        fs::rename(&database, &aside).unwrap();
        for empty in [false, true] {
            if empty {
                fs::write(&database, b"").unwrap();
            }
            let error = opened(state).await.err().unwrap();
            let text = error.to_string();
            assert!(error.needs_repair() && text.contains(&*database.to_string_lossy()), "{text}");
            assert!(text.contains("adopt-contents --state-dir") && text.contains("backup"), "{text}");
            assert!(!has_bytes(&database), "{text}");
        }
        // Its log would be thrown away.
        fs::write(log_of(&database), b"commits").unwrap();
        assert!(matches!(opened(state).await, Err(Error::LogAlone { .. })));
        assert_eq!(fs::read(log_of(&database)).unwrap(), b"commits");
        fs::remove_file(log_of(&database)).unwrap();
        // Another cluster's.
        let other = tempfile::tempdir().unwrap();
        opened(other.path()).await.unwrap();
        fs::copy(other.path().join("ringtune.sqlite"), &database).unwrap();
        let error = opened(state).await.err().unwrap();
        assert!(matches!(error, Error::OtherStore { .. }) && error.needs_repair(), "{error}");
        // Only a deliberate act ties the two, and the right one comes back the same way.
        let adopted = adopt(&StateFolder::open(state).unwrap(), Limits::default()).await.unwrap();
        adopted.store.close().await;
        opened(state).await.unwrap();
        fs::rename(&aside, &database).unwrap();
        assert!(matches!(opened(state).await, Err(Error::OtherStore { .. })));
    }

    #[tokio::test]
    async fn a_mark_that_is_lost_or_damaged_is_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let id = opened(folder.path()).await.unwrap().store.id();
        let mark = folder.path().join("contents/store-id");
        for damage in [Some(&b"\xff\x00garbage"[..]), Some(b""), None] {
            match damage {
                Some(bytes) => fs::write(&mark, bytes).unwrap(),
                None => fs::remove_file(&mark).unwrap(),
            }
            opened(folder.path()).await.unwrap();
            assert_eq!(fs::read_to_string(&mark).unwrap(), format!("{id}\n"));
        }
    }

    #[tokio::test]
    async fn a_damaged_database_is_refused_with_its_name_and_the_ways_back() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::open(folder.path()).unwrap();
        open(&state, Limits::default()).await.unwrap().store.close().await;
        let database = state.database();
        let whole = fs::read(&database).unwrap();
        let pages = whole.len() / 4096;
        let mut found = 0;
        for page in 0..pages {
            let mut damaged = whole.clone();
            damaged[page * 4096..(page + 1) * 4096].fill(0xA5);
            fs::write(&database, &damaged).unwrap();
            let Err(error) = open(&state, Limits::default()).await else { continue };
            let text = error.to_string();
            assert!(error.needs_repair(), "page {page}: {text}");
            assert!(text.contains("ringtune.sqlite: ") && text.contains(".recover"), "{text}");
            found += 1;
        }
        // In pages that nothing is in there is nothing to damage: the header says how many they are.
        let free = u32::from_be_bytes(whole[36..40].try_into().unwrap()) as usize;
        assert!(free < pages / 2 && found + free >= pages, "{found} of {pages} pages, {free} free");
        fs::write(&database, &whole).unwrap();
        // A large one is looked at for a while only.
        open_within(&state, Limits::default(), Duration::ZERO).await.unwrap();
    }
}
