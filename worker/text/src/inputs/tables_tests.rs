use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use parquet::{
    basic::{Compression, ZstdLevel},
    data_type::{ByteArray, ByteArrayType, Int64Type},
    file::{properties::WriterProperties, writer::SerializedFileWriter},
    schema::parser::parse_message_type,
};

use super::{Identity, Input, InputFile, Kind, RowGroup, sink::testing::Collected, tables};

/// Writes a file of an id and a text in each row; each inner list is a row group, and none a null.
fn write(name: &str, compression: Compression, groups: &[&[Option<&[u8]>]]) -> (tempfile::TempDir, PathBuf) {
    let schema = "message rows { required int64 id; optional binary text (UTF8); optional group tags (LIST) { \
        repeated group list { optional binary element (UTF8); } } optional binary raw; }";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let properties = WriterProperties::builder().set_compression(compression).set_write_batch_size(2).build();
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let file = fs::File::create(&path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
    for rows in groups {
        let mut group = writer.next_row_group().unwrap();
        let ids: Vec<i64> = (0..rows.len() as i64).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&ids, None, None).unwrap();
        column.close().unwrap();
        let levels: Vec<i16> = rows.iter().map(|row| i16::from(row.is_some())).collect();
        let texts: Vec<ByteArray> = rows.iter().flatten().map(|text| text.to_vec().into()).collect();
        let nothing = vec![0i16; rows.len()];
        for (levels, texts, repeats) in
            [(&levels, texts, None), (&nothing, vec![], Some(&nothing[..])), (&nothing, vec![], None)]
        {
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<ByteArrayType>().write_batch(&texts, Some(levels), repeats).unwrap();
            column.close().unwrap();
        }
        group.close().unwrap();
    }
    writer.close().unwrap();
    (folder, path)
}

fn source(path: &Path) -> InputFile {
    let input = Input { path: path.to_owned(), name: "a.parquet".to_owned() };
    let kind = Kind::Table(tables::row_groups(&input, "text").unwrap());
    InputFile { path: path.to_owned(), kind, identity: Identity::of(path, "a.parquet").unwrap() }
}

const GROUPS: [&[Option<&[u8]>]; 3] = [
    &[Some(b"one"), Some("zwei \u{1f600}".as_bytes()), Some(b""), Some(b"one")],
    &[],
    &[Some(b"four"), None, Some(b"\xff\xfe"), Some(b"five")],
];

#[test]
fn rows_are_read_in_order_whatever_the_compression() {
    let zstd = Compression::ZSTD(ZstdLevel::default());
    for compression in [Compression::UNCOMPRESSED, Compression::SNAPPY, zstd] {
        let (_folder, path) = write("a.parquet", compression, &GROUPS);
        let source = source(&path);
        let Kind::Table(groups) = &source.kind else { panic!("no table") };
        assert_eq!(groups.iter().map(|group| group.rows).collect::<Vec<_>>(), [4, 0, 4]);
        let mut sink = Collected::default();
        tables::read(&source, 0..3, "text", &mut sink).unwrap();
        assert_eq!(sink.texts, ["one", "zwei \u{1f600}", "", "one", "four", "five"]);
        assert_eq!(sink.broken, ["a.parquet, row 6", "a.parquet, row 7"]);
        let mut last = Collected::default();
        tables::read(&source, 2..3, "text", &mut last).unwrap();
        assert_eq!((last.texts, last.broken), (sink.texts[4..].to_vec(), sink.broken));
    }
}

#[test]
fn more_rows_than_are_taken_at_once_are_all_read() {
    let texts: Vec<String> = (0..1000).map(|number| format!("text {number}")).collect();
    let rows: Vec<Option<&[u8]>> = texts.iter().map(|text| Some(text.as_bytes())).collect();
    let (_folder, path) = write("a.parquet", Compression::SNAPPY, &[&rows]);
    let mut sink = Collected::default();
    tables::read(&source(&path), 0..1, "text", &mut sink).unwrap();
    assert_eq!(sink.texts, texts);
    assert_eq!(super::count_documents(&path, "text").unwrap(), 1000);
}

#[test]
fn a_column_that_is_not_there_or_no_text_is_refused() {
    let (_folder, path) = write("a.parquet", Compression::UNCOMPRESSED, &GROUPS);
    let refused = |column: &str| tables::row_groups(&Input::local(&path), column).unwrap_err().to_string();
    let missing = refused("body");
    assert!(missing.contains(r#"no column "body"; it has "id", "text", "tags", "raw""#), "{missing}");
    for (column, word) in [("id", "INT64"), ("tags", "a list"), ("raw", "BYTE_ARRAY")] {
        let refused = refused(column);
        assert!(refused.contains(word) && refused.contains("allowed: a column of strings"), "{refused}");
    }
}

#[test]
fn a_compression_that_cannot_be_read_is_told_before_any_row_is() {
    let (_folder, path) = write("a.parquet", Compression::SNAPPY, &GROUPS);
    let whole = fs::read(&path).unwrap();
    // The end of the column's path, the field behind it, and 1 for Snappy, as Thrift's compact protocol has them.
    let snappy = b"\x04text\x15\x02";
    for (number, name) in [(2, "GZIP"), (3, "LZO"), (4, "BROTLI"), (5, "LZ4"), (7, "LZ4_RAW")] {
        let mut other = whole.clone();
        let mut places = 0;
        for place in 0..whole.len() - snappy.len() {
            if whole[place..].starts_with(snappy) {
                other[place + snappy.len() - 1] = 2 * number;
                places += 1;
            }
        }
        assert_eq!(places, GROUPS.len());
        fs::write(&path, other).unwrap();
        let refused = tables::row_groups(&Input::local(&path), "text").unwrap_err().to_string();
        let expected = format!("a.parquet: is compressed with {name}; allowed: none, Snappy, Zstandard");
        assert!(refused.ends_with(&expected), "{refused}");
    }
}

#[test]
fn files_that_are_not_whole_are_refused() {
    let (_folder, path) = write("a.parquet", Compression::UNCOMPRESSED, &GROUPS);
    let whole = fs::read(&path).unwrap();
    let refused = |content: &[u8]| {
        fs::write(&path, content).unwrap();
        tables::row_groups(&Input::local(&path), "text").unwrap_err().to_string()
    };
    assert!(refused(b"").contains("no .parquet file"));
    assert!(refused(&whole[..whole.len() - 1]).contains("not whole"));
    let size = whole.len();
    let mut large = whole.clone();
    large[size - 8..size - 4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(refused(&large).contains("allowed: 268435456"));
    let mut broken = whole;
    broken[size - 40..size - 8].fill(0xff);
    assert!(refused(&broken).contains("a.parquet"));
}

#[test]
fn a_row_group_says_its_size() {
    let (_folder, path) = write("a.parquet", Compression::UNCOMPRESSED, &GROUPS[..1]);
    let groups = tables::row_groups(&Input::local(&path), "text").unwrap();
    let [RowGroup { rows: 4, bytes }] = groups[..] else { panic!("{groups:?}") };
    assert!((20..400).contains(&bytes), "{bytes}");
}
