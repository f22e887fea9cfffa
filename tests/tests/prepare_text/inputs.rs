//! All kinds of files.

use std::{fs, path::Path, sync::Arc};

use anyhow::{Result, ensure};
use parquet::{
    basic::Compression,
    data_type::{ByteArray, ByteArrayType},
    file::{properties::WriterProperties, writer::SerializedFileWriter},
    schema::parser::parse_message_type,
};
use ringtune_tests::{Sandbox, files::differences};

use crate::{TOKEN_FILES, expect_same, make_documents, prepare, texts_of, write_lines};

/// Rows of a row group.
const GROUP: usize = 300;

fn write_table(file: &Path, column: &str, texts: &[String]) -> Result<()> {
    let schema =
        Arc::new(parse_message_type(&format!("message rows {{ optional binary {column} (UTF8); }}"))?);
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut writer = SerializedFileWriter::new(fs::File::create(file)?, schema, Arc::new(properties))?;
    for rows in texts.chunks(GROUP) {
        let mut group = writer.next_row_group()?;
        if let Some(mut column) = group.next_column()? {
            let texts: Vec<ByteArray> = rows.iter().map(|text| text.as_str().into()).collect();
            column.typed::<ByteArrayType>().write_batch(&texts, Some(&vec![1; rows.len()]), None)?;
            column.close()?;
        }
        group.close()?;
    }
    writer.close()?;
    Ok(())
}

#[tokio::test]
async fn files_of_every_kind_give_what_lines_give() -> Result<()> {
    let sandbox = Sandbox::new()?;
    make_documents(1500, &sandbox.path("all.jsonl")).await?;
    let texts = texts_of(&sandbox.path("all.jsonl"))?;
    // The same documents, in the order of paths: lines, text files, two tables.
    let mixed = sandbox.path("mixed");
    fs::create_dir_all(mixed.join("b/deep"))?;
    write_lines(&mixed.join("a.jsonl"), texts[..400].iter())?;
    for (number, text) in texts[400..700].iter().enumerate() {
        fs::write(mixed.join(format!("b/deep/{number:04}.txt")), text)?;
    }
    write_table(&mixed.join("c-0.parquet"), "text", &texts[700..1400])?;
    write_table(&mixed.join("c-1.parquet"), "text", &texts[1400..])?;
    fs::write(mixed.join("README.md"), "no document")?;
    prepare(&sandbox, &["all.jsonl"], "one", &[]).await?.expect_code(0)?;
    let finished = prepare(&sandbox, &["mixed"], "many", &[]).await?.expect_code(0)?;
    finished.expect_said(&["1 files of other endings"])?;
    expect_same(&sandbox.path("one"), &sandbox.path("many"))?;
    // One after the other, with another column and one thread.
    let [first, second] = [0, 1].map(|number| format!("bodies-{number}.parquet"));
    write_table(&sandbox.path(&first), "body", &texts[..1000])?;
    write_table(&sandbox.path(&second), "body", &texts[1000..])?;
    let more = ["--text-column", "body", "--threads", "1"];
    let finished = prepare(&sandbox, &[&first, &second], "bodies", &more[..2]).await?.expect_code(0)?;
    expect_same(&sandbox.path("one"), &sandbox.path("bodies"))?;
    ensure!(finished.stdout.contains("1499 documents"), "{}", finished.stdout);
    // In reverse order they are other documents.
    prepare(&sandbox, &[&second, &first], "turned", &more[..2]).await?.expect_code(0)?;
    let differing = differences(&sandbox.path("one"), &sandbox.path("turned"), &TOKEN_FILES)?;
    ensure!(!differing.is_empty(), "the order counts for nothing");
    Ok(())
}

#[tokio::test]
async fn broken_documents_end_it_or_are_left_out() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let lines = "{\"text\":\"one\"}\n{\"text\":\"two\"}\n{\"text\":3}\n{\"text\":\"four\"}\nno json\n";
    fs::write(sandbox.path("a.jsonl"), lines)?;
    fs::write(sandbox.path("b.txt"), b"f\xffive")?;
    fs::write(sandbox.path("whole.jsonl"), "{\"text\":\"one\"}\n{\"text\":\"two\"}\n{\"text\":\"four\"}\n")?;
    let inputs = ["a.jsonl", "b.txt"];
    let ended = prepare(&sandbox, &inputs, "out", &[]).await?.expect_code(1)?;
    ended.expect_said(&["a.jsonl, line 3: \"text\" is a number; allowed: a string", "--skip-broken"])?;
    ensure!(!sandbox.path("out/train.bin").exists(), "something was written");
    let went = prepare(&sandbox, &inputs, "out", &["--skip-broken"]).await?.expect_code(0)?;
    ensure!(went.stdout.contains("left out: 3 documents"), "{}", went.stdout);
    went.expect_said(&["left out: a.jsonl, line 5", "left out: b.txt: is not UTF-8 from byte 1 on"])?;
    prepare(&sandbox, &["whole.jsonl"], "whole", &[]).await?.expect_code(0)?;
    expect_same(&sandbox.path("out"), &sandbox.path("whole"))
}

#[tokio::test]
async fn the_first_broken_document_is_told_of_though_another_thread_finds_a_later_one_first() -> Result<()> {
    let sandbox = Sandbox::new()?;
    // The second file is refused at once, while another thread has megabytes of the first to read before the broken line.
    let line = format!("{{\"text\":\"{}\"}}\n", "a star of the sea ".repeat(20));
    fs::write(sandbox.path("a.jsonl"), line.repeat(10_000) + "{\"text\":3}\n")?;
    fs::write(sandbox.path("b.txt"), b"f\xffive")?;
    let ended = prepare(&sandbox, &["a.jsonl", "b.txt"], "out", &[]).await?.expect_code(1)?;
    ended.expect_said(&["a.jsonl, line 10001: \"text\" is a number"])?;
    Ok(())
}
