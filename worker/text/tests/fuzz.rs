//! Throws broken input at everything that reads files from elsewhere: no panic, no crash, bounded memory and time.
//!
//! The crate ringtune-fuzzing (tests/fuzzing) says how they are run for longer.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where something is missing")]

use std::{fs, sync::Arc};

use parquet::{
    basic::{Compression, Encoding, ZstdLevel},
    data_type::{ByteArray, ByteArrayType},
    file::{properties::WriterProperties, writer::SerializedFileWriter},
    schema::parser::parse_message_type,
};
use ringtune_fuzzing::{Path, as_it_is, words};
use ringtune_text::{Manifest, TextStream, TokenFile, Tokenizer, count_documents};
use serde_json::json;

/// Two row groups of twenty texts.
fn table(compression: Compression, encoding: Encoding, dictionary: bool) -> Vec<u8> {
    let schema = Arc::new(parse_message_type("message rows { optional binary text (UTF8); }").unwrap());
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .set_dictionary_enabled(dictionary)
        .set_encoding(encoding)
        .build();
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::new(properties)).unwrap();
    for _ in 0..2 {
        let texts: Vec<ByteArray> =
            (0..20).map(|number| format!("text {number}").into_bytes().into()).collect();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&texts, Some(&[1; 20]), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
    bytes
}

/// Counts the documents of such a file, whose ending says of what kind it is.
fn documents(name: &'static str, ending: &str, valid: Vec<Vec<u8>>, words: Vec<String>, most_bytes: u64) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(format!("a.{ending}"));
    let read = Box::new(|bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        count_documents(&path, "text").is_ok()
    });
    Path { name, valid, words, mend: as_it_is, most_bytes, read }.fuzz(env!("CARGO_TARGET_TMPDIR"));
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
    let words = words("PAR1|text|\u{15}\u{4}|\u{0}\u{0}\u{0}\u{7f}");
    documents("table", "parquet", valid, words, 192 << 20);
}

#[test]
fn lines() {
    let plain = b"{\"text\": \"one\"}\n\n{\"id\": [1, {\"a\": null}], \"text\": \"\\u00e9\\ud83d\\ude00 \xe6\x97\xa5\"}\n";
    let words = words("\"text\":|{|}|[|]|\\u|\\ud83d|null|\n|\r|1e999|\u{feff}");
    documents("lines", "jsonl", vec![plain.to_vec(), b"{\"text\":\"\"}".to_vec()], words, 64 << 20);
}

#[test]
fn tokenizers() {
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/bpe-tokenizer");
    let vocabulary: serde_json::Value =
        serde_json::from_slice(&fs::read(format!("{fixture}/vocab.json")).unwrap()).unwrap();
    let merges = fs::read_to_string(format!("{fixture}/merges.txt")).unwrap();
    let merges: Vec<&str> = merges.lines().skip(1).take(20).collect();
    let whole = json!({
        "added_tokens": [{"id": 556, "content": "<|endoftext|>"}],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "vocab": vocabulary, "merges": merges},
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    Path {
        name: "text-tokenizer",
        valid: vec![whole.to_string().into_bytes()],
        words: words("\"vocab\"|\"merges\"|a b|[\"a\",\"b\"]|65536|65535|-1|null|</w>"),
        mend: as_it_is,
        most_bytes: 64 << 20,
        read: Box::new(|bytes| {
            fs::write(&path, bytes).unwrap();
            let Ok(tokenizer) = Tokenizer::open(folder.path()) else { return false };
            let mut tokens = Vec::new();
            tokenizer.encoder().encode_ordinary("the quick brown fox's\n\n  \u{1f600}", &mut tokens);
            // The way back, also of ids that no token has.
            let mut stream = TextStream::new();
            for token in tokens.iter().map(|token| u32::from(*token)).chain([0, 300, u32::MAX]) {
                stream.push(tokenizer.bytes(token));
            }
            stream.finish();
            tokens.iter().all(|token| u32::from(*token) < tokenizer.vocabulary_size())
        }),
    }
    .fuzz(env!("CARGO_TARGET_TMPDIR"));
}

#[test]
fn files_of_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("meta.json");
    let hash = "0".repeat(64);
    let file = json!({"documents": 1, "tokens": 2, "sha256": hash});
    let manifest = json!({
        "ringtune_version": "0.3.0", "token_type": "uint16", "vocabulary_size": 557, "end_of_text_id": 556,
        "tokenizer_sha256": hash, "seed": 1, "val_fraction": 0.5, "skipped_documents": 0, "train": file, "val": file,
    });
    Path {
        name: "token-manifest",
        valid: vec![manifest.to_string().into_bytes()],
        words: words("\"train\"|uint32|1e999|18446744073709551616"),
        mend: as_it_is,
        most_bytes: 16 << 20,
        read: Box::new(|bytes| {
            fs::write(&path, bytes).unwrap();
            // The same bytes as tokens.
            if let Ok(tokens) = TokenFile::open(&path) {
                let mut block = [0; 8];
                let _ = (tokens.check_ids(557), tokens.read(tokens.tokens() / 2, &mut block));
            }
            Manifest::read(folder.path()).is_ok()
        }),
    }
    .fuzz(env!("CARGO_TARGET_TMPDIR"));
}
