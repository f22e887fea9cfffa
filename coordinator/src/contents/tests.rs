//! Contents in a folder: ranges, ages, room.

use super::*;

fn store() -> (tempfile::TempDir, Contents) {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { content_bytes: 1000, uploads: 2, ..Limits::default() };
    let contents = Contents::open(folder.path(), limits).unwrap();
    (folder, contents)
}

/// Keeps a content.
pub(crate) fn put(contents: &Contents, bytes: &[u8]) -> ContentHash {
    let hash = ContentHash::of(bytes);
    let mut upload = contents.upload(hash, bytes.len() as u64, 0).unwrap();
    upload.write(bytes).unwrap();
    assert!(upload.close().unwrap().complete);
    hash
}

#[test]
fn ranges_are_read_in_chunks() {
    let (_folder, contents) = store();
    let hash = put(&contents, b"0123456789");
    let mut range = contents.read(&hash, 3, Some(5)).unwrap();
    assert_eq!(range.content_size, 10);
    let mut chunks = Vec::new();
    loop {
        let chunk = range.next_chunk(2).unwrap();
        if chunk.is_empty() {
            break;
        }
        chunks.push(String::from_utf8(chunk).unwrap());
    }
    assert_eq!(chunks, ["34", "56", "7"]);
    assert!(matches!(contents.read(&hash, 11, None), Err(Error::Range { offset: 11, size: 10 })));
    assert!(matches!(contents.read(&ContentHash::of(b"x"), 0, None), Err(Error::NotFound(_))));
}

#[test]
fn a_removed_content_is_gone() {
    let (_folder, contents) = store();
    let hash = put(&contents, b"abc");
    contents.remove(&hash).unwrap();
    contents.remove(&hash).unwrap();
    assert_eq!(contents.committed(&hash).unwrap(), Committed { size: 0, complete: false });
}

#[test]
fn only_contents_that_nobody_touched_are_old() {
    let (_folder, contents) = store();
    let (idle, used) = (put(&contents, b"idle"), put(&contents, b"used"));
    let later = SystemTime::now() + Duration::from_secs(100);
    let path = contents.shared.whole(&idle);
    File::open(path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    contents.touch(&used).unwrap();
    assert_eq!(contents.older(later, Duration::from_secs(1000)).unwrap(), [idle]);
    let is_older = |hash| contents.is_older(hash, later, Duration::from_secs(1000)).unwrap();
    assert_eq!([is_older(&idle), is_older(&used), is_older(&ContentHash::of(b"x"))], [true, false, false]);
    assert!(matches!(contents.touch(&ContentHash::of(b"x")), Err(Error::NotFound(_))));
}

#[test]
fn what_nobody_asked_for_is_old_from_the_start() {
    let (_folder, contents) = store();
    let hash = put(&contents, b"a job's own");
    assert_eq!(contents.older(SystemTime::now(), Duration::from_secs(1000)).unwrap(), [hash]);
}

#[test]
fn what_is_not_whole_is_not_absent() {
    let (_folder, contents) = store();
    let hash = ContentHash::of(b"part");
    assert!(contents.is_absent(&hash).unwrap());
    let mut upload = contents.upload(hash, 4, 0).unwrap();
    upload.write(b"pa").unwrap();
    upload.close().unwrap();
    assert!(!contents.is_absent(&hash).unwrap());
    let mut upload = contents.upload(hash, 4, 2).unwrap();
    upload.write(b"rt").unwrap();
    upload.close().unwrap();
    assert!(!contents.is_absent(&hash).unwrap());
    contents.remove(&hash).unwrap();
    assert!(contents.is_absent(&hash).unwrap());
}

#[test]
fn folders_are_there_before_contents() {
    let (folder, contents) = store();
    assert_eq!(fs::read_dir(folder.path().join("sha256")).unwrap().count(), 256);
    drop(contents);
    Contents::open(folder.path(), Limits::default()).unwrap();
}

#[test]
fn all_contents_together_have_a_limit_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let room = RoomLimits { all_contents: 10, left_free: 0 };
    let limits = Limits { room, ..Limits::default() };
    let contents = Contents::open(folder.path(), limits).unwrap();
    let first = put(&contents, b"123456");
    let second = ContentHash::of(b"abcde");
    assert!(matches!(contents.upload(second, 5, 0), Err(Error::Quota { given: 5, taken: 6, limit: 10 })));
    // A part counts, and what was promised to an upload is given back with it.
    let mut upload = contents.upload(ContentHash::of(b"abcd"), 4, 0).unwrap();
    upload.write(b"ab").unwrap();
    assert!(matches!(contents.upload(ContentHash::of(b"x"), 1, 0), Err(Error::Quota { taken: 10, .. })));
    drop(upload);
    contents.upload(ContentHash::of(b"x"), 2, 0).unwrap();
    drop(contents);
    let contents = Contents::open(folder.path(), limits).unwrap();
    assert!(matches!(contents.upload(second, 5, 0), Err(Error::Quota { taken: 8, .. })));
    contents.remove(&first).unwrap();
    contents.upload(second, 5, 0).unwrap();
    // What is here takes no more room when it comes again.
    let whole = put(&contents, b"1234567");
    assert!(contents.upload(whole, 7, 0).unwrap().close().unwrap().complete);
}

