//! `KEY=VALUE` over a job file.

use super::*;
use crate::job::{
    kinds::{generate::GenerateDraft, lora::AdapterDraft, unet_finetune::UnetDraft},
    reader::Keys as _,
};

#[track_caller]
fn settings(given: &[&str]) -> Vec<Setting> {
    given.iter().map(|one| one.parse().unwrap()).collect()
}

#[track_caller]
fn job(given: &[&str]) -> JobSpec {
    parse_job_toml_with(SMALLEST, &settings(given)).unwrap()
}

/// The violations as displayed.
#[track_caller]
fn wrong(text: &str, given: &[&str]) -> Vec<String> {
    let error = parse_job_toml_with(text, &settings(given)).expect_err("it was accepted");
    error.violations.iter().map(ToString::to_string).collect()
}

#[test]
fn a_section_whose_name_is_mistyped_lacks_nothing_else() {
    let job = "kind = \"textual_inversion\"\n[model]\nbase = \"/m\"\n[data]\nimages = \"/i\"\n\
               [trian]\nplaceholder_token = \"<a>\"\ninitializer_token = \"b\"\n";
    let error = crate::job::parse_job_toml(job).unwrap_err().to_string();
    assert_eq!(error, "line 6: trian: unknown key; did you mean \"train\"?");
    // Missing fields elsewhere are reported as well.
    let error = crate::job::parse_job_toml(&job.replace("base = \"/m\"\n", "")).unwrap_err().to_string();
    assert!(error.contains("trian: unknown") && error.contains("model.base: missing"), "{error}");
}

#[test]
fn a_setting_replaces_or_adds_a_key_of_any_section() {
    let spec = job(&[
        "name=star",
        "model.base=./other model",
        "train.learning_rate=1e-3",
        "train.scale_lr=true",
        "train.templates=[\"a {}\", 'b {}']",
        "train.placeholder_token=<dicoo>",
        "train.initializer_token = \"2024\"",
        "cluster.world_size=3",
        "debug.trace_dir=",
    ]);
    assert_eq!((spec.common.name.as_str(), spec.common.model.base.as_str()), ("star", "./other model"));
    let TextualInversionSpec { word, train, .. } = spec.textual_inversion().unwrap();
    let cluster = &spec.common.cluster;
    assert_eq!((train.effective_learning_rate(cluster), cluster.world_size), (0.048, 3));
    assert_eq!(train.templates, ["a {}", "b {}"]);
    assert_eq!((word.placeholder_token.as_str(), word.initializer_token.as_str()), ("<dicoo>", "2024"));
    assert_eq!(spec.common.debug.trace_dir, "");
    let lines = parse_job_toml(SMALLEST).unwrap();
    assert_eq!(job(&[]), lines);
}

#[test]
fn the_last_of_several_counts() {
    let spec = job(&["train.seed=1", "train.seed=2", "train.num_vectors=2"]);
    assert_eq!(spec.textual_inversion().unwrap().train.seed, 2);
}

#[test]
fn a_whole_section_can_be_given() {
    let spec = job(&["cluster={ world_size = 4 }", "cluster.min_world_size=2"]);
    assert_eq!((spec.common.cluster.world_size, spec.common.cluster.min_world_size), (4, 2));
}

#[test]
fn errors_name_the_setting_and_not_a_line() {
    let text = with("train", "num_vectors = 0");
    let given = ["train.seed=-1", "train.scale_lr=[\n1,\n2]", "train.sede=1", "trian.seed=1"];
    let expected = [
        "line 8: train.num_vectors: got 0; allowed: 1 to 64",
        "train.seed: got -1; allowed: 0 to 9223372036854775807 (from --set train.seed=-1)",
        "train.scale_lr: got [\n1,\n2] (array); allowed: true or false (from --set train.scale_lr=[\n1,\n2])",
        "train.sede: unknown key; did you mean \"seed\"? (from --set train.sede=1)",
        "trian: unknown key; did you mean \"train\"? (from --set trian.seed=1)",
    ];
    assert_eq!(wrong(&text, &given), expected);
    // A value that is replaced is not a mistake, and a key of the file keeps its line.
    assert_eq!(wrong(&text, &["train.num_vectors=1", "train.seed=7", "cluster.min_world_size=2"]).len(), 1);
    let text = format!("{SMALLEST}\nlearning_rate = 'fast'");
    assert!(wrong(&text, &["train.seed=1"])[0].starts_with("line 11: train.learning_rate: "));
}

#[test]
fn a_setting_within_what_is_no_table_is_refused() {
    for (given, part) in [
        ("train.seed.x=1", "train.seed is not a table"),
        ("kind.x=1", "kind is not a table"),
        ("train.templates.0.x=1", "train.templates.0 is not a table"),
    ] {
        let text = with("train", "seed = 1\ntemplates = [\"a {}\"]");
        let found = wrong(&text, &[given]);
        assert!(found[0].contains(part) && found[0].contains("(from --set "), "{found:?}");
    }
}

