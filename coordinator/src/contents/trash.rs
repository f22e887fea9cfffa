//! What was let go of, kept for days: whoever finds that it was wanted after all gets it back.
//!
//! ```text
//! ROOT/trash/2026-11-29/deleted/abcd…    somebody deleted it that day (UTC)
//! ROOT/trash/2026-11-29/unwanted/abcd…   no job of the database wanted it that day
//! ```
//!
//! Nothing is copied: a content moves here and back by a rename, so that it takes no more room than before.
//!
//! Nothing is lost by a start, whatever is missing, old or damaged: a content that no job of the database wants is
//! moved here, and returns at the next start if a job wants it. A content in the trash is removed for good after its
//! days. Where room is needed, contents that somebody deleted are removed first, and the others once they have been
//! here for a whole day.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use prost_types::Timestamp;
use ringtune_shared::ids::ContentHash;

use super::Error;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Why a content was let go of, which decides when it may go for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetGo {
    /// Somebody said so: it makes room as soon as that is needed.
    Deleted,
    /// No job wants it, as far as the database knows, which may be the wrong one: it makes room only after a whole day.
    Unwanted,
}

impl LetGo {
    const ALL: [Self; 2] = [Self::Deleted, Self::Unwanted];

    fn folder(self) -> &'static str {
        match self {
            Self::Deleted => "deleted",
            Self::Unwanted => "unwanted",
        }
    }

    /// Whether contents that were let go of on the day that began at `day` may make room.
    fn makes_room(self, day: SystemTime, now: SystemTime) -> bool {
        match self {
            Self::Deleted => true,
            Self::Unwanted => now >= day + 2 * DAY,
        }
    }
}

/// The trash of a folder of contents. Blocks.
#[derive(Debug)]
pub(super) struct Trash {
    root: PathBuf,
}

/// One content in it.
#[derive(Debug)]
struct Item {
    hash: ContentHash,
    path: PathBuf,
}

impl Trash {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// Where a content goes that is let go of now; the folder is made.
    pub(super) fn place(&self, why: LetGo, now: SystemTime) -> Result<PathBuf, Error> {
        let day = self.root.join(name_of(now));
        let folder = day.join(why.folder());
        if folder.is_dir() {
            return Ok(folder);
        }
        fs::create_dir_all(&folder).map_err(Error::io("create", folder.clone()))?;
        for parent in [&day, &self.root] {
            sync(parent)?;
        }
        if let Some(contents) = self.root.parent() {
            sync(contents)?;
        }
        Ok(folder)
    }

    /// Where a content lies here, the newest first. Of the days there are few.
    pub(super) fn find(&self, hash: &ContentHash) -> Result<Vec<PathBuf>, Error> {
        let mut found = Vec::new();
        for (_, day) in self.days()?.into_iter().rev() {
            let places = LetGo::ALL.map(|why| day.join(why.folder()).join(hash.to_string()));
            found.extend(places.into_iter().filter(|path| path.is_file()));
        }
        Ok(found)
    }

    /// All contents here, each once.
    pub(super) fn all(&self) -> Result<BTreeSet<ContentHash>, Error> {
        let mut all = BTreeSet::new();
        for (_, day) in self.days()? {
            for why in LetGo::ALL {
                all.extend(items(&day.join(why.folder()))?.into_iter().map(|item| item.hash));
            }
        }
        Ok(all)
    }

    /// Removes what was let go of at least `days` whole days ago. How many contents, and their bytes.
    pub(super) fn remove_old(&self, now: SystemTime, days: u32) -> Result<(u64, u64), Error> {
        let mut removed = (0, 0);
        for (day, folder) in self.days()? {
            if now < day + DAY + DAY * days {
                continue;
            }
            for why in LetGo::ALL {
                for item in items(&folder.join(why.folder()))? {
                    removed = add(removed, remove(&item.path)?);
                }
            }
            remove_empty(&folder);
        }
        Ok(removed)
    }

