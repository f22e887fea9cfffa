use std::{fs, os::unix::net::UnixListener, path::Path};

use ringtune_shared::captions::MOST_CAPTIONS;

use super::captions::{FolderCaptions, caption_file_names, open_regular};

const PICTURES: [&str; 2] = ["a.png", "b.b.jpg"];

fn read(folder: &Path, column: &str) -> Result<Vec<Vec<String>>, String> {
    let open = |name: &str| open_regular(&folder.join(name));
    let found = FolderCaptions::new(folder, PICTURES.into_iter(), column, &open);
    let of = |captions: FolderCaptions<'_>| PICTURES.iter().map(|picture| captions.of(picture)).collect();
    found.and_then(of).map_err(|error| error.to_string())
}

/// The captions of the pictures in a folder of these files.
fn captions(files: &[(&str, &str)], column: &str) -> Result<Vec<Vec<String>>, String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    read(folder.path(), column)
}

const CSV: &str = "metadata.csv";
const JSONL: &str = "metadata.jsonl";
const CAT: &str = "{\"file_name\": \"a.png\", \"text\": \"a cat\"}\n";

#[test]
fn captions_are_found_wherever_they_are() {
    let cat: [&[&str]; 2] = [&["a cat"], &[]];
    let folders: &[&[(&str, &str)]] = &[
        &[],
        &[("a.txt", "\u{feff}a cat\r\n"), ("b.txt", "another picture's")],
        &[("a.caption", "a cat")],
        &[("a.txt", "a cat"), ("a.caption", " a cat\n")],
        &[(JSONL, CAT)],
        &[(JSONL, CAT), ("a.txt", "a cat\n")],
        &[
            (JSONL, "{\"file_name\": \"a.png\", \"text\": null, \"more\": {}}\n{\"file_name\":\"b.b.jpg\"}"),
            ("a.txt", "a cat"),
        ],
        &[(JSONL, "\u{feff}{\"image_file_name\":\"a.png\",\"text\":[\"\",\"a\\tcat\"]}\r\n\r\n")],
        &[(CSV, "\u{feff}text,file_name\r\na cat,a.png\r\n\"\",b.b.jpg\r\n")],
        &[(CSV, "other_file_name,file_name,text\nx,a.png,\"a\ncat\"\n")],
    ];
    for files in folders {
        let expected = if files.is_empty() { [&[][..], &[]] } else { cat };
        assert_eq!(captions(files, "").unwrap(), expected, "{files:?}");
    }
    let list = "{\"file_name\": \"b.b.jpg\", \"words\": [\"red\", \"a cat\", \"red\"], \"text\": 1}";
    assert_eq!(captions(&[(JSONL, list)], "words").unwrap(), [&[][..], &["red", "a cat", "red"]]);
    let names = caption_file_names(["b.b.jpg", "b.gif"].into_iter());
    assert!(names.into_iter().eq(["b.b.caption", "b.b.txt", CSV, JSONL, "metadata.parquet"]));
}

#[test]
fn what_is_wrong_is_named_with_its_file_and_line() {
    let line = |file: &str, text: &str| format!("{{\"file_name\": {file:?}, \"text\": {text}}}");
    let several = |text: &str| line("a.png", &format!("[{}]", vec![text; MOST_CAPTIONS + 1].join(",")));
    let wrong: &[(&str, String, &[&str])] = &[
        (JSONL, format!("{CAT}[1]"), &["line 2", "no JSON object"]),
        (JSONL, format!("\n{CAT}{{"), &["line 3", "no JSON object", "object at column 1"]),
        (
            JSONL,
            "{\"text\": \"a\", \"id\": 1}".to_owned(),
            &["line 1", "no column \"file_name\"", "\"id\", \"text\""],
        ),
        (JSONL, line("c.png", "\"a\""), &["line 1", "no picture \"c.png\""]),
        (JSONL, line("../a.png", "\"a\""), &["line 1", "path separator", "in no other folder"]),
        (JSONL, line("sub/a.png", "\"a\""), &["line 1", "path separator"]),
        (JSONL, line("", "\"a\""), &["line 1", "empty"]),
        (JSONL, CAT.replace("\"a.png\"", "7"), &["line 1", "\"file_name\" is no string"]),
        (JSONL, CAT.repeat(2), &["line 2", "\"a.png\" is in line 1 already"]),
        (JSONL, line("a.png", "[\"a\", 1]"), &["line 1", "\"text\" is neither"]),
        (JSONL, line("a.png", &format!("{:?}", "x".repeat(4097))), &["line 1", "4097 bytes"]),
        (JSONL, several("\"a\""), &["line 1", "more than 64 captions"]),
        (JSONL, format!("{CAT}{}", " ".repeat(1 << 20) + CAT), &["line 2", "bytes; allowed: 1048576"]),
        (
            JSONL,
            CAT.replace("text", "caption"),
            &["no column \"text\"", "\"caption\", \"file_name\"", "caption_column"],
        ),
        (CSV, "file_name,words\na.png,a\n".to_owned(), &["no column \"text\"", "\"file_name\", \"words\""]),
        (CSV, "text\na\n".to_owned(), &["no column \"file_name\""]),
        (CSV, "x_file_name,y_file_name,text\n".to_owned(), &["\"x_file_name\" and \"y_file_name\""]),
        (CSV, "file_name,text\na.png\n".to_owned(), &["line: 2", "1 fields"]),
        (CSV, "file_name,text\n\"b.b.jpg\",\"a\nb\"\nc.png,a\n".to_owned(), &["line 4", "\"c.png\""]),
        ("metadata.parquet", "PAR1 no table".to_owned(), &["not whole"]),
    ];
    for (file, text, problems) in wrong {
        let refused = captions(&[(file, text)], "").unwrap_err();
        for problem in problems.iter().chain([file]) {
            assert!(refused.contains(*problem), "{problem:?} is not in {refused:?}");
        }
    }
    for files in [
        [("a.txt", "a cat"), ("a.caption", "a dog")],
        [("a.txt", "a dog"), (JSONL, CAT)],
        [(CSV, "file_name,text\n"), (JSONL, CAT)],
    ] {
        let refused = captions(&files, "").unwrap_err();
        assert!(files.iter().all(|(file, _)| refused.contains(file)), "{refused}");
    }
}

#[test]
fn files_that_are_no_texts_are_refused_before_they_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let expect = |name: &str, problem: &str| {
        let refused = read(folder.path(), "").unwrap_err();
        assert!(refused.contains(name) && refused.contains(problem), "{refused}");
        fs::remove_file(folder.path().join(name)).unwrap();
    };
    fs::write(folder.path().join(JSONL), [CAT.as_bytes(), b"\xff"].concat()).unwrap();
    expect(JSONL, "line 2: it is not UTF-8");
    fs::write(folder.path().join("a.txt"), b"\xff").unwrap();
    expect("a.txt", "not UTF-8");
    for name in ["a.caption", CSV, JSONL, "metadata.parquet"] {
        fs::File::create(folder.path().join(name)).unwrap().set_len(1 << 40).unwrap();
        expect(name, "bytes; allowed");
    }
    // A pipe, whose reader would wait, is not opened.
    let _listener = UnixListener::bind(folder.path().join("a.txt")).unwrap();
    expect("a.txt", "regular file");
}
