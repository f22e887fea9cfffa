//! Contents in a folder: ranges, ages, room.

use super::*;

fn store() -> (tempfile::TempDir, Contents) {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { content_bytes: 1000, uploads: 2, ..Limits::default() };
    let contents = Contents::open(folder.path(), limits).unwrap();
    (folder, contents)
}

fn put(contents: &Contents, bytes: &[u8]) -> ContentHash {
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
    assert!(contents.upload(whole, 7, 0).unwrap().already_here());
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