    /// Removes what may make room until `bytes` are free, the oldest first: what somebody deleted before what the coordinator
    /// found unwanted. How many contents, and their bytes.
    pub(super) fn make_room(&self, bytes: u64, now: SystemTime) -> Result<(u64, u64), Error> {
        let mut removed = (0, 0);
        let days = self.days()?;
        for why in LetGo::ALL {
            for (_, folder) in days.iter().filter(|(day, _)| why.makes_room(*day, now)) {
                for item in items(&folder.join(why.folder()))? {
                    if removed.1 >= bytes {
                        return Ok(removed);
                    }
                    removed = add(removed, remove(&item.path)?);
                }
                remove_empty(folder);
            }
        }
        Ok(removed)
    }

    /// The bytes of everything here.
    pub(super) fn bytes(&self) -> Result<u64, Error> {
        let mut bytes = 0;
        for (_, day) in self.days()? {
            for why in LetGo::ALL {
                for item in items(&day.join(why.folder()))? {
                    bytes += super::length(&item.path)?.unwrap_or(0);
                }
            }
        }
        Ok(bytes)
    }

    /// The days that there are, the oldest first. What is not named as a day is nobody's business here.
    fn days(&self) -> Result<Vec<(SystemTime, PathBuf)>, Error> {
        let mut days: Vec<(SystemTime, PathBuf)> = paths(&self.root)?
            .into_iter()
            .filter_map(|path| Some((begin_of(path.file_name()?.to_str()?)?, path)))
            .collect();
        days.sort();
        Ok(days)
    }
}

fn add(one: (u64, u64), bytes: Option<u64>) -> (u64, u64) {
    bytes.map_or(one, |bytes| (one.0 + 1, one.1 + bytes))
}

/// What is in a folder; nothing where there is none.
pub(super) fn paths(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(Error::io("read", folder))?,
    };
    entries.map(|entry| Ok(entry.map_err(Error::io("read", folder))?.path())).collect()
}

fn items(folder: &Path) -> Result<Vec<Item>, Error> {
    let found = paths(folder)?.into_iter().filter_map(|path| {
        let hash = path.file_name()?.to_str()?.parse().ok()?;
        Some(Item { hash, path })
    });
    Ok(found.collect())
}

/// Its bytes; none where it was not there any more.
fn remove(path: &Path) -> Result<Option<u64>, Error> {
    let Some(bytes) = super::length(path)? else { return Ok(None) };
    match fs::remove_file(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        removed => removed.map(|()| Some(bytes)).map_err(Error::io("remove", path)),
    }
}

/// A day in which nothing is left. One in which something is, stays.
fn remove_empty(day: &Path) {
    for why in LetGo::ALL {
        let _ = fs::remove_dir(day.join(why.folder()));
    }
    let _ = fs::remove_dir(day);
}

pub(super) fn sync(folder: &Path) -> Result<(), Error> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(Error::io("sync", folder))
}

/// 2026-11-29: the day in UTC, so that none is there twice.
fn name_of(now: SystemTime) -> String {
    Timestamp::from(now).to_string().chars().take(10).collect()
}

/// When the day of this name began; none: it is no name of a day.
fn begin_of(name: &str) -> Option<SystemTime> {
    let midnight: Timestamp = format!("{name}T00:00:00Z").parse().ok()?;
    let begin = SystemTime::try_from(midnight).ok()?;
    (name_of(begin) == name).then_some(begin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_names_that_are_read_back() {
        let late = SystemTime::UNIX_EPOCH + Duration::from_secs(1_796_000_000);
        let name = name_of(late);
        let begin = begin_of(&name).unwrap();
        assert!(begin <= late && late < begin + DAY, "{name}");
        for other in ["lost+found", "2026-13-01", "2026-02-30", "2026-11", ""] {
            assert_eq!(begin_of(other), None, "{other}");
        }
    }

    #[test]
    fn what_is_unwanted_stays_for_a_whole_day_and_what_was_deleted_does_not() {
        let now = SystemTime::now();
        let day = |days_ago: u32| begin_of(&name_of(now - DAY * days_ago)).unwrap();
        let makes_room = |why: LetGo| [0, 1, 2].map(|days_ago| why.makes_room(day(days_ago), now));
        assert_eq!(makes_room(LetGo::Deleted), [true; 3]);
        assert_eq!(makes_room(LetGo::Unwanted), [false, false, true]);
    }
}