#[test]
fn only_old_uploads_that_nobody_works_on_are_dropped() {
    let (_folder, contents) = store();
    let (idle, busy) = (ContentHash::of(b"idle"), ContentHash::of(b"busy"));
    contents.upload(idle, 4, 0).unwrap().close().unwrap();
    let mut first = contents.upload(idle, 4, 0).unwrap();
    first.write(b"id").unwrap();
    first.close().unwrap();
    let mut held = contents.upload(busy, 4, 0).unwrap();
    held.write(b"bu").unwrap();
    let later = SystemTime::now() + Duration::from_secs(100);
    assert_eq!(contents.drop_abandoned(later, Duration::from_secs(1000)).unwrap(), 0);
    assert_eq!(contents.drop_abandoned(later, Duration::from_secs(50)).unwrap(), 1);
    held.write(b"sy").unwrap();
    assert!(held.close().unwrap().complete);
}

const DAY: Duration = Duration::from_secs(24 * 3600);

#[test]
fn what_was_let_go_of_comes_back_whole_or_not_at_all() {
    let (folder, contents) = store();
    let [one, two] = [put(&contents, b"one"), put(&contents, b"two")];
    let now = SystemTime::now();
    assert_eq!(contents.let_go(&[one, two, ContentHash::of(b"x")], LetGo::Unwanted, now).unwrap(), 2);
    assert!(contents.is_absent(&one).unwrap());
    // After a restart, too.
    drop(contents);
    let contents = Contents::open(folder.path(), Limits::default()).unwrap();
    let mut expected = [one, two];
    expected.sort();
    assert_eq!(contents.trashed().unwrap(), expected);
    assert!(contents.take_back(&one).unwrap());
    assert!(contents.committed(&one).unwrap().complete);
    // A second time: it lies there twice, and the newer one is damaged.
    put(&contents, b"two");
    contents.let_go(&[two], LetGo::Deleted, now + 3 * DAY).unwrap();
    let copies = contents.shared.trash.find(&two).unwrap();
    assert_eq!(copies.len(), 2);
    fs::write(&copies[0], b"tow").unwrap();
    assert!(contents.take_back(&two).unwrap());
    assert_eq!(contents.read(&two, 0, None).unwrap().next_chunk(9).unwrap(), b"two");
    contents.remove(&two).unwrap();
    assert!(!contents.take_back(&two).unwrap(), "what is damaged came back");
}

#[test]
fn the_trash_is_emptied_by_age_and_never_sooner_than_said() {
    let (_folder, contents) = store();
    let hash = put(&contents, b"old");
    let now = SystemTime::now();
    contents.let_go(&[hash], LetGo::Deleted, now).unwrap();
    assert_eq!(contents.empty_trash(now + 7 * DAY - Duration::from_secs(1)).unwrap(), (0, 0));
    assert_eq!(contents.empty_trash(now + 8 * DAY).unwrap(), (1, 3));
    assert!(contents.trashed().unwrap().is_empty());
    // A clock that was set back empties nothing.
    let hash = put(&contents, b"new");
    contents.let_go(&[hash], LetGo::Deleted, now + 900 * DAY).unwrap();
    assert_eq!(contents.empty_trash(now).unwrap(), (0, 0));
}

#[test]
fn the_trash_makes_room_for_uploads_the_oldest_first_and_what_is_unwanted_after_a_day() {
    let folder = tempfile::tempdir().unwrap();
    let room = RoomLimits { all_contents: 12, left_free: 0 };
    let contents = Contents::open(folder.path(), Limits { room, ..Limits::default() }).unwrap();
    let now = SystemTime::now();
    let [old, new, unwanted] = [b"old ", b"new ", b"none"].map(|bytes| put(&contents, bytes));
    contents.let_go(&[old], LetGo::Deleted, now - DAY).unwrap();
    contents.let_go(&[new], LetGo::Deleted, now).unwrap();
    contents.let_go(&[unwanted], LetGo::Unwanted, now - DAY).unwrap();
    let left = || contents.trashed().unwrap().len();
    put(&contents, b"a");
    assert_eq!(left(), 2);
    assert!(contents.shared.trash.find(&old).unwrap().is_empty(), "the newer one went first");
    put(&contents, b"1234567");
    assert_eq!(left(), 1);
    let full = contents.upload(ContentHash::of(b"x"), 1, 0).unwrap_err();
    assert!(matches!(full, Error::Quota { taken: 12, .. }), "{full}");
    // It counts after a restart, too, and goes a day later.
    drop(contents);
    let contents = Contents::open(folder.path(), Limits { room, ..Limits::default() }).unwrap();
    assert!(matches!(contents.upload(ContentHash::of(b"x"), 1, 0), Err(Error::Quota { taken: 12, .. })));
    assert_eq!(contents.make_room(1, now).unwrap(), 0);
    assert_eq!(contents.make_room(1, now + 2 * DAY).unwrap(), 4);
    put(&contents, b"x");
}