#[test]
fn what_is_no_key_and_value_is_refused() {
    for given in
        ["", "seed", "=1", "train.=1", ".seed=1", "train..seed=1", "tr ain.seed=1", "a.b.c.d.e.f.g.h.i=1"]
    {
        let error = given.parse::<Setting>().unwrap_err().to_string();
        assert!(error.contains("KEY=VALUE"), "{given}: {error}");
    }
    for given in ["a=\"open", "a='open", "a=[1,", "a={b=1"] {
        let error = given.parse::<Setting>().unwrap_err().to_string();
        assert!(error.contains("not valid TOML"), "{given}: {error}");
    }
    assert!(format!("a={}", "x".repeat(2 << 20)).parse::<Setting>().is_err());
}

#[test]
fn no_value_can_become_another_line_of_the_file() {
    for value in ["1\nnum_vectors = 64", "1\n[train]\nnum_vectors = 64", "\"\n[[\"--set\"]]", "\r\n[cluster]"]
    {
        let Ok(setting) = format!("name={value}").parse::<Setting>() else { continue };
        // As a name it is a text with a line break, which no name may have.
        let error = parse_job_toml_with(SMALLEST, &[setting]).unwrap_err();
        assert_eq!(error.violations.len(), 1, "{error}");
        assert_eq!(error.violations[0].field, "name", "{error}");
    }
    let text = format!("{SMALLEST}[[\"--set\"]]\nvalue = 1\n");
    assert_eq!(violation(&text).field, "--set");
    assert_eq!(wrong(&text, &["train.seed=1"]).len(), 1);
}

#[test]
fn a_file_that_is_no_toml_keeps_its_own_error() {
    let text = format!("{SMALLEST}name = \"open");
    let plain = parse_job_toml(&text).unwrap_err();
    assert_eq!(parse_job_toml_with(&text, &settings(&["train.seed=1"])).unwrap_err(), plain);
}

#[test]
fn the_queue_is_set_too_and_is_no_part_of_what_is_computed() {
    let text = format!("{SMALLEST}\n[queue]\nowner = \"ada\"\nlabels = {{ \"a/b\" = \"c\" }}\n");
    let set = settings(&["queue.priority=5", "queue.labels.team=red hat"]);
    let request = parse_job_request(&text, &set).unwrap();
    assert_eq!((request.queue.owner.as_str(), request.queue.priority), ("ada", 5));
    let labels: Vec<_> =
        request.queue.labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(labels, [("a/b", "c"), ("team", "red hat")]);
    assert_eq!(request.spec, parse_job_toml(SMALLEST).unwrap());
}

#[test]
fn a_wrong_queue_is_named_with_its_line_or_its_setting() {
    let text =
        format!("{SMALLEST}\n[queue]\npriority = -1\nlabels = {{ Team = \"x\", n = 3 }}\nurgent = true\n");
    let lines = SMALLEST.lines().count();
    let problems = wrong(&text, &["queue.owner=7"]);
    let line = |more: usize| format!("line {}: ", lines + more);
    let starts = [
        format!("{}queue.priority: got -1; allowed: 0 to 1000", line(3)),
        format!("{}queue.labels.n: got 3 (integer); allowed: a text in quotes", line(4)),
        format!("{}queue.labels.Team: the key \"Team\" has 4 characters; allowed: 1 to 63", line(4)),
        format!("{}queue.urgent: unknown key", line(5)),
        "queue.owner: got 7 (integer); allowed: a text in quotes (from --set queue.owner=7)".to_owned(),
    ];
    for start in &starts {
        assert!(problems.iter().any(|problem| problem.starts_with(start)), "{start} is not in {problems:#?}");
    }
    assert_eq!(problems.len(), starts.len(), "{problems:#?}");
}

/// Every key is documented.
#[test]
fn the_pages_of_the_kinds_have_every_key() {
    let repository = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |page: &str| std::fs::read_to_string(repository.join(page)).unwrap();
    let (training, generate) = (read("docs/textual-inversion.md"), read("docs/generate.md"));
    for key in WordDraft::keys().into_iter().chain(TrainDraft::keys()) {
        assert!(
            training.contains(&format!("train.{key}`")) || training.contains(&format!("`{key}`")),
            "train.{key}"
        );
    }
    let unet = read("docs/unet.md");
    for key in UnetDraft::keys() {
        assert!(unet.contains(&format!("`train.{key}`")), "train.{key}");
    }
    let lora = read("docs/lora.md");
    for key in AdapterDraft::keys().into_iter().map(|key| format!("lora.{key}")) {
        assert!(lora.contains(&format!("`{key}`")), "{key}");
    }
    for key in PromptDraft::keys() {
        assert!(lora.contains(&format!("data.{key}`")), "data.{key}");
    }
    for key in GenerateDraft::keys() {
        assert!(
            generate.contains(&format!("`{key}`")) || generate.contains(&format!("{key} =")),
            "generate.{key}"
        );
    }
}
