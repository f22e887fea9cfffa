//! Metadata files and files of pictures that are whole, cut short, and broken: no panic, no crash, bounded memory and time.
//!
//! The crate ringtune-fuzzing (tests/fuzzing) says how they are run for longer.

#![allow(clippy::unwrap_used, reason = "a test ends where something is missing")]

use std::{
    fs::{self, File},
    path::Path as FilePath,
    sync::Arc,
};

use parquet::{
    basic::{Compression, Encoding, ZstdLevel},
    data_type::{ByteArray, ByteArrayType},
    file::{properties::WriterProperties, writer::SerializedFileWriter},
    schema::parser::parse_message_type,
};
use ringtune_fuzzing::{Path, as_it_is, words};
use ringtune_tables::{
    captions::{FolderCaptions, open_regular},
    pictures::PictureTable,
    shards,
};

const PICTURES: [&str; 3] = ["a.png", "b.png", "c.png"];

/// What such a file says of the pictures.
fn captions(folder: &FilePath, name: &str, bytes: &[u8]) -> Result<Vec<Vec<String>>, String> {
    fs::write(folder.join(name), bytes).unwrap();
    let open = |name: &str| open_regular(&folder.join(name));
    let found = FolderCaptions::new(folder, PICTURES.into_iter(), "", &open);
    let of = |captions: FolderCaptions<'_>| PICTURES.iter().map(|picture| captions.of(picture)).collect();
    found.and_then(of).map_err(|error| error.to_string())
}

