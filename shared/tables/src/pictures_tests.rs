use std::{fs::File, sync::Arc};

use parquet::{
    basic::{Compression, ZstdLevel},
    data_type::{ByteArray, ByteArrayType},
    file::{properties::WriterProperties, writer::SerializedFileWriter},
    schema::parser::parse_message_type,
};

use super::pictures::PictureTable;

/// As Hugging Face's datasets write pictures with captions.
const HUB: &str = "message rows { optional group image { optional binary bytes; optional binary path (UTF8); } \
    optional binary text (UTF8); }";
/// A column of bytes, and lists of captions.
const PLAIN: &str = "message rows { required binary jpg; optional group words (LIST) { repeated group list { \
    optional binary element (UTF8); } } }";

/// Values, and the levels that tell what is not there and where lists begin.
type Column<'a> = (&'a [&'a [u8]], &'a [i16], &'a [i16]);

/// A file with these row groups.
fn file(schema: &str, groups: &[&[Column<'_>]], dictionary: bool, compression: Compression) -> File {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .set_dictionary_enabled(dictionary)
        .set_data_page_row_count_limit(2)
        .set_write_batch_size(1)
        .build();
    let path = tempfile::NamedTempFile::new().unwrap();
    let mut writer = SerializedFileWriter::new(path.reopen().unwrap(), schema, Arc::new(properties)).unwrap();
    for columns in groups {
        let mut group = writer.next_row_group().unwrap();
        for (values, definitions, repetitions) in *columns {
            let values: Vec<ByteArray> = values.iter().map(|value| ByteArray::from(value.to_vec())).collect();
            let mut column = group.next_column().unwrap().unwrap();
            let levels = [definitions, repetitions].map(|levels| (!levels.is_empty()).then_some(*levels));
            column.typed::<ByteArrayType>().write_batch(&values, levels[0], levels[1]).unwrap();
            column.close().unwrap();
        }
        group.close().unwrap();
    }
    writer.close().unwrap();
    path.reopen().unwrap()
}

fn hub(dictionary: bool, compression: Compression) -> File {
    let first: &[Column<'_>] = &[
        (&[b"p1", b"p2", b"p3", b"p4", b"p5"], &[2, 2, 2, 2, 2], &[]),
        (&[b"1.png"], &[2, 1, 1, 1, 1], &[]),
        (&[b"a cat", b" ", b"a toy", b"x"], &[1, 1, 0, 1, 1], &[]),
    ];
    let second: &[Column<'_>] =
        &[(&[b"p6"], &[2, 1, 0], &[]), (&[], &[1, 1, 0], &[]), (&[b"y"], &[1, 0, 0], &[])];
    file(HUB, &[first, second], dictionary, compression)
}

fn open(file: File) -> Result<PictureTable, String> {
    PictureTable::open(file).unwrap()
}

#[test]
fn pictures_are_read_one_by_one_in_any_order() {
    for dictionary in [false, true] {
        for compression in
            [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::ZSTD(ZstdLevel::default())]
        {
            let mut table = open(hub(dictionary, compression)).unwrap();
            assert_eq!(table.rows(), 8);
            for row in [0, 1, 2, 3, 4, 5, 3, 4, 0, 5, 2, 2, 4] {
                assert_eq!(table.picture(row).unwrap(), format!("p{}", row + 1).as_bytes(), "{row}");
            }
            for (row, problem) in [(6, "row 7: has no bytes"), (7, "row 8: has no bytes"), (8, "no row 9")] {
                let refused = table.picture(row).unwrap_err();
                assert!(refused.contains(problem), "{refused}");
            }
            let captions = table.captions("").unwrap();
            assert_eq!(captions.concat(), ["a cat", "a toy", "x", "y"]);
            assert!(captions[1].is_empty() && captions[2].is_empty() && captions[5] == ["y"]);
        }
    }
}

#[test]
fn the_only_column_of_bytes_is_the_pictures_and_captions_may_be_lists() {
    let columns: &[Column<'_>] =
        &[(&[b"p1", b"p2"], &[], &[]), (&[b"a cat", b"red", b"a dog"], &[3, 3, 3], &[0, 1, 0])];
    let mut table = open(file(PLAIN, &[columns], true, Compression::SNAPPY)).unwrap();
    assert_eq!((table.picture(1).unwrap(), table.picture(0).unwrap()), (b"p2".to_vec(), b"p1".to_vec()));
    assert_eq!(table.captions("words").unwrap(), [vec!["a cat", "red"], vec!["a dog"]]);
    let refused = table.captions("").unwrap_err();
    assert_eq!(refused, "has no column \"text\"; it has \"jpg\", \"words\" (see data.caption_column)");
}

#[test]
fn a_file_without_pictures_says_what_it_has_instead() {
    let of = |schema: &str, columns: &[Column<'_>]| {
        open(file(schema, &[columns], true, Compression::UNCOMPRESSED)).err().unwrap()
    };
    let none = of(
        "message rows { required binary url (UTF8); required binary text (UTF8); }",
        &[(&[b"u"], &[], &[]), (&[b"t"], &[], &[])],
    );
    assert!(none.contains("has no pictures") && none.ends_with("it has \"url\", \"text\""), "{none}");
    let two: &[Column<'_>] = &[(&[b"u"], &[], &[]), (&[b"t"], &[], &[])];
    let several = of("message rows { required binary a; required binary b; }", two);
    assert_eq!(several, "has several columns of bytes, \"a\", \"b\", and none of them is \"image\"");
    assert!(
        open(file(
            "message rows { required binary a; required binary image; }",
            &[two],
            true,
            Compression::SNAPPY
        ))
        .is_ok()
    );
}

#[test]
fn captions_that_cannot_be_used_are_named_with_their_row() {
    let long = vec![b'x'; 5000];
    for (caption, problem) in
        [(&b"caf\xe9"[..], "row 2: it is not UTF-8"), (&long, "row 2: it has 5000 bytes")]
    {
        let columns: &[Column<'_>] =
            &[(&[b"p", b"p"], &[2, 2], &[]), (&[], &[1, 1], &[]), (&[b"a", caption], &[1, 1], &[])];
        let refused =
            open(file(HUB, &[columns], true, Compression::SNAPPY)).unwrap().captions("").unwrap_err();
        assert!(refused.starts_with(problem), "{refused}");
    }
}
