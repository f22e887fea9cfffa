//! Archives in the pax format (POSIX.1-2017, pax, "ustar Interchange Format"): what stands before each file, and behind it. Pure.

use std::fmt::Write as _;

/// What an archive is made of.
const BLOCK: usize = 512;
/// Two empty blocks.
pub(super) const END: &[u8] = &[0; 2 * BLOCK];
/// Bytes of a name in a header.
const NAME: usize = 100;
/// The largest size that a header holds: 11 octal digits.
const LARGEST: u64 = 0o777_7777_7777;

/// A file of an archive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry<'a> {
    /// Its folder and its name.
    pub(super) path: &'a str,
    pub(super) size: u64,
    /// Seconds since 1970.
    pub(super) modified: u64,
}

/// What stands before a file's bytes. Everybody may read it, and its owner write it.
pub(super) fn before(entry: Entry<'_>) -> Vec<u8> {
    let mut records = String::new();
    if !entry.path.is_ascii() || entry.path.len() > NAME {
        record(&mut records, "path", entry.path);
    }
    if entry.size > LARGEST {
        record(&mut records, "size", &entry.size.to_string());
    }
    let mut written = Vec::new();
    if !records.is_empty() {
        let size = records.len() as u64;
        written.extend(header(Entry { path: "pax", size, modified: entry.modified }, b'x'));
        written.extend(records.as_bytes());
        written.extend(behind(size));
    }
    written.extend(header(entry, b'0'));
    written
}

/// What stands behind a file's bytes, so that the next header begins a block.
pub(super) fn behind(size: u64) -> &'static [u8] {
    let over = (size % BLOCK as u64) as usize;
    if over == 0 { &[] } else { &END[..BLOCK - over] }
}

/// "LENGTH KEY=VALUE\n", where the length counts its own digits.
fn record(records: &mut String, key: &str, value: &str) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length < rest + length.to_string().len() {
        length += 1;
    }
    let _ = writeln!(records, "{length} {key}={value}");
}

fn header(entry: Entry<'_>, kind: u8) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    // Programs that know no records read the beginning of it.
    let name = entry.path.bytes().map(|byte| if byte.is_ascii() { byte } else { b'_' });
    block.iter_mut().zip(name.take(NAME)).for_each(|(place, byte)| *place = byte);
    let mut put = |at: usize, text: &str| {
        block[at..].iter_mut().zip(text.bytes()).for_each(|(place, byte)| *place = byte);
    };
    put(100, "0000644");
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{:011o}", entry.size.min(LARGEST)));
    put(136, &format!("{:011o}", entry.modified.min(LARGEST)));
    // The sum is made with spaces in its own place.
    put(148, "        ");
    put(257, "ustar\0");
    put(263, "00");
    block[156] = kind;
    let sum: u32 = block.iter().copied().map(u32::from).sum();
    let sum = format!("{sum:06o}\0 ");
    block[148..].iter_mut().zip(sum.bytes()).for_each(|(place, byte)| *place = byte);
    block
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn other_programs_read_what_is_written() {
        let long = format!("stars/{}.safetensors", "a".repeat(240));
        let files =
            [("stars/a.png", 5_usize), ("stars/empty", 0), ("stars/bär😀.txt", 512), (long.as_str(), 513)];
        let mut archive = Vec::new();
        for (path, size) in files {
            let size_of = size as u64;
            archive.extend(before(Entry { path, size: size_of, modified: 1_700_000_000 }));
            archive.extend(vec![b'x'; size]);
            archive.extend(behind(size_of));
            assert_eq!(archive.len() % BLOCK, 0, "{path}");
        }
        archive.extend(END);
        let mut read = tar::Archive::new(archive.as_slice());
        let found: Vec<(String, usize)> = read
            .entries()
            .unwrap()
            .map(|entry| {
                let mut entry = entry.unwrap();
                assert_eq!(
                    (entry.header().mode().unwrap(), entry.header().mtime().unwrap()),
                    (0o644, 1_700_000_000)
                );
                let (path, mut bytes) = (entry.path().unwrap().to_str().unwrap().to_owned(), Vec::new());
                entry.read_to_end(&mut bytes).unwrap();
                assert!(bytes.iter().all(|byte| *byte == b'x'));
                (path, bytes.len())
            })
            .collect();
        assert_eq!(found, files.map(|(path, size)| (path.to_owned(), size)));
    }

    #[test]
    fn a_record_counts_its_own_length() {
        for length in [1, 85, 86, 87, 88, 89, 90, 91, 980, 985, 986, 987, 988, 989, 990] {
            let mut records = String::new();
            record(&mut records, "path", &"n".repeat(length));
            let said: usize = records.split(' ').next().unwrap().parse().unwrap();
            assert_eq!(said, records.len(), "{length}");
        }
    }

    #[test]
    fn a_file_larger_than_a_header_can_say_has_a_record() {
        let size = LARGEST + 1;
        let written = before(Entry { path: "large", size, modified: 0 });
        let text = String::from_utf8_lossy(&written).into_owned();
        assert!(text.contains(&format!(" size={size}\n")), "{text}");
        assert_eq!(before(Entry { path: "large", size: LARGEST, modified: 0 }).len(), BLOCK);
    }
}
