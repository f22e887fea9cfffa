use std::{fs::File, io::Write as _};

use super::shards::{Sample, Shard, read};

/// A member of a tar file.
type Member<'a> = (&'a str, &'a [u8]);

fn tar(members: &[Member<'_>]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, *bytes).unwrap();
    }
    archive.into_inner().unwrap()
}

fn of_bytes(bytes: &[u8], captions: Option<&str>) -> Result<Shard, String> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    // Read from its beginning, wherever it was written to.
    let file = File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file))).unwrap();
    read(file, captions).unwrap()
}

fn captions(members: &[Member<'_>], column: &str) -> Result<Vec<(String, Vec<String>)>, String> {
    let shard = of_bytes(&tar(members), Some(column))?;
    Ok(shard.samples.into_iter().map(|Sample { name, captions, .. }| (name, captions)).collect())
}

const CAT: Member<'_> = ("a.jpg", b"cat");

#[test]
fn members_of_one_key_belong_together_in_any_order() {
    let long = format!("{}/c.PNG", "folder".repeat(30));
    let members: &[Member<'_>] = &[
        ("b.webp", b"dog"),
        ("a.txt", b"\xef\xbb\xbfa cat\n"),
        CAT,
        ("b.json", b"{\"text\": [\"a dog\", \" \", \"brown\"], \"id\": 7}"),
        ("b.cls", b"3"),
        ("./c.jpg", b"c"),
        ("._a.jpg", b"macOS"),
        ("d.seg.png", b"segments"),
        ("README", b"words"),
        ("e.txt", b"of no picture"),
        (long.as_str(), b"long"),
    ];
    let bytes = tar(members);
    let shard = of_bytes(&bytes, Some("")).unwrap();
    let found: Vec<(&str, &[u8], Vec<&str>)> = shard
        .samples
        .iter()
        .map(|sample| {
            let begin = sample.offset as usize;
            let captions = sample.captions.iter().map(String::as_str).collect();
            (sample.name.as_str(), &bytes[begin..begin + sample.length as usize], captions)
        })
        .collect();
    let expected: [(&str, &[u8], Vec<&str>); 4] = [
        ("a.jpg", b"cat", vec!["a cat"]),
        ("b.webp", b"dog", vec!["a dog", "brown"]),
        ("c.jpg", b"c", vec![]),
        (long.as_str(), b"long", vec![]),
    ];
    assert_eq!(found, expected);
    assert_eq!(
        shard.skipped,
        (5, ["b.cls", "._a.jpg", "d.seg.png", "README", "e.txt"].map(str::to_owned).to_vec())
    );
    // Where no captions are wanted, none are read, however wrong they are.
    let unread = of_bytes(&tar(&[CAT, ("a.txt", b"\xff")]), None).unwrap();
    assert_eq!((unread.samples[0].captions.len(), unread.skipped.0), (0, 1));
}

#[test]
fn a_column_that_is_named_counts_more_than_a_text() {
    let json: Member<'_> = ("a.json", b"{\"caption\": \"a cat\", \"other\": \"a toy\"}");
    let text: Member<'_> = ("a.txt", b"a cat, sitting");
    let of = |members: &[Member<'_>], column| captions(members, column).map(|found| found[0].1.join("|"));
    assert_eq!(of(&[CAT, json, text], "").unwrap(), "a cat, sitting");
    assert_eq!(of(&[CAT, json, text], "other").unwrap(), "a toy");
    assert_eq!(of(&[CAT, text], "other").unwrap(), "a cat, sitting");
    assert_eq!(of(&[CAT, ("a.json", b"{\"text\": null}")], "").unwrap(), "");
    for (column, wanted) in [("", "no column \"text\""), ("words", "no column \"words\"")] {
        let refused = of(&[CAT, json], column).unwrap_err();
        assert!(refused.starts_with("a.json: has ") && refused.contains(wanted), "{refused}");
        assert!(refused.contains("\"caption\", \"other\" (see data.caption_column)"), "{refused}");
    }
}

#[test]
fn what_is_wrong_is_named_with_its_member() {
    let several = format!("{{\"text\": [{}]}}", vec!["\"a\""; 65].join(","));
    let long = vec![b'x'; 4097];
    let large = vec![b' '; (1 << 20) + 1];
    let wrong: &[(&[Member<'_>], &str)] = &[
        (&[CAT, CAT], "a.jpg: the tar file has two members of this name"),
        (&[CAT, ("a.png", b"cat")], "a.png: a.jpg is the same sample's"),
        (&[CAT, ("a.txt", b"a"), ("a.caption", b"b")], "a.caption: a.txt is the same sample's"),
        (&[("a.png", b"")], "a.png: it has 0 bytes"),
        (&[CAT, ("a.txt", b"caf\xe9")], "a.txt: it is not UTF-8 text"),
        (&[CAT, ("a.txt", &long)], "a.txt: it has 4097 bytes"),
        (&[CAT, ("a.json", b"\xff{}")], "a.json: it is not UTF-8 text"),
        (&[CAT, ("a.json", b"[1]")], "a.json: it is no JSON object"),
        (&[CAT, ("a.json", b"{\"text\": 7}")], "a.json: its \"text\" is neither"),
        (&[CAT, ("a.json", several.as_bytes())], "a.json: the picture has 65 captions"),
        (&[CAT, ("a.json", &large)], "a.json: it has 1048577 bytes"),
        (&[("a\u{202e}.png", b"x")], "its name: has U+202E"),
    ];
    for (members, problem) in wrong {
        let refused = captions(members, "").unwrap_err();
        assert!(refused.contains(problem), "{problem:?} is not in {refused:?}");
    }
}

#[test]
fn a_file_that_is_cut_short_anywhere_is_refused() {
    let bytes = tar(&[CAT, ("a.txt", b"a cat"), ("b.png", &[7; 1000])]);
    // Headers of 512 bytes, contents in blocks of 512, and two blocks of zeros, of which the first is needed.
    let end = 3 * 512 + 512 + 512 + 1024;
    assert_eq!(bytes.len(), end + 1024);
    for length in (0..end + 512).step_by(37).chain([512, 1024, 1536, 2048, 2560, end - 1, end, end + 511]) {
        let refused = of_bytes(&bytes[..length], Some("")).unwrap_err();
        let is_said = refused.contains("cut short") || refused.contains("broken");
        assert!(is_said, "{length}: {refused}");
    }
    assert_eq!(of_bytes(&bytes[..end + 512], Some("")).unwrap().samples.len(), 2);
    let mut broken = bytes.clone();
    broken[1024] ^= 1;
    assert!(of_bytes(&broken, None).unwrap_err().contains("broken one"));
    let packed = of_bytes(b"\x1f\x8b\x08 and more", None).unwrap_err();
    assert!(packed.contains("compressed with gzip"), "{packed}");
}

#[test]
fn names_are_not_read_without_end() {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::GNULongName);
    let name = vec![b'x'; 3 << 20];
    header.set_size(name.len() as u64);
    header.set_cksum();
    archive.append(&header, name.as_slice()).unwrap();
    let mut bytes = archive.into_inner().unwrap();
    bytes.truncate(bytes.len() - 1024);
    bytes.extend(tar(&[CAT]));
    let refused = of_bytes(&bytes, None).unwrap_err();
    assert!(refused.contains("more than 1 MiB of names"), "{refused}");
}
