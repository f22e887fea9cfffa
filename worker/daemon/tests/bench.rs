//! `ringtune-worker bench step` as its users meet it, on the toy model.

#![allow(clippy::unwrap_used, reason = "a test ends where something is missing")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;

fn toy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/toy-sd")
}

fn bench(arguments: &[&str]) -> Output {
    limited("auto", arguments)
}

fn limited(set: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringtune-worker"));
    command.env_clear().env("RINGTUNE__COMPUTE__INSTRUCTION_SET", set).stdin(Stdio::null());
    command.args(["bench", "step"]).args(arguments).output().unwrap()
}

fn lines(output: &Output) -> Vec<Value> {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// The classes that each trained step has, whatever the processor.
const ALWAYS: [&str; 9] = [
    "convolutions 3x3",
    "linears",
    "attention forward",
    "attention backward",
    "norms",
    "GEGLU",
    "text encoder",
    "rest",
    "between operators",
];
/// All of ours; no other may appear, or the table does not know what it does.
const KERNELS: [&str; 14] = [
    "attention",
    "attention_backward",
    "convolution",
    "convolution_add",
    "convolution_strided",
    "convolution_transposed",
    "geglu",
    "geglu_backward",
    "group_norm",
    "group_norm_backward",
    "layer_norm",
    "layer_norm_backward",
    "linear",
    "linear_add",
];

fn has_bf16() -> bool {
    let flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    flags.contains("avx512_bf16") || flags.contains("amx_bf16")
}

#[test]
fn a_recorded_step_is_shared_out_to_the_classes_and_the_trace_shows_it() {
    let folder = tempfile::tempdir().unwrap();
    for precision in ["bf16", "fp32"] {
        if precision == "bf16" && !has_bf16() {
            eprintln!("SKIPPED bf16: this processor does not have it");
            continue;
        }
        let trace = folder.path().join(format!("{precision}.json"));
        let (toy, file) = (toy(), trace.to_str().unwrap());
        let model = toy.to_str().unwrap();
        let common =
            ["--resolution", "64", "--steps", "2", "--encode", "1", "--threads", "1", "--output", "json"];
        let said =
            lines(&bench(&[&[model], &common[..], &["--precision", precision, "--profile", file]].concat()));
        // What the machine is, a picture, three steps of which the first warms up, and all together.
        assert_eq!(said.len(), 6, "{said:#?}");
        assert_eq!((&said[0]["precision"], &said[0]["threads"]), (&precision.into(), &1.into()));
        assert!(!said[0]["matrix_instructions"].as_str().unwrap().is_empty());
        assert!(number(&said[1]["encode_seconds"]) > 0.0);
        let steps = &said[2..5];
        assert_eq!(
            steps.iter().map(|step| &step["warm_up"] == true).collect::<Vec<_>>(),
            [true, false, false]
        );
        let seconds = |step: &Value| number(&step["step_seconds"]);
        let summary = &said[5];
        let median = f64::midpoint(seconds(&steps[1]), seconds(&steps[2]));
        assert!((number(&summary["median_seconds"]) - median).abs() < 1e-9);
        assert!(number(&summary["peak_private_bytes"]) > 1e6);
        for rate in ["convolution_flops_per_second", "product_flops_per_second", "copy_bytes_per_second"] {
            assert!(number(&summary[rate]) > 1e7, "{rate}");
        }
        assert!((0.0..1.0).contains(&number(&summary["of_roofline"])), "{summary}");
        // 1. The classes are the step's time, and all of it: but for what is around libtorch.
        let classes = summary["classes"].as_array().unwrap();
        let names: BTreeSet<&str> = classes.iter().map(|class| class["class"].as_str().unwrap()).collect();
        for name in ALWAYS {
            assert!(names.contains(name), "{name} of {names:?}");
        }
        let shared: f64 = classes.iter().map(|class| number(&class["seconds"])).sum();
        assert!(shared <= median && shared > 0.5 * median, "{shared} s of {median} s are shared out");
        let shares: f64 = classes.iter().map(|class| number(&class["share"])).sum();
        assert!((shares - 1.0).abs() < 1e-6, "{shares}");
        // 2. The work is that of convolutions, linear layers and attention, and was the same in the first step.
        let work =
            ["convolutions 3x3", "convolutions 1x1", "linears", "attention forward", "attention backward"];
        let is_work = |class: &&Value| work.iter().any(|name| class["class"] == *name);
        let flop: f64 = classes.iter().filter(is_work).map(|class| number(&class["flop"])).sum();
        assert!((flop / number(&summary["flop"]) - 1.0).abs() < 1e-9, "{flop} {}", summary["flop"]);
        assert!(flop > 1e8, "{flop}");
        // 3. The trace.
        let trace: Value = serde_json::from_slice(&fs::read(&trace).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        for event in events {
            assert!(
                event["ph"] == "X" && number(&event["ts"]) >= 0.0 && number(&event["dur"]) >= 0.0,
                "{event}"
            );
            assert!(event["args"]["inputs"].is_array() && event["pid"].is_u64() && event["tid"].is_u64());
        }
        let named = |name: &str| events.iter().filter(|event| event["name"] == name).count();
        assert_eq!((named("ringtune::step"), named("ringtune::text_encoder")), (2, 2));
        let ours: BTreeSet<&str> =
            events.iter().filter_map(|event| event["name"].as_str()?.strip_prefix("ringtune::")).collect();
        let known: BTreeSet<&str> = KERNELS.into_iter().chain(["step", "text_encoder"]).collect();
        assert!(ours.is_subset(&known), "unknown: {:?}", ours.difference(&known));
        if precision == "bf16" {
            assert_eq!(ours, known);
        }
    }
}

#[test]
fn people_get_a_table_and_several_concepts_are_compared() {
    let toy = toy();
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.json");
    let arguments = [toy.to_str().unwrap(), "--resolution", "64", "--steps", "1", "--concepts", "3"];
    let output = bench(&[&arguments[..], &["--profile", trace.to_str().unwrap()]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    for words in ["CLASS", "convolutions 3x3", "of the roofline", "peak private memory", "several concepts"] {
        assert!(text.contains(words), "{words:?} is missing in\n{text}");
    }
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("step 1 (warm-up)") && said.contains("step 2, 3 concepts:"), "{said}");
}

#[test]
fn what_is_wrong_is_said_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let (toy, missing) = (toy(), folder.path().join("missing/trace.json"));
    let (model, missing) = (toy.to_str().unwrap(), missing.to_str().unwrap());
    for (arguments, code, words) in [
        (vec!["/nowhere"], 1, vec!["MODEL", "/nowhere"]),
        (vec![model, "--resolution", "67"], 2, vec!["--resolution", "67", "multiple of"]),
        (vec![model, "--profile", missing], 1, vec!["--profile", missing]),
        (vec![model, "--profile", missing, "--steps", "0"], 2, vec!["--steps", "0"]),
        (vec![], 2, vec!["MODEL"]),
    ] {
        let output = bench(&arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        for word in words {
            assert!(text.contains(word), "{arguments:?}: {word:?} is missing in {text}");
        }
        assert!(output.stdout.is_empty());
    }
}

/// Each set that this processor has, from the least on, and without a limit.
#[test]
fn a_limit_of_instructions_lowers_all_that_computes_and_nothing_else() {
    let toy = toy();
    let arguments = [toy.to_str().unwrap(), "--resolution", "64", "--steps", "1", "--threads", "1"];
    let arguments = [&arguments[..], &["--precision", "fp32", "--output", "json"]].concat();
    let names = ["DEFAULT+sse", "AVX2+avx2", "AVX512+avx512", "AVX512+avx512_bf16", "AVX512+amx_bf16"];
    let mut best: Option<(&str, f64)> = None;
    for (set, name) in ["portable", "avx2", "avx512", "avx512_bf16", "amx"].into_iter().zip(names) {
        let output = limited(set, &arguments);
        if output.status.code() == Some(2) {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(said.contains(&format!("compute.instruction_set: \"{set}\" is not allowed")), "{said}");
            assert!(best.is_some(), "{said}");
            continue;
        }
        let said = lines(&output);
        assert_eq!(said[0]["instruction_set"], name);
        let loss = number(&said[1]["loss"]);
        if let Some((_, before)) = best {
            assert!((loss - before).abs() < 1e-4 * loss, "{set}: {loss}, before {before}");
        }
        best = Some((name, loss));
    }
    let said = lines(&bench(&arguments));
    assert_eq!((said[0]["instruction_set"].as_str().unwrap(), number(&said[1]["loss"])), best.unwrap());
    let output = limited("sse9", &arguments);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}
