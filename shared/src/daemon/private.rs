//! What a daemon keeps is for its own user alone: what it makes, and what an earlier release left open.
//!
//! The process' umask is set before anything else is done. Each state folder has one list of what is in it, by which
//! files that an earlier release left open are closed.

use std::{
    ffi::CStr,
    fs::DirBuilder,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::DirBuilderExt as _,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fchmod, fstat, openat, statat},
    io::Errno,
    process::{geteuid, umask},
};
use tracing::{info, warn};

use crate::files::TEMPORARY_SUFFIX;

/// Of everybody on the machine but the owner.
const OTHERS: Mode = Mode::RWXG.union(Mode::RWXO);
/// A disk of its own has it.
const LOST_AND_FOUND: &str = "lost+found";
/// A shared folder, such as /tmp.
const STICKY: Mode = Mode::SVTX;

/// From now on whatever this process makes is for its own user alone, in whichever folder and whoever makes it, a library too,
/// and whatever umask the process was started with.
pub fn by_default() {
    umask(OTHERS);
}

/// Makes a folder for this user alone, and those above it, where it is missing. Blocks.
///
/// # Errors
/// The file system's.
pub fn make(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Takes from others on this machine what an earlier release, or somebody's umask, let them read of a daemon's folder, and says
/// so in the log. `names`: what the daemon keeps in it, one ending in `*` for all that begin so. Nothing else is touched, no link is followed, and what cannot be closed stops
/// nobody. The folder itself is closed where it has nothing else in it. Blocks.
pub fn close(folder: &Path, names: &[&str]) {
    match Closing::of(folder, names) {
        Ok(closing) => closing.say(folder),
        Err(error) => warn!("cannot see who may read {}: {error}", folder.display()),
    }
}

/// The outcome.
#[derive(Debug, Default, PartialEq, Eq)]
struct Closing {
    /// Files and folders that others could read.
    closed: u64,
    /// Why the folder itself stays open.
    open: Option<Open>,
    /// The first of those inside that could not be closed.
    failed: Option<(PathBuf, Errno)>,
}

#[derive(Debug, PartialEq, Eq)]
enum Open {
    /// It has this too, which no daemon keeps.
    Shared(String),
    /// It is another user's, or for everybody.
    NotOurs,
}

impl Closing {
    fn of(folder: &Path, names: &[&str]) -> Result<Self, Errno> {
        let top = openat(CWD, folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let about = fstat(&top)?;
        let ours = about.st_uid == geteuid().as_raw();
        // A mounted volume may belong to a group, with all in it.
        let mut closer = Closer {
            from: if ours { OTHERS } else { Mode::RWXO },
            closing: Self::default(),
            path: folder.to_owned(),
        };
        let mut kept = Vec::new();
        let mut foreign = None;
        for entry in Dir::read_from(&top)? {
            let entry = entry?;
            match entry.file_name().to_str() {
                Ok("." | ".." | LOST_AND_FOUND) => {}
                Ok(name) if is_kept(name, names) => kept.push(name.to_owned()),
                _ => foreign = Some(entry.file_name().to_string_lossy().into_owned()),
            }
        }
        // 1. First the folder: from then on nobody gets to what is in it.
        if closer.is_open(&about) {
            match foreign {
                None if ours && !mode(&about).contains(STICKY) => closer.shut(&top, &about)?,
                None => closer.closing.open = Some(Open::NotOurs),
                Some(name) => closer.closing.open = Some(Open::Shared(name)),
            }
        }
        // 2. What is in it. A folder that is closed was closed after all that is in it, so that nobody looks twice.
        for name in kept {
            let about = statat(&top, &name, AtFlags::SYMLINK_NOFOLLOW);
            if about.is_ok_and(|about| closer.is_open(&about)) {
                let name = std::ffi::CString::new(name).map_err(|_| Errno::INVAL)?;
                closer.entry(top.as_fd(), &name);
            }
        }
        Ok(closer.closing)
    }

    fn say(&self, folder: &Path) {
        let (shown, closed) = (folder.display(), self.closed);
        if closed > 0 {
            info!(
                closed,
                "{shown}: others on this machine could read this folder or files in it; they are for this user alone now"
            );
        }
        match &self.open {
            Some(Open::Shared(name)) => warn!(
                "others on this machine see the names in the state folder {shown}, not what is in the files; it was left so because it \
                 has {name:?} too: give the daemon a folder of its own (--state-dir), or close this one (chmod 700)"
            ),
            Some(Open::NotOurs) => warn!(
                "others on this machine see the names in the state folder {shown}, not what is in the files; it is another user's, or a \
                 shared one: give the daemon a folder of its own (--state-dir)"
            ),
            None => {}
        }
        if let Some((path, error)) = &self.failed {
            warn!(
                "others on this machine may read {} and what is in it, and this user cannot change that: {error}",
                path.display()
            );
        }
    }
}

/// Walks through what a daemon keeps.
struct Closer {
    /// From whom.
    from: Mode,
    closing: Closing,
    /// Where it is.
    path: PathBuf,
}

impl Closer {
    fn is_open(&self, about: &Stat) -> bool {
        let is_link = FileType::from_raw_mode(about.st_mode) == FileType::Symlink;
        !is_link && mode(about).intersects(self.from)
    }

    fn shut(&mut self, file: &OwnedFd, about: &Stat) -> Result<(), Errno> {
        if self.is_open(about) {
            fchmod(file, mode(about).difference(self.from))?;
            self.closing.closed += 1;
        }
        Ok(())
    }

    fn entry(&mut self, folder: BorrowedFd<'_>, name: &CStr) {
        self.path.push(name.to_string_lossy().as_ref());
        if let Err(error) = self.walk(folder, name)
            && self.closing.failed.is_none()
        {
            self.closing.failed = Some((self.path.clone(), error));
        }
        self.path.pop();
    }

    fn walk(&mut self, folder: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match openat(folder, name, flags, Mode::empty()) {
            // A link, a socket (which its maker closes), or what is gone meanwhile.
            Err(Errno::LOOP | Errno::NXIO | Errno::NOENT) => return Ok(()),
            file => file?,
        };
        let about = fstat(&file)?;
        match FileType::from_raw_mode(about.st_mode) {
            FileType::Directory => {
                for entry in Dir::read_from(&file)? {
                    let entry = entry?;
                    if ![c".", c".."].contains(&entry.file_name()) {
                        self.entry(file.as_fd(), entry.file_name());
                    }
                }
            }
            // Under another name, elsewhere, it is somebody's file.
            FileType::RegularFile if about.st_nlink == 1 => {}
            _ => return Ok(()),
        }
        self.shut(&file, &about)
    }
}

fn is_kept(name: &str, names: &[&str]) -> bool {
    let temporary = name.starts_with('.') && name.ends_with(TEMPORARY_SUFFIX);
    temporary
        || names
            .iter()
            .any(|kept| kept.strip_suffix('*').map_or(name == *kept, |begin| name.starts_with(begin)))
}

fn mode(about: &Stat) -> Mode {
    Mode::from_raw_mode(about.st_mode)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::{
            fs::{PermissionsExt as _, symlink},
            net::UnixListener,
        },
    };

    use super::*;

    const NAMES: [&str; 4] = ["data*", "contents", "ring.sock", "link"];

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn get(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    /// A state folder as an earlier release left it under umask 022.
    fn left_open() -> (tempfile::TempDir, PathBuf) {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("state");
        let part = folder.join("contents/ab");
        fs::create_dir_all(&part).unwrap();
        for folder in [&folder, &folder.join("contents"), &part] {
            set(folder, 0o755);
        }
        for (file, mode) in [(folder.join("database"), 0o644), (part.join("abcd"), 0o664)] {
            fs::write(&file, "x").unwrap();
            set(&file, mode);
        }
        (parent, folder)
    }

    #[test]
    fn what_an_earlier_release_left_open_is_closed_once() {
        let (_parent, folder) = left_open();
        set(&folder.join("contents/ab/abcd"), 0o444);
        assert_eq!(Closing::of(&folder, &NAMES), Ok(Closing { closed: 5, ..Closing::default() }));
        for (name, mode) in
            [("", 0o700), ("database", 0o600), ("contents/ab", 0o700), ("contents/ab/abcd", 0o400)]
        {
            assert_eq!(get(&folder.join(name)), mode, "{name}");
        }
        assert_eq!(Closing::of(&folder, &NAMES), Ok(Closing::default()));
        // A run that was killed half-way is completed by the next.
        set(&folder.join("contents"), 0o755);
        set(&folder.join("contents/ab/abcd"), 0o644);
        assert_eq!(Closing::of(&folder, &NAMES).map(|closing| closing.closed), Ok(2));
    }

    #[test]
    fn links_lead_nowhere_and_files_that_are_elsewhere_too_stay_as_they_are() {
        let (parent, folder) = left_open();
        let (model, other) = (parent.path().join("model"), parent.path().join("other"));
        fs::write(&model, "weights").unwrap();
        fs::create_dir(&other).unwrap();
        fs::hard_link(&model, folder.join("contents/model")).unwrap();
        symlink(&other, folder.join("contents/other")).unwrap();
        symlink(&other, folder.join("link")).unwrap();
        let _socket = UnixListener::bind(folder.join("ring.sock")).unwrap();
        for (path, mode) in [(&model, 0o644), (&other, 0o755), (&folder.join("ring.sock"), 0o666)] {
            set(path, mode);
        }
        assert_eq!(Closing::of(&folder, &NAMES), Ok(Closing { closed: 5, ..Closing::default() }));
        assert_eq!((get(&model), get(&other)), (0o644, 0o755));
    }

    #[test]
    fn a_folder_with_other_things_in_it_stays_open_but_not_what_daemons_keep() {
        let (_parent, folder) = left_open();
        fs::create_dir(folder.join(LOST_AND_FOUND)).unwrap();
        let theirs = folder.join("photos");
        fs::create_dir(&theirs).unwrap();
        set(&theirs, 0o755);
        let open = Some(Open::Shared("photos".to_owned()));
        assert_eq!(Closing::of(&folder, &NAMES), Ok(Closing { closed: 4, open, ..Closing::default() }));
        assert_eq!((get(&folder), get(&theirs), get(&folder.join("database"))), (0o755, 0o755, 0o600));
        fs::remove_dir(&theirs).unwrap();
        set(&folder, 0o1777);
        let open = Some(Open::NotOurs);
        assert_eq!(Closing::of(&folder, &NAMES), Ok(Closing { open, ..Closing::default() }));
        assert_eq!(get(&folder), 0o1777);
    }

    #[test]
    fn a_new_folder_is_for_its_user_alone() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("a/b");
        make(&folder).unwrap();
        assert_eq!((get(&folder), get(&parent.path().join("a"))), (0o700, 0o700));
        set(&folder, 0o750);
        make(&folder).unwrap();
        assert_eq!(Closing::of(&folder, &[]).map(|closing| closing.closed), Ok(1));
    }
}
