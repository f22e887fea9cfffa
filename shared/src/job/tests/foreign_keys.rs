//! What people of other trainers write is answered with what to do instead.

use crate::job::{JobKind, parse_job_toml, pictures::FOREIGN_KEYS};

/// Every key that an advice names exists, and no foreign key does: unknown keys alone come here.
fn names_keys_that_there_are(head: &str, section: &str, keys: &[(&str, &str)]) {
    for (foreign, advice) in keys {
        let error = parse_job_toml(&format!("{head}[{section}]\n{foreign} = 1\n")).expect_err("no such key");
        let told = error.to_string();
        assert!(told.contains(advice), "{foreign}: {told}");
        // As people of nanoGPT write it: without sections.
        let error = parse_job_toml(&format!("{foreign} = 1\n{head}")).expect_err("no such key");
        assert!(error.to_string().contains(advice), "{foreign}: {error}");
        let Some((section, rest)) = advice.strip_prefix("write [").and_then(|rest| rest.split_once("] "))
        else {
            continue;
        };
        let key = rest.split([' ', ',', ':']).next().unwrap_or_default();
        let known = parse_job_toml(&format!("{head}[{section}]\n{key} = true\n")).expect_err("incomplete");
        assert!(
            !known.to_string().contains("unknown key") && !known.to_string().contains("not an option"),
            "{foreign} leads to {section}.{key}: {known}"
        );
    }
}

#[test]
fn advice_names_keys_that_there_are() {
    names_keys_that_there_are("", "train", FOREIGN_KEYS);
    names_keys_that_there_are("kind = \"gpt2_finetune\"\n", "gpt2", JobKind::Gpt2Finetune.foreign_keys());
    let texts = "kind = \"generate_text\"\n";
    names_keys_that_there_are(texts, "generate_text", JobKind::GenerateText.foreign_keys());
}

#[test]
fn a_key_of_this_kind_is_told_its_own_section() {
    for (kind, home) in [("gpt2_finetune", "[gpt2]"), ("textual_inversion", "[train]")] {
        let error = parse_job_toml(&format!("kind = {kind:?}\nseed = 1\n")).expect_err("not there");
        assert!(
            error.to_string().contains(&format!("seed: unknown key here; it belongs to {home}")),
            "{error}"
        );
    }
    let error = parse_job_toml("kind = \"gpt2_finetune\"\nbatch_size = 12\n").expect_err("not there");
    assert!(error.to_string().contains("batch_size: unknown key here; it belongs to [gpt2]"), "{error}");
}
