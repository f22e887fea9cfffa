//! Makes docs/rpc.md from the API itself: methods, messages and what their comments say from the .proto files, who may call
//! what from the access table. The test compares the page, or writes it:
//! `RINGTUNE_WRITE_DOCS=1 cargo test --release --workspace --test rpc_reference`

mod page;

use std::{fs, path::Path};

/// With this variable in its environment the test writes the page instead of comparing it.
const WRITE: &str = "RINGTUNE_WRITE_DOCS";
const COMMAND: &str = "RINGTUNE_WRITE_DOCS=1 cargo test --release --workspace --test rpc_reference";

#[test]
fn the_rpc_reference_is_what_the_api_says_of_itself() {
    let wanted = page::page().unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/rpc.md");
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, wanted).unwrap();
        return;
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    for (number, (found, wanted)) in found.lines().zip(wanted.lines()).enumerate() {
        let number = number + 1;
        assert_eq!(found, wanted, "docs/rpc.md, line {number}; write it anew:\n  {COMMAND}\n");
    }
    let lines = |text: &str| text.lines().count();
    assert_eq!(
        lines(&found),
        lines(&wanted),
        "docs/rpc.md is longer or shorter; write it anew:\n  {COMMAND}\n"
    );
}