/// Texts, and the levels that tell lists apart.
type Column<'a> = (&'a [&'a str], Option<&'a [i16]>, Option<&'a [i16]>);

/// The three pictures in two row groups: with two captions, none, and an empty list.
fn table(compression: Compression, encoding: Encoding, dictionary: bool) -> Vec<u8> {
    let schema = "message rows { required binary file_name (UTF8); optional group text (LIST) { repeated group list { \
        optional binary element (UTF8); } } }";
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .set_dictionary_enabled(dictionary)
        .set_encoding(encoding)
        .build();
    let groups: [[Column<'_>; 2]; 2] = [
        [(&PICTURES[..2], None, None), (&["a cat", "red"], Some(&[3, 3, 0]), Some(&[0, 1, 0]))],
        [(&PICTURES[2..], None, None), (&[], Some(&[1]), Some(&[0]))],
    ];
    written(schema, properties, &groups)
}

/// A .parquet file of these row groups.
fn written<const COLUMNS: usize>(
    schema: &str,
    properties: WriterProperties,
    groups: &[[Column<'_>; COLUMNS]],
) -> Vec<u8> {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::new(properties)).unwrap();
    for columns in groups {
        let mut group = writer.next_row_group().unwrap();
        for (texts, definitions, repetitions) in columns {
            let texts: Vec<ByteArray> = texts.iter().map(|text| (*text).into()).collect();
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<ByteArrayType>().write_batch(&texts, *definitions, *repetitions).unwrap();
            column.close().unwrap();
        }
        group.close().unwrap();
    }
    writer.close().unwrap();
    bytes
}

/// Reads files that are whole, which say the same, and what is made of them.
fn fuzz(name: &'static str, file: &str, valid: Vec<Vec<u8>>, list: &'static str, most_bytes: u64) {
    let folder = tempfile::tempdir().unwrap();
    for bytes in &valid {
        let first = if file.ends_with(".csv") { &["a cat"][..] } else { &["a cat", "red"] };
        assert_eq!(captions(folder.path(), file, bytes).unwrap(), [first, &[], &[]]);
    }
    let read = Box::new(|bytes: &[u8]| captions(folder.path(), file, bytes).is_ok());
    Path { name, valid, words: words(list), mend: as_it_is, most_bytes, read }
        .fuzz(env!("CARGO_TARGET_TMPDIR"));
}

#[test]
fn tables() {
    let zstd = Compression::ZSTD(ZstdLevel::default());
    let valid = vec![
        table(Compression::UNCOMPRESSED, Encoding::PLAIN, false),
        table(Compression::SNAPPY, Encoding::PLAIN, true),
        table(zstd, Encoding::DELTA_BYTE_ARRAY, false),
        table(Compression::UNCOMPRESSED, Encoding::DELTA_LENGTH_BYTE_ARRAY, false),
    ];
    let folder = tempfile::tempdir().unwrap();
    for length in 0..valid[0].len() {
        let cut = captions(folder.path(), "metadata.parquet", &valid[0][..length]).unwrap_err();
        assert!(cut.contains("metadata.parquet"), "{length}: {cut}");
    }
    let list = "PAR1|text|file_name|a.png|\u{15}\u{4}|\u{0}\u{0}\u{0}\u{7f}";
    fuzz("metadata-table", "metadata.parquet", valid, list, 192 << 20);
}

#[test]
fn lines() {
    let plain = "{\"file_name\": \"a.png\", \"text\": [\"a cat\", \"red\"], \"id\": [1, {\"a\": null}]}\n\n\
        {\"text\": null, \"file_name\": \"b.png\"}\r\n{\"file_name\":\"c.png\",\"text\":\" \"}";
    let list = "\"file_name\":|\"text\":|{|}|[|]|\\u|\\ud83d|null|\n|\r|1e999|\u{feff}|../|a.png|b.png";
    fuzz("metadata-lines", "metadata.jsonl", vec![plain.into()], list, 64 << 20);
}

#[test]
fn comma_separated() {
    let plain = "\u{feff}id,file_name,text\r\n1,a.png,\"a\ncat\"\r\n2,c.png,\n";
    let list = "file_name|text|,|\"|\"\"|\n|\r|\u{feff}|../|a.png|b.png";
    fuzz("metadata-csv", "metadata.csv", vec![plain.into()], list, 64 << 20);
}

/// Writes a file, and opens it.
fn opened(folder: &FilePath, bytes: &[u8]) -> File {
    let path = folder.join("file");
    fs::write(&path, bytes).unwrap();
    File::open(path).unwrap()
}

/// Two pictures with captions, one of them under a long name.
fn shard(new_header: fn() -> tar::Header) -> Vec<u8> {
    let long = format!("{}/b.jpg", "folder".repeat(40));
    let members: [(&str, &[u8]); 5] = [
        ("a.png", b"a picture"),
        ("a.txt", b"a cat"),
        ("a.json", b"{\"text\": [\"a cat\", \"red\"], \"id\": 1}"),
        (&long, &[7; 700]),
        ("README", b"words"),
    ];
    let mut archive = tar::Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = new_header();
        header.set_size(bytes.len() as u64);
        // Names that fit into no header of this kind come in another one before it.
        archive.append_data(&mut header, name, bytes).unwrap();
    }
    archive.into_inner().unwrap()
}

/// Makes the checksums of headers fit them, as far as their sizes lead to the next.
fn mend_tar(mut bytes: Vec<u8>) -> Vec<u8> {
    let mut begin = 0;
    while let Some(header) = bytes.get_mut(begin..begin + 512) {
        if header.iter().all(|byte| *byte == 0) {
            // The end of an archive has no checksum.
            break;
        }
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let size = String::from_utf8_lossy(&header[124..135]).into_owned();
        let size = usize::from_str_radix(size.trim_matches([' ', '\0']), 8).unwrap_or(0);
        begin += 512 + size.min(bytes.len()).next_multiple_of(512);
    }
    bytes
}

#[test]
fn tar_shards() {
    let folder = tempfile::tempdir().unwrap();
    let list = |bytes: &[u8]| shards::read(opened(folder.path(), bytes), Some("")).unwrap();
    let valid = vec![shard(tar::Header::new_gnu), shard(tar::Header::new_ustar)];
    for bytes in &valid {
        let found = list(bytes).unwrap();
        assert_eq!((found.samples.len(), found.skipped.0), (2, 1));
        assert_eq!(found.samples[0].captions, ["a cat"]);
    }
    let words =
        words("ustar|././@LongLink|a.png|a.txt|{\"text\":|]|00000000000|77777777777|\u{0}\u{0}\u{0}|L|x|g|5");
    let read = Box::new(|bytes: &[u8]| list(bytes).is_ok());
    Path { name: "tar-shards", valid, words, mend: mend_tar, most_bytes: 64 << 20, read }
        .fuzz(env!("CARGO_TARGET_TMPDIR"));
}

/// Pictures and captions of two row groups.
fn pictures(compression: Compression, dictionary: bool) -> Vec<u8> {
    let schema = "message rows { optional group image { optional binary bytes; optional binary path (UTF8); } \
        optional binary text (UTF8); }";
    let properties =
        WriterProperties::builder().set_compression(compression).set_dictionary_enabled(dictionary).build();
    let groups: [[Column<'_>; 3]; 2] = [
        [
            (&["picture 1", "picture 2"], Some(&[2, 2]), None),
            (&["1.png"], Some(&[2, 1]), None),
            (&["a cat"], Some(&[1, 0]), None),
        ],
        [(&["picture 3"], Some(&[2]), None), (&[], Some(&[0]), None), (&["red"], Some(&[1]), None)],
    ];
    written(schema, properties, &groups)
}

#[test]
fn tables_of_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let all = |bytes: &[u8]| {
        let mut table = PictureTable::open(opened(folder.path(), bytes)).unwrap()?;
        let captions = table.captions("")?;
        // The last one first: what is skipped is looked at too.
        let rows = (0..table.rows().min(100)).rev();
        let read = rows.map(|row| table.picture(row)).collect::<Result<Vec<_>, _>>()?;
        Ok::<_, String>((captions.concat(), read))
    };
    let valid = vec![
        pictures(Compression::UNCOMPRESSED, false),
        pictures(Compression::SNAPPY, true),
        pictures(Compression::ZSTD(ZstdLevel::default()), false),
    ];
    for bytes in &valid {
        let (captions, read) = all(bytes).unwrap();
        assert_eq!((captions.join(" "), read[2].as_slice()), ("a cat red".to_owned(), &b"picture 1"[..]));
    }
    for length in 0..valid[0].len() {
        assert!(all(&valid[0][..length]).is_err(), "{length}");
    }
    let list = "PAR1|text|image|bytes|picture|\u{15}\u{4}|\u{0}\u{0}\u{0}\u{7f}";
    let read = Box::new(|bytes: &[u8]| all(bytes).is_ok());
    Path { name: "picture-tables", valid, words: words(list), mend: as_it_is, most_bytes: 192 << 20, read }
        .fuzz(env!("CARGO_TARGET_TMPDIR"));
}
